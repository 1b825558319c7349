"""Order statistics, covariances, and comparisons of whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.errors import ArgumentError
from meshwright.ir.tracing import typeof
from meshwright.numpy.arithmetic import clip, divide, multiply, subtract
from meshwright.numpy.axes import normal_axes
from meshwright.numpy.compiled import compiled
from meshwright.numpy.creation import asarray
from meshwright.numpy.functions import conj
from meshwright.numpy.indexing import take_along_axis
from meshwright.numpy.joining import concatenate
from meshwright.numpy.linear import matmul
from meshwright.numpy.logic import isclose, isnan, where
from meshwright.numpy.manipulation import broadcast_to, moveaxis, reshape, shape, transpose
from meshwright.numpy.promotion import as_operand, operands, scalar_like
from meshwright.numpy.ranges import diagonal
from meshwright.numpy.reductions import all, any, mean
from meshwright.numpy.sorting import sort
from meshwright.ops import elementwise as ops
from meshwright.ops.broadcast_reduce import reduce_sum
from meshwright.ops.elementwise import convert, select

_METHODS = ("linear", "lower", "higher", "nearest", "midpoint")


def _quantile(name: str, a: Any, q: Any, axis: Any, keepdims: bool, method: str, skip_nan: bool) -> Any:
    if method not in _METHODS:
        raise ArgumentError(f"{name}: method must be one of {', '.join(_METHODS)}, got {method!r}")
    (x,) = operands(name, (a,), to_inexact=True)
    (q,) = operands(name, (q,), to_inexact=True)
    q = convert(asarray(q), typeof(x).dtype)
    return _order_statistic(x, q, normal_axes(axis, typeof(x).ndim, name), keepdims, method, skip_nan)


@compiled(static_argnums=(2, 3, 4, 5))
def _order_statistic(x: Any, q: Any, axes: tuple[int, ...], keepdims: bool, method: str, skip_nan: bool) -> Any:
    sizes = typeof(x).shape
    kept = [d for d in range(len(sizes)) if d not in axes]
    x = transpose(asarray(x), (*kept, *axes))
    x = sort(reshape(x, (*(sizes[d] for d in kept), int(np.prod([sizes[d] for d in axes])))), -1)
    n = typeof(x).shape[-1]
    lead = typeof(q).shape
    # Positions: one row of q for each kept element; without NaN the count is the same for all.
    column = reshape(q, (*lead, *[1] * len(kept)))
    if skip_nan:
        count = reduce_sum(convert(ops.eq(x, x), typeof(x).dtype), (len(kept),))
        last = ops.max_(ops.sub(count, scalar_like(1, count)), scalar_like(0, count))
        spot = multiply(column, last)
    else:
        spot = broadcast_to(multiply(column, np.asarray(n - 1, typeof(x).dtype)), (*lead, *typeof(x).shape[:-1]))
    out = _interpolated(x, spot, len(lead), method)
    if not skip_nan:
        out = where(any(isnan(x), -1), np.asarray(np.nan, typeof(x).dtype), out)
    if keepdims:
        out = reshape(out, (*lead, *(1 if d in axes else s for d, s in enumerate(sizes))))
    return out


def _interpolated(x: Any, spot: Any, lead: int, method: str) -> Any:
    """Elements of the sorted last dimension at fractional positions ``spot`` (leading dimensions, then those of x)."""
    low = ops.floor(spot)
    weight = ops.sub(spot, low)
    n = typeof(x).shape[-1]
    index = convert(low, dtypes.int32)
    above = ops.min_(ops.add(index, np.int32(1)), np.int32(n - 1))
    first, second = (_pick(x, i, lead) for i in (index, above))
    half = scalar_like(0.5, weight)
    if method == "lower":
        return first
    if method == "higher":
        return where(ops.gt(weight, scalar_like(0, weight)), second, first)
    if method == "nearest":  # halves to even, as in NumPy
        nearest = convert(ops.round_half_even(spot), dtypes.int32)
        return _pick(x, nearest, lead)
    if method == "midpoint":
        middle = multiply(half, ops.add(first, second))
        return where(ops.gt(weight, scalar_like(0, weight)), middle, first)
    mixed = ops.add(multiply(first, ops.sub(scalar_like(1, weight), weight)), multiply(second, weight))
    return select(ops.eq(weight, scalar_like(0, weight)), first, mixed)


def _pick(x: Any, index: Any, lead: int) -> Any:
    """``x[..., index]`` where leading dimensions of ``index`` are further queries."""
    sizes = typeof(index).shape
    queries = int(np.prod(sizes[:lead], dtype=int))
    flat = reshape(index, (queries, *sizes[lead:]))
    rows = moveaxis(flat, 0, -1)
    return reshape(moveaxis(take_along_axis(x, rows, -1, mode="clip"), -1, 0), sizes)


def quantile(a: Any, q: Any, axis: Any = None, keepdims: bool = False, *, method: str = "linear") -> Any:
    """The values below which the parts ``q`` (in [0, 1]) of the elements over ``axis`` lie.

    Args:
      q: number or vector; a vector makes a first dimension.
      method: "linear", "lower", "higher", "nearest" or "midpoint" between neighbours.

    >>> quantile(np.array([1.0, 2.0, 4.0]), 0.5).item()
    2.0
    """
    return _quantile("quantile", a, q, axis, keepdims, method, False)


def nanquantile(a: Any, q: Any, axis: Any = None, keepdims: bool = False, *, method: str = "linear") -> Any:
    """:func:`quantile` of the elements that are not NaN.

    >>> nanquantile(np.array([1.0, 2.0, 4.0, np.nan]), 0.5).item()
    2.0
    """
    return _quantile("nanquantile", a, q, axis, keepdims, method, True)


def percentile(a: Any, q: Any, axis: Any = None, keepdims: bool = False, *, method: str = "linear") -> Any:
    """:func:`quantile` with ``q`` in per cent.

    >>> percentile(np.array([1.0, 2.0, 4.0]), 50).item()
    2.0
    """
    return quantile(a, divide(q, 100), axis, keepdims, method=method)


def nanpercentile(a: Any, q: Any, axis: Any = None, keepdims: bool = False, *, method: str = "linear") -> Any:
    """:func:`percentile` of the elements that are not NaN.

    >>> nanpercentile(np.array([1.0, 2.0, 4.0, np.nan]), 50).item()
    2.0
    """
    return nanquantile(a, divide(q, 100), axis, keepdims, method=method)


def median(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The middle element over ``axis``, or the mean of the two middle ones.

    >>> median(np.array([1, 4, 2, 3])).item()
    2.5
    """
    return quantile(a, 0.5, axis, keepdims, method="midpoint")


