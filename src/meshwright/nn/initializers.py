"""Initialisers: ``init(key, shape, dtype) -> array``; scales by fan as in ``jax.nn.initializers``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.errors import ArgumentError, ShapeError
from meshwright.numpy import creation
from meshwright.numpy.manipulation import moveaxis, reshape
from meshwright.numpy.promotion import scalar_like
from meshwright.ops import elementwise as ops
from meshwright.random import normal as draw_normal
from meshwright.random import orthogonal as draw_orthogonal
from meshwright.random import truncated_normal as draw_truncated
from meshwright.random import uniform as draw_uniform

Initializer = Callable[..., Any]
_DIMS = int | Sequence[int]


def zeros(key: Any, shape: Any, dtype: Any = None) -> Any:
    """Zeros.

    >>> zeros(None, (2,)).tolist()
    [0.0, 0.0]
    """
    return creation.zeros(shape, dtype)


def ones(key: Any, shape: Any, dtype: Any = None) -> Any:
    """Ones.

    >>> ones(None, (2,)).tolist()
    [1.0, 1.0]
    """
    return creation.ones(shape, dtype)


def _dtype(own: Any, given: Any) -> np.dtype:
    """The dtype asked for when drawing, else that of the initialiser, else the default."""
    chosen = given if given is not None else own
    return dtypes.default_float() if chosen is None else dtypes.requested(chosen, "initializer")


def _times(x: Any, factor: Any) -> Any:
    return ops.mul(x, scalar_like(factor, x))


def constant(value: Any, dtype: Any = None) -> Initializer:
    """Filled with ``value``.

    >>> constant(7.0)(None, (2,)).tolist()
    [7.0, 7.0]
    """
    return lambda key, shape, dtype_=None: creation.full(shape, value, _dtype(dtype, dtype_))


def uniform(scale: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Uniform in ``[0, scale)``."""
    return lambda key, shape, dtype_=None: _times(draw_uniform(key, shape, _dtype(dtype, dtype_)), scale)


def normal(stddev: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Normal with mean 0 and this standard deviation."""
    return lambda key, shape, dtype_=None: _times(draw_normal(key, shape, _dtype(dtype, dtype_)), stddev)


def truncated_normal(stddev: Any = 1e-2, dtype: Any = None, lower: float = -2.0, upper: float = 2.0) -> Initializer:
    """``stddev`` times a normal cut off at ``lower`` and ``upper``."""
    return lambda key, shape, dtype_=None: _times(
        draw_truncated(key, lower, upper, shape, _dtype(dtype, dtype_)), stddev
    )


def orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """``scale`` times a random matrix with orthonormal columns or rows, whichever are fewer (Saxe et al. 2014).

    Args:
      column_axis: the axis that has the columns; all others together are the rows.

    Raises:
      ShapeError: when drawing, fewer than two dimensions.

    >>> orthogonal(2.0)(PRNGKey(0), (3, 5)).shape
    (3, 5)
    """

    def init(key: Any, shape: Sequence[int], dtype_: Any = None) -> Any:
        if len(shape) < 2:
            raise ShapeError(f"orthogonal: expected a shape of at least two dimensions, got {tuple(shape)}")
        rest = list(shape)
        columns = rest.pop(column_axis)
        drawn = draw_orthogonal(key, columns, dtype=_dtype(dtype, dtype_), m=math.prod(rest))
        return _times(moveaxis(reshape(drawn, (columns, *rest)), 0, column_axis), scale)

    return init


def _product(shape: Sequence[int], dims: _DIMS) -> int:
    return math.prod(shape[d] for d in ((dims,) if isinstance(dims, int) else dims))


def fans(shape: Sequence[int], in_axis: _DIMS, out_axis: _DIMS, batch_axis: _DIMS = ()) -> tuple[float, float]:
    """(fan in, fan out) of a kernel: inputs to, and outputs of, one unit.

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


def variance_scaling(
    scale: Any, mode: str, distribution: str, in_axis: _DIMS = -2, out_axis: _DIMS = -1, batch_axis: _DIMS = (),
    dtype: Any = None,
) -> Initializer:  # fmt: skip
    """Variance ``scale / n`` where ``n`` is "fan_in", "fan_out", "fan_avg" or "fan_geo_avg".

    Args:
      distribution: "normal", "truncated_normal" or "uniform".

    Raises:
      ArgumentError: another mode or distribution.
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

    def init(key: Any, shape: Any, dtype_: Any = None) -> Any:
        variance = scale / max(means[mode](*fans(shape, in_axis, out_axis, batch_axis)), 1)
        target = _dtype(dtype, dtype_)
        if distribution == "normal":
            return _times(draw_normal(key, shape, target), math.sqrt(variance))
        if distribution == "uniform":
            limit = math.sqrt(3 * variance)
            return draw_uniform(key, shape, target, -limit, limit)
        # Cutting off at two standard deviations leaves 0.8796 of one.
        return _times(draw_truncated(key, -2.0, 2.0, shape, target), math.sqrt(variance) / 0.87962566103423978)

    return init


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
