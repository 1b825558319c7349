"""Searches: positions in a sorted vector, in bins, and of nonzero elements. Work is linear, or a binary search.

Functions whose result shape depends on values take ``size`` (or ``length``) for use while tracing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshwright.api.control_flow import fori_loop
from meshwright.core import dtypes
from meshwright.errors import ArgumentError, ConcretizationTypeError, ShapeError
from meshwright.ir.tracing import Tracer, check_alive, typeof
from meshwright.numpy.at import IndexUpdater
from meshwright.numpy.axes import static_int
from meshwright.numpy.compiled import compiled
from meshwright.numpy.creation import asarray, full
from meshwright.numpy.indexing import take
from meshwright.numpy.joining import stack
from meshwright.numpy.logic import truth
from meshwright.numpy.logic import where as choose_by
from meshwright.numpy.manipulation import broadcast_to, flip, ravel
from meshwright.numpy.promotion import as_operand, as_positions, promote_all, scalar_like
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import convert, select
from meshwright.ops.reduce import cumulative
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota, reduce_sum

#: up to this size vectors are compared with completely, which is cheaper than a binary search
_SHORT = 32


def _positions(size: int) -> np.dtype:
    """The dtype of positions in a sorted vector: 32 bits if enough, as in JAX."""
    return dtypes.int32 if size <= np.iinfo(np.int32).max else dtypes.default_int()


def concrete(x: Any, name: str, remedy: str = "pass size=, or use where") -> np.ndarray:
    """The value of ``x`` on the host, for decisions; derivatives go through ``x`` itself.

    Raises:
      ConcretizationTypeError: ``x`` is traced.
    """
    check_alive(x)
    value = x.concrete() if isinstance(x, Tracer) else x
    if value is None:
        raise ConcretizationTypeError(
            f"{name}: the shape of the result depends on values, and this array is traced ({x.aval}); {remedy}"
        )
    return np.asarray(value)


def promoted(a: Any, b: Any) -> tuple[Any, Any]:
    """Two arrays in their common type, weak if that is; shapes are unchanged."""
    a, b = promote_all([asarray(a), asarray(b)])
    return a, b


# --- in a sorted vector -------------------------------------------------------------------------------------
def _before(row: Any, x: Any, side: str) -> Any:
    """Whether the sorted element ``row`` precedes the position of ``x``. NaN is last; complex numbers are ordered by
    real, then by imaginary part, as in ``sort``."""
    if dtypes.is_complex(typeof(x).dtype):
        reals, imaginary = (ops.real(row), ops.real(x)), (ops.imag(row), ops.imag(x))
        ahead, behind = _before(*reals, "left"), _before(*reals[::-1], "left")
        return ops.or_(ahead, ops.and_(ops.not_(behind), _before(*imaginary, side)))
    before = ops.lt(row, x) if side == "left" else ops.le(row, x)
    if dtypes.is_float(typeof(x).dtype):
        is_nan = ops.ne(x, x)
        before = ops.or_(before, is_nan if side == "right" else ops.and_(is_nan, ops.eq(row, row)))
    return before


@compiled(static_argnums=(2,))
def _compare_all(a: Any, v: Any, side: str) -> Any:
    shape = (*typeof(v).shape, typeof(a).size)
    row = broadcast_in_dim(a, shape, (len(shape) - 1,))
    column = broadcast_in_dim(v, shape, range(len(shape) - 1))
    return reduce_sum(convert(_before(row, column, side), _positions(typeof(a).size)), (len(shape) - 1,))


@compiled(static_argnums=(2,))
def _binary_search(a: Any, v: Any, side: str) -> Any:
    a, v = ops.stop_gradient(a), ops.stop_gradient(v)
    n = typeof(a).size
    index = _positions(n)
    if n == 0:
        return full(typeof(v).shape, 0, index)
    two, one = np.array(2, index), np.array(1, index)

    def halve(_: Any, bounds: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = bounds
        middle = ops.div(ops.add(low, high), two)
        # Once low equals high, the position is found, and the element there must not be counted again.
        after = ops.and_(_before(take(a, middle, mode="clip"), v, side), ops.lt(low, high))
        return select(after, ops.add(middle, one), low), select(after, high, middle)

    shape = typeof(v).shape
    start = (broadcast_to(np.array(0, index), shape), broadcast_to(np.array(n, index), shape))
    return fori_loop(0, math.ceil(math.log2(n + 1)), halve, start)[0]


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None, *, method: str = "auto") -> Any:
    """The positions at which to insert ``v`` into the ascending vector ``a``, before ("left") or after equal elements.

    Args:
      a: vector of size n; with ``sorter``, a vector that these positions sort.
      v: array of any shape, which is also the result's.
      method: "scan" is a binary search, which needs all of ``a`` on every device; "compare_all" compares each element
        with all of ``a``, and gathers nothing if ``a`` is split over a mesh; "auto" uses the latter for short vectors.
        JAX's "scan_unrolled" and "sort" are aliases of "scan".

    Raises:
      ArgumentError: another side or method, or ``a`` is not a vector.

    >>> searchsorted(np.array([1, 3, 5]), 3).item()
    1
    """
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: side must be 'left' or 'right', got {side!r}")
    if method not in ("auto", "scan", "scan_unrolled", "sort", "compare_all"):
        raise ArgumentError(f"searchsorted: method must be 'auto', 'scan' or 'compare_all', got {method!r}")
    a, v = promoted(a, v)
    if typeof(a).ndim != 1:
        raise ArgumentError(f"searchsorted: a must be a vector, got shape {typeof(a).shape}")
    if sorter is not None:
        a = take(a, sorter)
    few = typeof(a).size <= _SHORT if method == "auto" else method == "compare_all"
    return _compare_all(a, v, side) if few else _binary_search(a, v, side)


def digitize(x: Any, bins: Any, right: bool = False, *, method: str | None = None) -> Any:
    """The number of the bin of each element; bins ascend or descend.

    >>> digitize(np.array([0.5, 2.5]), np.array([0.0, 1.0, 2.0])).tolist()
    [1, 3]
    """
    bins, method = asarray(bins), method or "auto"
    count = typeof(bins).size
    if typeof(bins).ndim != 1:
        raise ArgumentError(f"digitize: bins must be a vector, got shape {typeof(bins).shape}")
    if count == 0:
        return full(typeof(asarray(x)).shape, 0, _positions(count))
    rising = searchsorted(bins, x, "left" if right else "right", method=method)
    falling = searchsorted(flip(bins), x, "left" if right else "right", method=method)
    first, last = take(bins, np.array(0)), take(bins, np.array(count - 1))
    return choose_by(ops.gt(first, last), ops.sub(np.array(count, typeof(falling).dtype), falling), rising)


# --- not 0 --------------------------------------------------------------------------------------------------
def nonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> tuple[Any, ...]:
    """The positions of nonzero elements, one array per dimension.

    Args:
      size: the static number of positions: missing ones are ``fill_value`` (0, or one per dimension), excess ones are
        dropped.

    Raises:
      ConcretizationTypeError: a traced array without ``size``. ArgumentError: a 0-d array.

    >>> nonzero(np.array([0, 3, 4]))[0].tolist()
    [1, 2]
    """
    x = asarray(a)
    shape = typeof(x).shape
    if not shape:
        raise ArgumentError("nonzero: a 0-d array has no positions; use atleast_1d, or test it with x != 0")
    if size is None:
        positions = np.nonzero(concrete(x, "nonzero"))
        return tuple(asarray(p.astype(dtypes.default_int())) for p in positions)
    flat = _flat_positions(ravel(truth(x, "nonzero")), static_int(size, "nonzero", "size"))
    total = math.prod(shape)
    fills = fill_value if isinstance(fill_value, tuple) else (0 if fill_value is None else fill_value,) * len(shape)
    return tuple(_coordinates(flat, shape, d, fill, total) for d, fill in enumerate(fills))


def _flat_positions(flags: Any, size: int) -> Any:
    """The first ``size`` positions of true elements; missing ones are the number of elements."""
    index = dtypes.default_int()
    total = typeof(flags).size
    count = cumulative.cumsum(convert(flags, index), 0)
    place = select(flags, ops.sub(count, scalar_like(1, count)), scalar_like(size, count))
    return IndexUpdater(full((size,), total, index))[place].set(iota(index, (total,), 0), mode="drop")


def _coordinates(flat: Any, shape: tuple[int, ...], d: int, fill: Any, total: int) -> Any:
    below = math.prod(shape[d + 1 :])
    place = ops.rem(ops.div(flat, scalar_like(max(below, 1), flat)), scalar_like(max(shape[d], 1), flat))
    return choose_by(ops.lt(flat, scalar_like(total, flat)), place, fill)


def where(condition: Any, x: Any = None, y: Any = None, /, *, size: int | None = None, fill_value: Any = None) -> Any:
    """``x`` where ``condition`` is true, ``y`` elsewhere; with only a condition, :func:`nonzero` of it.

    Args:
      condition: bools, or numbers, where nonzero is true.
      x, y: arrays or numbers; the shapes of all three broadcast together.
      size, fill_value: with only a condition, as for :func:`nonzero`.

    Raises:
      ArgumentError: only one of ``x`` and ``y`` is given, or ``size`` with both.
      ShapeError, DTypeError: shapes do not broadcast, dtypes do not promote.

    >>> where(np.array([True, False]), 1, 2).tolist()
    [1, 2]
    """
    if x is None and y is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    if size is not None or fill_value is not None:
        raise ArgumentError("where: size= and fill_value= are for a condition alone, without x and y")
    return choose_by(condition, x, y)


def flatnonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The positions of nonzero elements in the flattened array.

    >>> flatnonzero(np.array([[0, 3], [4, 0]])).tolist()
    [1, 2]
    """
    return nonzero(ravel(a), size=size, fill_value=fill_value)[0]


