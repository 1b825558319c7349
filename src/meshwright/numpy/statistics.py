"""Order statistics, covariances, and comparisons of whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.api.placement import laid_out
from meshwright.core import dtypes
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.arithmetic import clip, divide, maximum, minimum, multiply, subtract
from meshwright.numpy.axes import no_out, normal_axes
from meshwright.numpy.compiled import compiled
from meshwright.numpy.creation import asarray, zeros
from meshwright.numpy.functions import conj
from meshwright.numpy.indexing import take_along_axis
from meshwright.numpy.joining import concatenate
from meshwright.numpy.linear import matmul
from meshwright.numpy.logic import equal, isclose, isnan, logical_or, where
from meshwright.numpy.manipulation import broadcast_to, moveaxis, reshape, shape, transpose
from meshwright.numpy.promotion import as_operand, operands, promotes_freely, scalar_like
from meshwright.numpy.ranges import diagonal
from meshwright.numpy.reductions import all, any, average, mean, sum
from meshwright.numpy.sorting import cumsum, sort
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import convert, select
from meshwright.ops.shape.broadcast_reduce import match_shape, reduce_sum
from meshwright.ops.sort import sorting as sort_ops

_METHODS = ("linear", "lower", "higher", "nearest", "midpoint", "inverted_cdf")


def _quantile(
    name: str, a: Any, q: Any, axis: Any, out: Any, overwrite_input: bool, method: str, keepdims: bool, weights: Any,
    skip_nan: bool = False,
) -> Any:  # fmt: skip
    no_out(out, name)
    if overwrite_input:
        raise ArgumentError(f"{name}: overwrite_input=True is not possible, arrays are immutable; leave it out")
    if method not in _METHODS:
        raise ArgumentError(f"{name}: method must be one of {', '.join(_METHODS)}, got {method!r}")
    if weights is not None and method != "inverted_cdf":
        raise ArgumentError(f"{name}: weights need method='inverted_cdf', got {method!r}")
    (x,) = operands(name, (a,), to_inexact=True)
    if dtypes.is_complex(typeof(x).dtype):
        raise DTypeError(f"{name}: complex numbers are not ordered; take quantiles of their parts or absolute values")
    own = typeof(x)
    if dtypes.bit_width(own.dtype) < 32:  # cannot represent positions
        x = convert(x, dtypes.float32)
    (q,) = operands(name, (q,), to_inexact=True)
    q = maximum(minimum(convert(asarray(q), typeof(x).dtype), 1), 0)  # clamped, as in JAX
    if weights is not None:
        weights = convert(broadcast_to(weights, typeof(x).shape), typeof(x).dtype)
    axes = normal_axes(axis, typeof(x).ndim, name)
    out = _order_statistic(x, q, weights, axes, keepdims, method, skip_nan)
    return out if typeof(x).dtype == own.dtype else convert(out, own.dtype, own.weak_type)


@compiled(static_argnums=(3, 4, 5, 6))
def _order_statistic(
    x: Any, q: Any, weights: Any, axes: tuple[int, ...], keepdims: bool, method: str, skip_nan: bool
) -> Any:
    sizes = typeof(x).shape
    kept = [d for d in range(len(sizes)) if d not in axes]
    flat = (*(sizes[d] for d in kept), int(np.prod([sizes[d] for d in axes])))
    x, weights = (None if v is None else reshape(transpose(asarray(v), (*kept, *axes)), flat) for v in (x, weights))
    lead = typeof(q).shape
    if flat[-1] == 0:
        out = broadcast_to(np.asarray(np.nan, typeof(x).dtype), (*lead, *flat[:-1]))
    elif method == "inverted_cdf":
        out = _by_weight(x, weights, q, skip_nan)
    else:
        out = _by_position(sort(x, -1), q, method, skip_nan)
    missing = (all if skip_nan else any)(isnan(x), -1)
    out = where(missing, np.asarray(np.nan, typeof(x).dtype), out)
    if keepdims:
        out = reshape(out, (*lead, *(1 if d in axes else s for d, s in enumerate(sizes))))
    return out


def _by_weight(x: Any, weights: Any, q: Any, skip_nan: bool) -> Any:
    """The first elements at which the cumulative weight reaches the fraction ``q``."""
    weights = match_shape(scalar_like(1, x), typeof(x)) if weights is None else weights
    if skip_nan:
        weights = select(ops.ne(x, x), scalar_like(0, weights), weights)
    x, weights = sort_ops.sort((x, weights), typeof(x).ndim - 1, True, 1)
    lead, shape = typeof(q).shape, typeof(x).shape
    below = cumsum(weights, -1)
    target = multiply(reshape(q, (*lead, *[1] * len(shape))), below[..., -1:])
    missed = sum(logical_or(ops.lt(*operands("quantile", (below, target))), ops.eq(below, scalar_like(0, below))), -1)
    index = ops.min_(missed, np.asarray(shape[-1] - 1, typeof(missed).dtype))
    return _pick(x, convert(broadcast_to(index, (*lead, *shape[:-1])), dtypes.int32), len(lead))


def _by_position(x: Any, q: Any, method: str, skip_nan: bool) -> Any:
    """Elements of the sorted last dimension at the fraction ``q`` of the way from the first to the last."""
    n = typeof(x).shape[-1]
    lead, kept = typeof(q).shape, typeof(x).shape[:-1]
    # Positions: one row of q for each remaining element; without NaN the count is the same for all.
    column = reshape(q, (*lead, *[1] * len(kept)))
    if skip_nan:
        count = reduce_sum(convert(ops.eq(x, x), typeof(x).dtype), (len(kept),))
        last = ops.max_(ops.sub(count, scalar_like(1, count)), scalar_like(0, count))
        last = reshape(last, (*[1] * len(lead), *kept))
    else:
        last = np.asarray(n - 1, typeof(x).dtype)
    spot = broadcast_to(multiply(column, last), (*lead, *kept))
    return _interpolated(x, spot, len(lead), method)


def _interpolated(x: Any, spot: Any, lead: int, method: str) -> Any:
    """Elements of the sorted last dimension at fractional positions ``spot`` (leading dimensions, then those of x)."""
    low = ops.floor(spot)
    weight = ops.sub(spot, low)
    n = typeof(x).shape[-1]
    index = convert(low, dtypes.int32)
    above = ops.min_(ops.add(index, np.int32(1)), np.int32(n - 1))
    first, second = (_pick(x, i, lead) for i in (index, above))
    if method == "lower":
        return first
    if method == "higher":
        return where(ops.gt(weight, scalar_like(0, weight)), second, first)
    if method == "nearest":  # halves are rounded to even, as in NumPy
        nearest = convert(ops.round_half_even(spot), dtypes.int32)
        return _pick(x, nearest, lead)
    if method == "midpoint":  # halves of each: the sum of both may be too large
        weight = where(ops.gt(weight, scalar_like(0, weight)), scalar_like(0.5, weight), weight)
    mixed = ops.add(multiply(first, ops.sub(scalar_like(1, weight), weight)), multiply(second, weight))
    return select(ops.eq(weight, scalar_like(0, weight)), first, mixed)


def _pick(x: Any, index: Any, lead: int) -> Any:
    """``x[..., index]``, where leading dimensions of ``index`` are additional queries."""
    sizes = typeof(index).shape
    queries = int(np.prod(sizes[:lead], dtype=int))
    flat = reshape(index, (queries, *sizes[lead:]))
    rows = moveaxis(flat, 0, -1)
    return reshape(moveaxis(take_along_axis(x, rows, -1, mode="clip"), -1, 0), sizes)


def quantile(
    a: Any, q: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: bool = False, *, weights: Any = None,
) -> Any:  # fmt: skip
    """The ``q``-quantiles, with ``q`` in [0, 1], of the elements over ``axis``.

    Args:
      q: number or vector; a vector adds a first dimension.
      method: "linear", "lower", "higher", "nearest" or "midpoint" between neighbours, or "inverted_cdf": the first
        element at which the cumulative fraction reaches ``q``.
      weights: of the elements, for "inverted_cdf"; broadcasts with ``a``.

    Raises:
      ArgumentError: an unknown method, or weights with another method. DTypeError: complex elements.

    >>> quantile(np.array([1.0, 2.0, 4.0]), 0.5).item()
    2.0
    """
    return _quantile("quantile", a, q, axis, out, overwrite_input, method, keepdims, weights)


def nanquantile(
    a: Any, q: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: bool = False, *, weights: Any = None,
) -> Any:  # fmt: skip
    """:func:`quantile` of the elements that are not NaN.

    >>> nanquantile(np.array([1.0, 2.0, 4.0, np.nan]), 0.5).item()
    2.0
    """
    return _quantile("nanquantile", a, q, axis, out, overwrite_input, method, keepdims, weights, skip_nan=True)


@promotes_freely()
def percentile(
    a: Any, q: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: bool = False, *, weights: Any = None,
    out_sharding: Any = None,
) -> Any:  # fmt: skip
    """:func:`quantile` with ``q`` in percent.

    >>> percentile(np.array([1.0, 2.0, 4.0]), 50).item()
    2.0
    """
    quantiles = quantile(a, divide(q, 100), axis, out, overwrite_input, method, keepdims, weights=weights)
    return laid_out(quantiles, out_sharding)


@promotes_freely()
def nanpercentile(
    a: Any, q: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: bool = False, *, weights: Any = None,
) -> Any:  # fmt: skip
    """:func:`percentile` of the elements that are not NaN.

    >>> nanpercentile(np.array([1.0, 2.0, 4.0, np.nan]), 50).item()
    2.0
    """
    return nanquantile(a, divide(q, 100), axis, out, overwrite_input, method, keepdims, weights=weights)


def median(a: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """The middle element over ``axis``, or the mean of the two middle ones.

    >>> median(np.array([1, 4, 2, 3])).item()
    2.5
    """
    return quantile(a, 0.5, axis, out, overwrite_input, "midpoint", keepdims)


def nanmedian(a: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """:func:`median` of the elements that are not NaN.

    >>> nanmedian(np.array([1, np.nan, 3])).item()
    2.0
    """
    return nanquantile(a, 0.5, axis, out, overwrite_input, "midpoint", keepdims)


# --- covariance ---------------------------------------------------------------------------------------------
@promotes_freely("m", "y")
def cov(
    m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None, fweights: Any = None,
    aweights: Any = None, dtype: Any = None,
) -> Any:  # fmt: skip
    """Covariance matrix of variables (rows, or columns with ``rowvar=False``).

    Args:
      m, y: observations of variables, or of one variable as a vector; ``y`` adds further variables.
      bias: divide by the number of observations instead of by one less; ``ddof`` sets the difference.
      fweights: integer repeat counts of the observations.
      aweights: weights of the observations.
      dtype: float or complex, of the result.

    Raises:
      ShapeError: an array with more than two dimensions, or weights that are not one vector with an entry per
        observation.
      DTypeError: ``fweights`` are not integers.

    >>> cov(np.array([[0.0, 2.0], [0.0, 4.0]])).tolist()
    [[2.0, 4.0], [4.0, 8.0]]
    """

    if dtype is not None and not dtypes.is_inexact(dtypes.as_dtype(dtype)):
        raise DTypeError(f"cov: dtype must be a float or complex type, got {dtype}")

    def rows(v: Any) -> Any:
        (v,) = operands("cov", (asarray(v, dtype),), to_inexact=True)
        if typeof(v).ndim > 2:
            raise ShapeError(f"cov: observations are a matrix or a vector, got shape {typeof(v).shape}")
        if typeof(v).ndim < 2:
            return reshape(v, (1, -1))
        return v if rowvar else transpose(v)

    x = rows(m) if y is None else concatenate([rows(m), rows(y)])
    variables, n = typeof(x).shape
    if variables == 0:  # NumPy returns an untyped []
        return zeros((0, 0))
    less = (0 if bias else 1) if ddof is None else ddof
    if fweights is None and aweights is None:
        x = subtract(x, mean(x, 1, keepdims=True))
        count = np.asarray(n - less if n else np.nan, dtypes.real_of(typeof(x).dtype))
        out = divide(matmul(x, transpose(conj(x))), count)
    else:
        weights = _observation_weights(fweights, aweights, n)
        x = subtract(x, average(x, 1, weights, keepdims=True))
        total = sum(weights)
        if aweights is not None and less:
            less = divide(multiply(less, sum(multiply(weights, aweights))), total)
        out = divide(matmul(multiply(x, weights), transpose(conj(x))), subtract(total, less))
        out = convert(out, typeof(x).dtype)
    return reshape(out, ()) if typeof(out).shape == (1, 1) else out


def _observation_weights(fweights: Any, aweights: Any, n: int) -> Any:
    """The weight of each of ``n`` observations."""
    for name, weights in (("fweights", fweights), ("aweights", aweights)):
        if weights is not None and shape(weights) != (n,):
            raise ShapeError(f"cov: {name} must be a vector of the {n} observations, got shape {shape(weights)}")
    if fweights is not None and not dtypes.is_integer(typeof(asarray(fweights)).dtype):
        raise DTypeError("cov: fweights must be integers, they say how often an observation comes; or use aweights")
    given = [asarray(w) for w in (fweights, aweights) if w is not None]
    return given[0] if len(given) == 1 else multiply(*given)


@promotes_freely("x", "y")
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, dtype: Any = None) -> Any:
    """Correlation coefficients of variables: :func:`cov`, scaled to 1 on the diagonal.

    >>> corrcoef(np.array([[0.0, 2.0], [0.0, 4.0]])).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    c = cov(x, y, rowvar, dtype=dtype)
    if typeof(c).ndim == 0:
        return divide(c, c)
    deviation = ops.sqrt(ops.real(diagonal(c)) if dtypes.is_complex(typeof(c).dtype) else diagonal(c))
    scaled = divide(divide(c, reshape(deviation, (-1, 1))), reshape(deviation, (1, -1)))
    return scaled if dtypes.is_complex(typeof(c).dtype) else clip(scaled, -1.0, 1.0)


# --- whole arrays -------------------------------------------------------------------------------------------
def allclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    """Whether all elements are close, by :func:`isclose`.

    >>> allclose(1.0, 1.0 + 1e-6).item()
    True
    """
    return all(isclose(a, b, rtol, atol, equal_nan))


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """Whether shapes and all elements are equal.

    >>> array_equal(np.array([1, 2]), np.array([1, 2])).item()
    True
    """
    if shape(a1) != shape(a2):
        return asarray(False)
    x, y = operands("array_equal", (as_operand(asarray(a1), ""), as_operand(asarray(a2), "")))
    same = equal(x, y)
    return all(ops.or_(same, ops.and_(isnan(x), isnan(y))) if equal_nan else same)


@promotes_freely()
def array_equiv(a1: Any, a2: Any) -> Any:
    """Whether the arrays are equal after broadcasting.

    >>> array_equiv(np.array([1, 1]), 1).item()
    True
    """
    try:
        np.broadcast_shapes(shape(a1), shape(a2))
    except ValueError:
        return asarray(False)
    return all(equal(*operands("array_equiv", (asarray(a1), asarray(a2)))))
