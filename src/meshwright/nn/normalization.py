"""Softmax and normalizations over axes, with as few ops as numerical stability allows."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from meshwright.core import dtypes
from meshwright.errors import ArgumentError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.arithmetic import add, maximum, multiply, rsqrt, square, subtract
from meshwright.numpy.axes import normal_axes, split_names
from meshwright.numpy.functions import log
from meshwright.numpy.logic import logical_or, not_equal
from meshwright.numpy.logic import where as choose
from meshwright.numpy.manipulation import broadcast_to
from meshwright.numpy.promotion import aval_of, operands, promotes_freely, scalar_like
from meshwright.numpy.reductions import keep_dims, mean, spread_over, var
from meshwright.numpy.reductions import sum as sum_of
from meshwright.ops.collective.named_axis import pmax, psum
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import convert, stop_gradient
from meshwright.ops.reduce.reductions import reduce_max
from meshwright.ops.shape.broadcast_reduce import reduce_sum
from meshwright.ops.shape.rearrange import reshape

Axis = Any


def _inexact(x: Any, name: str) -> Any:
    """``x`` as floats or complex numbers, not weakly typed, like the results of JAX's functions over axes."""
    (x,) = operands(name, (x,), to_inexact=True)
    return convert(x, typeof(x).dtype)


def _masked(x: Any, where: Any) -> Any:
    return x if where is None else choose(where, x, -np.inf)


def _real(x: Any) -> Any:
    return ops.real(x) if dtypes.is_complex(typeof(x).dtype) else x


