"""Initializers: ``init(key, shape, dtype) -> array``; scaled by fan as in ``jax.nn.initializers``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.api.placement import laid_out
from meshwright.core import dtypes
from meshwright.errors import ArgumentError, ShapeError
from meshwright.ir.tracing import Tracer
from meshwright.numpy import creation
from meshwright.numpy.manipulation import moveaxis, reshape
from meshwright.numpy.promotion import scalar_like
from meshwright.ops.elementwise import table as ops
from meshwright.random import normal as draw_normal
from meshwright.random import orthogonal as draw_orthogonal
from meshwright.random import split
from meshwright.random import truncated_normal as draw_truncated
from meshwright.random import uniform as draw_uniform

Initializer = Callable[..., Any]
_DIMS = int | Sequence[int]


def zeros(key: Any, shape: Any, dtype: Any = None, out_sharding: Any = None) -> Any:
    """Zeros.

    >>> zeros(None, (2,)).tolist()
    [0.0, 0.0]
    """
    return laid_out(creation.zeros(shape, dtype), out_sharding)


def ones(key: Any, shape: Any, dtype: Any = None, out_sharding: Any = None) -> Any:
    """Ones.

    >>> ones(None, (2,)).tolist()
    [1.0, 1.0]
    """
    return laid_out(creation.ones(shape, dtype), out_sharding)


def _dtype(own: Any, given: Any) -> np.dtype:
    """The dtype requested when drawing, else that of the initializer, else the default."""
    chosen = given if given is not None else own
    return dtypes.default_float() if chosen is None else dtypes.requested(chosen, "initializer")


def _initializer(draw: Callable[[Any, Any, Any], Any]) -> Initializer:
    """An initializer, with all its arguments, from ``draw(key, shape, dtype or None)``."""

    def init(key: Any, shape: Any, dtype: Any = None, out_sharding: Any = None) -> Any:
        return laid_out(draw(key, shape, dtype), out_sharding)

    return init


def _root(x: Any) -> Any:
    """The square root of a number, which may be traced."""
    return ops.sqrt(x) if isinstance(x, Tracer) else math.sqrt(x)


def _times(x: Any, factor: Any) -> Any:
    return ops.mul(x, scalar_like(factor, x))


def constant(value: Any, dtype: Any = None) -> Initializer:
    """Filled with ``value``.

    >>> constant(7.0)(None, (2,)).tolist()
    [7.0, 7.0]
    """
    return _initializer(lambda key, shape, chosen: creation.full(shape, value, _dtype(dtype, chosen)))


def uniform(scale: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Uniform in ``[0, scale)``."""
    return _initializer(lambda key, shape, chosen: _times(draw_uniform(key, shape, _dtype(dtype, chosen)), scale))