def argwhere(a: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The positions of nonzero elements, one row each.

    >>> argwhere(np.array([[0, 3], [4, 0]])).tolist()
    [[0, 1], [1, 0]]
    """
    x = asarray(a)
    if typeof(x).ndim == 0:  # one row without coordinates for a true scalar
        rows = size if size is not None else int(bool(concrete(truth(x, "argwhere"), "argwhere")))
        return full((static_int(rows, "argwhere", "size"), 0), 0, dtypes.default_int())
    return stack(nonzero(x, size=size, fill_value=fill_value), -1)


# --- counting -----------------------------------------------------------------------------------------------
def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Any:
    """Count the occurrences of each nonnegative integer, or sum their weights.

    Args:
      x: vector of integers; negative ones count as 0.
      length: the static size of the result; larger integers are not counted.

    Raises:
      ConcretizationTypeError: a traced ``x`` without ``length``. ShapeError: not a vector of integers.

    >>> bincount(np.array([0, 2, 2])).tolist()
    [1, 0, 2]
    """
    x = asarray(x)
    if typeof(x).ndim != 1 or not (dtypes.is_integer(typeof(x).dtype) or dtypes.is_bool(typeof(x).dtype)):
        raise ShapeError(f"bincount: x must be a vector of integers, got {typeof(x)}")
    if length is None:
        value = concrete(x, "bincount", "pass length=")
        length = max(max(int(value.max()), 0) + 1 if value.size else 0, minlength)
    w = np.asarray(1, dtypes.default_int()) if weights is None else as_operand(weights, "bincount")
    if dtypes.is_bool(typeof(w).dtype):  # they are counted; in their own type, they would be added as `or`
        w = convert(w, dtypes.default_int())
    return _counted(as_positions(x), w, static_int(length, "bincount", "length"))


@compiled(static_argnums=(2,))
def _counted(x: Any, w: Any, length: int) -> Any:
    start = full((length,), 0, typeof(w).dtype)
    return IndexUpdater(start)[ops.max_(x, scalar_like(0, x))].add(w, mode="drop")