def nanmedian(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """:func:`median` of the elements that are not NaN.

    >>> nanmedian(np.array([1, np.nan, 3])).item()
    2.0
    """
    return nanquantile(a, 0.5, axis, keepdims, method="midpoint")


# --- covariance ---------------------------------------------------------------------------------------------
def cov(m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None) -> Any:
    """Covariances of variables (rows, or columns with ``rowvar=False``).

    >>> cov(np.array([[0.0, 2.0], [0.0, 4.0]])).tolist()
    [[2.0, 4.0], [4.0, 8.0]]
    """

    def rows(v: Any) -> Any:
        (v,) = operands("cov", (asarray(v),), to_inexact=True)
        if typeof(v).ndim < 2:
            return reshape(v, (1, -1))
        return v if rowvar else transpose(v)

    x = rows(m) if y is None else concatenate([rows(m), rows(y)])
    n = typeof(x).shape[1]
    x = subtract(x, mean(x, 1, keepdims=True))
    free = n - ((0 if bias else 1) if ddof is None else ddof)
    out = divide(matmul(x, transpose(conj(x))), np.asarray(free, dtypes.real_of(typeof(x).dtype)))
    return reshape(out, ()) if typeof(out).shape == (1, 1) else out


def corrcoef(x: Any, y: Any = None, rowvar: bool = True) -> Any:
    """Correlations of variables: :func:`cov`, scaled to 1 on the diagonal.

    >>> corrcoef(np.array([[0.0, 2.0], [0.0, 4.0]])).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    c = cov(x, y, rowvar)
    if typeof(c).ndim == 0:
        return divide(c, c)
    deviation = ops.sqrt(ops.real(diagonal(c)) if dtypes.is_complex(typeof(c).dtype) else diagonal(c))
    scaled = divide(divide(c, reshape(deviation, (-1, 1))), reshape(deviation, (1, -1)))
    return scaled if dtypes.is_complex(typeof(c).dtype) else clip(scaled, -1.0, 1.0)


# --- whole arrays -------------------------------------------------------------------------------------------
def allclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    """Whether all elements are close (:func:`isclose`).

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
    same = ops.eq(x, y)
    return all(ops.or_(same, ops.and_(isnan(x), isnan(y))) if equal_nan else same)


def array_equiv(a1: Any, a2: Any) -> Any:
    """Whether the arrays are equal once broadcast together.

    >>> array_equiv(np.array([1, 1]), 1).item()
    True
    """
    try:
        np.broadcast_shapes(shape(a1), shape(a2))
    except ValueError:
        return asarray(False)
    return all(ops.eq(*operands("array_equiv", (asarray(a1), asarray(a2)))))