def normal(stddev: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Normal with mean 0 and standard deviation ``stddev``."""
    return _initializer(lambda key, shape, chosen: _times(draw_normal(key, shape, _dtype(dtype, chosen)), stddev))


def truncated_normal(stddev: Any = 1e-2, dtype: Any = None, lower: float = -2.0, upper: float = 2.0) -> Initializer:
    """``stddev`` times a normal distribution truncated at ``lower`` and ``upper``."""
    return _initializer(
        lambda key, shape, chosen: _times(draw_truncated(key, lower, upper, shape, _dtype(dtype, chosen)), stddev)
    )


def orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """``scale`` times a random matrix with orthonormal columns or rows, whichever are fewer (Saxe et al. 2014).

    Args:
      column_axis: the axis of the columns; all others together are the rows.

    Raises:
      ShapeError: (when drawing) fewer than two dimensions.

    >>> orthogonal(2.0)(PRNGKey(0), (3, 5)).shape
    (3, 5)
    """

    def init(key: Any, shape: Sequence[int], chosen: Any) -> Any:
        if len(shape) < 2:
            raise ShapeError(f"orthogonal: expected a shape of at least two dimensions, got {tuple(shape)}")
        rest = list(shape)
        columns = rest.pop(column_axis)
        drawn = draw_orthogonal(key, math.prod(rest), dtype=_dtype(dtype, chosen), m=columns)
        return _times(moveaxis(reshape(drawn, (*rest, columns)), -1, column_axis), scale)

    return _initializer(init)


def delta_orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """Convolution kernels that are zero except for an orthogonal matrix in the center (Xiao et al. 2018, "Dynamical
    isometry and a mean field theory of CNNs"): (*window, inputs, outputs) with at most as many inputs as outputs.

    Raises (of the initializer):
      ShapeError: not 3 to 5 dimensions, or more inputs than outputs.

    >>> kernel = delta_orthogonal()(PRNGKey(0), (3, 3, 2, 4))
    >>> np.round(np.asarray(kernel[1, 1] @ kernel[1, 1].T), 3).tolist(), abs(kernel[0]).sum().item()
    ([[1.0, 0.0], [0.0, 1.0]], 0.0)
    """
    matrix = orthogonal(scale, column_axis, dtype)

    def init(key: Any, shape: Sequence[int], chosen: Any) -> Any:
        if len(shape) not in (3, 4, 5) or shape[-1] < shape[-2]:
            raise ShapeError(
                "delta_orthogonal: expected a shape (*window, inputs, outputs) of 3 to 5 dimensions, with at most as "
                f"many inputs as outputs, got {tuple(shape)}"
            )
        target = _dtype(dtype, chosen)
        middle = tuple((size - 1) // 2 for size in shape[:-2])
        return creation.zeros(shape, target).at[middle].set(matrix(key, shape[-2:], target))

    return _initializer(init)


def _product(shape: Sequence[int], dims: _DIMS) -> int:
    return math.prod(shape[d] for d in ((dims,) if isinstance(dims, int) else dims))


def fans(shape: Sequence[int], in_axis: _DIMS, out_axis: _DIMS, batch_axis: _DIMS = ()) -> tuple[float, float]:
    """(fan in, fan out) of a kernel: the numbers of inputs and outputs of one unit.

    Raises:
      ArgumentError: fewer than two dimensions.
    """
    if len(shape) < 2:
        raise ArgumentError(
            f"initializer: fans are those of a kernel of two dimensions at least, got shape {tuple(shape)}; for "
            "vectors use zeros, normal or uniform"
        )
    fan_in, fan_out = _product(shape, in_axis), _product(shape, out_axis)
    window = math.prod(shape) / max(fan_in * fan_out * _product(shape, batch_axis), 1)
    return fan_in * window, fan_out * window


def _in_disk(key: Any, shape: Any, dtype: np.dtype, radius: float | None) -> Any:
    """Complex numbers drawn uniformly from the unit disk, or normally and truncated at ``radius``."""
    for_size, for_angle = split(key)
    real = dtypes.real_of(dtype)
    share = draw_uniform(for_size, shape, real)
    if radius is not None:  # the inverse of the distribution of squared magnitudes
        within = -math.expm1(-(radius**2))
        share = ops.neg(ops.log(ops.sub(scalar_like(1, share), _times(share, within))))
    angle = _times(draw_uniform(for_angle, shape, real), 2 * math.pi)
    size = ops.sqrt(share)
    return ops.complex_(ops.mul(size, ops.cos(angle)), ops.mul(size, ops.sin(angle)))


def variance_scaling(
    scale: Any, mode: str, distribution: str, in_axis: _DIMS = -2, out_axis: _DIMS = -1, batch_axis: _DIMS = (),
    dtype: Any = None,
) -> Initializer:  # fmt: skip
    """Random values with variance ``scale / n``, where ``n`` is "fan_in", "fan_out", "fan_avg" or "fan_geo_avg".

    Args:
      distribution: "normal", "truncated_normal" or "uniform".

    Raises:
      ArgumentError: an unknown mode or distribution.
    """
    means = {
        "fan_in": lambda i, o: i,
        "fan_out": lambda i, o: o,
        "fan_avg": lambda i, o: (i + o) / 2,
        "fan_geo_avg": lambda i, o: math.sqrt(i * o),
    }
    if mode not in means or distribution not in ("normal", "truncated_normal", "uniform"):
        raise ArgumentError(
            f"variance_scaling: mode must be one of {', '.join(means)} and distribution normal, truncated_normal or "
            f"uniform; got {mode!r} and {distribution!r}"
        )

    def init(key: Any, shape: Any, chosen: Any) -> Any:
        variance = scale / max(means[mode](*fans(shape, in_axis, out_axis, batch_axis)), 1)
        target = _dtype(dtype, chosen)
        if dtypes.is_complex(target) and distribution != "normal":
            # The variance of the unit disk is 1/2; that of normal numbers within two standard deviations is 0.9531.
            radius, size = (
                (2.0, 1 / 0.95311164380491208) if distribution == "truncated_normal" else (None, math.sqrt(2))
            )
            return _times(_in_disk(key, shape, target, radius), _root(variance) * size)
        if distribution == "normal":
            return _times(draw_normal(key, shape, target), _root(variance))
        if distribution == "uniform":
            limit = _root(3 * variance)
            return draw_uniform(key, shape, target, -limit, limit)
        # Truncation at two standard deviations leaves a standard deviation of 0.8796.
        return _times(draw_truncated(key, -2.0, 2.0, shape, target), _root(variance) / 0.87962566103423978)

    return _initializer(init)


def _scaled(name: str, scale: float, mode: str, distribution: str, source: str) -> Callable[..., Initializer]:
    def make(in_axis: _DIMS = -2, out_axis: _DIMS = -1, batch_axis: _DIMS = (), dtype: Any = None) -> Initializer:
        return variance_scaling(scale, mode, distribution, in_axis, out_axis, batch_axis, dtype)

    make.__name__ = make.__qualname__ = name
    kind = distribution.replace("truncated_", "truncated ")
    make.__doc__ = f"{source}: {kind} with variance {scale} / {mode}."
    return make


_GLOROT, _HE, _LECUN = "Glorot and Bengio 2010", "He et al. 2015", "LeCun et al. 1998"
glorot_uniform = xavier_uniform = _scaled("glorot_uniform", 1.0, "fan_avg", "uniform", _GLOROT)
glorot_normal = xavier_normal = _scaled("glorot_normal", 1.0, "fan_avg", "truncated_normal", _GLOROT)
he_uniform = kaiming_uniform = _scaled("he_uniform", 2.0, "fan_in", "uniform", _HE)
he_normal = kaiming_normal = _scaled("he_normal", 2.0, "fan_in", "truncated_normal", _HE)
lecun_uniform = _scaled("lecun_uniform", 1.0, "fan_in", "uniform", _LECUN)
lecun_normal = _scaled("lecun_normal", 1.0, "fan_in", "truncated_normal", _LECUN)