def _shifted(x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """``x`` minus its maximum, and that (finite) maximum, reduced. The shift cancels, so it needs no derivative."""
    top = stop_gradient(reduce_max(x, axes))
    return ops.sub(x, spread_over(top, typeof(x).shape, axes)), top


def softmax(x: Any, axis: Axis = -1, where: Any = None) -> Any:
    """``exp(x) / sum(exp(x))`` over ``axis``.

    Args:
      x: array of any shape.
      where: elements to include; others become 0.

    >>> softmax(np.zeros(4, "float32")).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    x = _inexact(_masked(x, where), "softmax")
    axes = normal_axes(axis, typeof(x).ndim, "softmax")
    shifted, _ = _shifted(x, axes)
    weights = ops.exp(shifted)
    out = ops.div(weights, spread_over(reduce_sum(weights, axes), typeof(x).shape, axes))
    return out if where is None else choose(where, out, scalar_like(0, out))


def log_softmax(x: Any, axis: Axis = -1, where: Any = None) -> Any:
    """``log(softmax(x))`` over ``axis``, without overflow.

    Args:
      x: array of any shape.
      where: elements to include; others become -inf.

    >>> log_softmax(np.array([0.0])).tolist()
    [0.0]
    """
    x = _inexact(_masked(x, where), "log_softmax")
    axes = normal_axes(axis, typeof(x).ndim, "log_softmax")
    shifted, _ = _shifted(x, axes)
    total = ops.log(reduce_sum(ops.exp(shifted), axes))
    out = ops.sub(shifted, spread_over(total, typeof(x).shape, axes))
    return _masked(out, where)


@promotes_freely("a", "b")
def logsumexp(
    a: Any, axis: Axis = None, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None
) -> Any:
    """``log(sum(b * exp(a)))`` over ``axis``, without overflow; the weights ``b`` default to 1.

    Args:
      return_sign: return ``(log of the magnitude of the sum, its sign)``.
      where: elements to include.

    >>> logsumexp(np.array([1000.0])).item()
    1000.0
    """
    if (split := split_names(axis)) is not None:
        return _over_names(logsumexp(a, split[0], b, keepdims, return_sign, where), split[1])
    if b is not None:  # its dtype is promoted with that of ``a``
        a, b = operands("logsumexp", (a, b), to_inexact=True)
    elif where is not None and aval_of(a, "logsumexp").dtype == bool:  # with what is left out, -inf, a default float
        a, _ = operands("logsumexp", (a, -np.inf))
    a = _masked(_inexact(a, "logsumexp"), where)
    counted = a if b is None else _masked(a, not_equal(b, 0))
    a = broadcast_to(a, typeof(counted).shape)
    axes = normal_axes(axis, typeof(a).ndim, "logsumexp")
    shape = typeof(a).shape
    top = reduce_max(_real(counted), axes)
    # An infinite maximum would give inf - inf: shift by 0 there.
    top = stop_gradient(ops.select(ops.is_finite(top), top, scalar_like(0, top)))
    shifted = subtract(a, spread_over(top, shape, axes))
    if b is not None:  # avoid a weight of 0 times infinity, which would be NaN
        finite = ops.le(_real(shifted), scalar_like(np.log(float(ml_dtypes.finfo(typeof(top).dtype).max)) - 1, top))
        shifted = _masked(shifted, logical_or(finite, not_equal(b, 0)))
    weights = ops.exp(shifted)
    total = reduce_sum(weights if b is None else multiply(weights, b), axes)
    if not return_sign:
        return keep_dims(add(ops.log(total), top), shape, axes, keepdims)
    parts = ops.add(ops.log(ops.abs_(total)), top), ops.sign(total)
    return tuple(keep_dims(p, shape, axes, keepdims) for p in parts)


def _over_names(x: Any, names: tuple[str, ...]) -> Any:
    """``log(psum(exp(x)))`` over named axes; for a pair of magnitude and sign, a pair."""
    size, sign = x if isinstance(x, tuple) else (x, None)
    top = stop_gradient(pmax(_real(size), names))
    top = ops.select(ops.is_finite(top), top, scalar_like(0, top))
    weights = ops.exp(subtract(size, top))
    total = psum(weights if sign is None else multiply(weights, sign), names)
    if sign is None:
        return add(ops.log(total), top)
    return add(ops.log(ops.abs_(total)), top), ops.sign(total)


@promotes_freely()
def logmeanexp(x: Any, axis: Axis = None, where: Any = None, keepdims: bool = False) -> Any:
    """``log(mean(exp(x)))`` over ``axis``, without overflow.

    >>> logmeanexp(np.array([1000.0, 1000.0])).item()
    1000.0
    """
    shape = aval_of(x, "logmeanexp").shape
    axes = normal_axes(axis, len(shape), "logmeanexp")
    if where is None:
        count: Any = float(math.prod(shape[d] for d in axes))
    else:
        count = sum_of(choose(where, broadcast_to(np.float32(1), shape), 0), axes, keepdims=keepdims)
    total = logsumexp(x, axis, keepdims=keepdims, where=where)
    return subtract(total, log(convert(count, typeof(total).dtype)))


def standardize(
    x: Any, axis: Axis = -1, mean: Any = None, variance: Any = None, epsilon: Any = 1e-5, where: Any = None, *,
    algorithm: str = "fast",
) -> Any:  # fmt: skip
    """``(x - mean) / sqrt(variance + epsilon)`` over ``axis``, by default with the mean and variance of ``x``.

    Of a ``mean`` alone, the variance is ``mean(x**2) - mean**2`` if the ``algorithm`` is "fast", and
    ``mean((x - mean)**2)`` if it is "stable". Otherwise both are the exact algorithm.

    Raises:
      ArgumentError: an unknown algorithm.

    >>> standardize(np.array([1.0, 3.0]), epsilon=0.0).tolist()
    [-1.0, 1.0]
    """
    if algorithm not in ("fast", "stable"):
        raise ArgumentError(f"standardize: algorithm must be 'fast' or 'stable', got {algorithm!r}")
    x = _inexact(x, "standardize")
    axes = normal_axes(axis, typeof(x).ndim, "standardize")
    if mean is None and variance is None and where is None:
        return _normalized(x, axes, epsilon)
    center = _mean(x, axes, where) if mean is None else mean
    spread = _spread(x, axes, mean, where, algorithm) if variance is None else variance
    scale = rsqrt(add(spread, epsilon))
    return multiply(subtract(x, center), scale)


def _spread(x: Any, axes: tuple[int, ...], center: Any, where: Any, algorithm: str) -> Any:
    """The variance over ``axes``: about ``center``, unless that is None."""
    if center is None:
        return var(x, axes, keepdims=True, where=where)
    if algorithm == "stable":
        return _mean(square(subtract(x, center)), axes, where)
    return maximum(subtract(_mean(square(x), axes, where), square(center)), 0)


def _mean(x: Any, axes: tuple[int, ...], where: Any) -> Any:
    return mean(x, axes, keepdims=True, where=where)


def _average(x: Any, axes: tuple[int, ...]) -> Any:
    """The mean over ``axes``, reduced."""
    count = math.prod(typeof(x).shape[d] for d in axes)
    return ops.mul(reduce_sum(x, axes), scalar_like(1 / max(count, 1), x))


def _scale(variance: Any, epsilon: Any, shape: tuple[int, ...], axes: tuple[int, ...]) -> Any:
    return spread_over(ops.rsqrt(ops.add(variance, scalar_like(epsilon, variance))), shape, axes)


def _normalized(x: Any, axes: tuple[int, ...], epsilon: Any) -> Any:
    """``x`` with mean 0 and variance 1 over ``axes``; half precision is computed in float32."""
    dtype = typeof(x).dtype
    half = dtypes.bit_width(dtype) < 32
    x = convert(x, dtypes.float32) if half else x
    shape = typeof(x).shape
    centered = ops.sub(x, spread_over(_average(x, axes), shape, axes))
    out = ops.mul(centered, _scale(_average(ops.square(centered), axes), epsilon, shape, axes))
    return convert(out, dtype) if half else out


def _affine(x: Any, scale: Any, bias: Any) -> Any:
    x = x if scale is None else multiply(x, scale)
    return x if bias is None else add(x, bias)


def layer_norm(x: Any, scale: Any = None, bias: Any = None, axis: Axis = -1, epsilon: float = 1e-5) -> Any:
    """Layer normalization (Ba et al. 2016): mean 0 and variance 1 over ``axis``, then ``* scale + bias``.

    Args:
      x: shape (..., features).
      scale, bias: shape (features,), or any that broadcasts with ``x``; None omits them.

    >>> layer_norm(np.array([1.0, 3.0]), epsilon=0.0).tolist()
    [-1.0, 1.0]
    """
    (x,) = operands("layer_norm", (x,), to_inexact=True)
    return _affine(_normalized(x, normal_axes(axis, typeof(x).ndim, "layer_norm"), epsilon), scale, bias)


def rms_norm(x: Any, scale: Any = None, axis: Axis = -1, epsilon: float = 1e-6) -> Any:
    """Root-mean-square normalization (Zhang and Sennrich 2019): ``x / sqrt(mean(x**2) + epsilon) * scale``.

    >>> rms_norm(np.array([3.0, 3.0]), epsilon=0.0).tolist()
    [1.0, 1.0]
    """
    (x,) = operands("rms_norm", (x,), to_inexact=True)
    axes = normal_axes(axis, typeof(x).ndim, "rms_norm")
    dtype = typeof(x).dtype
    half = dtypes.bit_width(dtype) < 32
    wide = convert(x, dtypes.float32) if half else x
    out = ops.mul(wide, _scale(_average(ops.square(wide), axes), epsilon, typeof(x).shape, axes))
    return _affine(convert(out, dtype) if half else out, scale, None)


def group_norm(x: Any, groups: int, scale: Any = None, bias: Any = None, epsilon: float = 1e-5) -> Any:
    """Group normalization (Wu and He 2018): over all but the batch dimension, for each group of features.

    Args:
      x: shape (batch, ..., features).
      groups: must divide the number of features.

    Raises:
      ShapeError: ``groups`` does not divide it.

    >>> group_norm(np.ones((2, 3, 4)), 2).shape
    (2, 3, 4)
    """
    (x,) = operands("group_norm", (x,), to_inexact=True)
    shape = typeof(x).shape
    if len(shape) < 2 or shape[-1] % groups:
        raise ShapeError(
            f"group_norm: features (last dimension) of shape {shape} must be a multiple of groups={groups}"
        )
    split = reshape(x, (*shape[:-1], groups, shape[-1] // groups))
    axes = (*range(1, len(shape) - 1), len(shape))
    return _affine(reshape(_normalized(split, axes, epsilon), shape), scale, bias)


def instance_norm(x: Any, scale: Any = None, bias: Any = None, epsilon: float = 1e-5) -> Any:
    """Instance normalization (Ulyanov et al. 2016): over all but the batch dimension, for each feature.

    Args:
      x: shape (batch, ..., features).

    Raises:
      ShapeError: there are no dimensions between batch and features.

    >>> instance_norm(np.ones((2, 3, 4))).shape
    (2, 3, 4)
    """
    ndim = aval_of(x, "instance_norm").ndim
    if ndim < 3:
        raise ShapeError(
            f"instance_norm: x must have shape (batch, spatial..., features), got {aval_of(x, 'instance_norm').shape}; "
            "to normalise over features use layer_norm"
        )
    (x,) = operands("instance_norm", (x,), to_inexact=True)
    return _affine(_normalized(x, tuple(range(1, ndim - 1)), epsilon), scale, bias)


def batch_norm_stats(x: Any, axis: Axis = None) -> tuple[Any, Any]:
    """Mean and variance of a batch over all but the last dimension, or over ``axis``.

    >>> [s.shape for s in batch_norm_stats(np.ones((2, 3, 4)))]
    [(4,), (4,)]
    """
    ndim = aval_of(x, "batch_norm_stats").ndim
    axes = tuple(range(ndim - 1)) if axis is None else axis
    return mean(x, axes), var(x, axes)


@promotes_freely("x", "mean", "variance", "scale", "bias", ranks=False)
def batch_norm(x: Any, mean: Any, variance: Any, scale: Any = None, bias: Any = None, epsilon: float = 1e-5) -> Any:
    """Batch normalization (Ioffe and Szegedy 2015) with given statistics (see :func:`batch_norm_stats`).

    Args:
      x: shape (..., features); the others have shape (features,).

    >>> batch_norm(np.ones((2, 4)), np.ones(4), np.ones(4)).tolist()[0]
    [0.0, 0.0, 0.0, 0.0]
    """
    factor = rsqrt(add(variance, epsilon))
    factor = factor if scale is None else multiply(factor, scale)
    return _affine(multiply(subtract(x, mean), factor), None, bias)
