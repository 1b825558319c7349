"""Sorting and searching; what depends on values in its shape (nonzero, unique) takes ``size`` while tracing."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.errors import ArgumentError, ConcretizationError
from meshwright.ir.tracing import Tracer, typeof
from meshwright.numpy.axes import normal_axis, static_int
from meshwright.numpy.creation import asarray
from meshwright.numpy.indexing import take
from meshwright.numpy.joining import concatenate, stack
from meshwright.numpy.logic import truth, where
from meshwright.numpy.manipulation import flip, moveaxis, ravel
from meshwright.numpy.promotion import as_operand, converted, result_type, scalar_like
from meshwright.numpy.reductions import sum_dtype
from meshwright.ops import cumulative
from meshwright.ops import elementwise as ops
from meshwright.ops import sort as sort_ops
from meshwright.ops import top_k as top_k_ops
from meshwright.ops.broadcast_reduce import broadcast_in_dim, iota, reduce_sum
from meshwright.ops.elementwise import convert, select
from meshwright.ops.reduce import reduce_or
from meshwright.ops.slice_pad import slice_in_dim


def _flat(x: Any, axis: int | None, name: str) -> tuple[Any, int]:
    x = asarray(x)
    if axis is None or typeof(x).ndim == 0:
        return ravel(x), 0
    return x, normal_axis(axis, typeof(x).ndim, name)


def sort(a: Any, axis: int | None = -1, *, stable: bool = True, descending: bool = False, kind: Any = None) -> Any:
    """``a`` in ascending order along ``axis`` (flattened without one); NaN comes last.

    >>> sort(np.array([3, 1, 2])).tolist()
    [1, 2, 3]
    """
    x, d = _flat(a, axis, "sort")
    out = sort_ops.sort(x, d, stable)
    return flip(out, d) if descending else out


def argsort(a: Any, axis: int | None = -1, *, stable: bool = True, descending: bool = False, kind: Any = None) -> Any:
    """The positions that put ``a`` in ascending (or descending) order along ``axis``; equal elements keep their order.

    >>> argsort(np.array([3, 1, 2])).tolist()
    [1, 2, 0]
    """
    x, d = _flat(a, axis, "argsort")
    index = dtypes.default_int()
    if not descending:
        return sort_ops.argsort(x, d, stable, index)
    # Ascending from the back, counted from the back: equal elements keep their order.
    n = typeof(x).shape[d]
    backwards = flip(sort_ops.argsort(flip(x, d), d, stable, index), d)
    return ops.sub(np.asarray(n - 1, index), backwards)


def lexsort(keys: Any, axis: int = -1) -> Any:
    """The positions that sort by several keys, the last one first.

    >>> lexsort([np.array([1, 0, 1]), np.array([2, 1, 1])]).tolist()
    [1, 2, 0]
    """
    arrays = [asarray(k) for k in keys]
    if not arrays:
        raise ArgumentError("lexsort: expected one key at least")
    d = normal_axis(axis, typeof(arrays[0]).ndim, "lexsort")
    positions = iota(dtypes.default_int(), typeof(arrays[0]).shape, d)
    return sort_ops.sort((*arrays[::-1], positions), d, True, len(arrays))[-1]


def partition(a: Any, kth: int, axis: int = -1) -> Any:
    """``a`` with element ``kth`` of the order in its place, smaller ones before it: it is sorted.

    >>> partition(np.array([3, 1, 2]), 0)[0].item()
    1
    """
    return sort(a, axis)


def argpartition(a: Any, kth: int, axis: int = -1) -> Any:
    """Positions for :func:`partition`.

    >>> argpartition(np.array([3, 1, 2]), 0)[0].item()
    1
    """
    return argsort(a, axis)


def top_k(a: Any, k: int, axis: int = -1) -> tuple[Any, Any]:
    """The ``k`` largest elements along ``axis``, largest first, and their positions.

    >>> [v.tolist() for v in top_k(np.array([1, 3, 2]), 2)]
    [[3, 2], [1, 2]]
    """
    x = asarray(a)
    d = normal_axis(axis, typeof(x).ndim, "top_k")
    values, positions = top_k_ops.top_k(moveaxis(x, d, -1), k)
    return moveaxis(values, -1, d), moveaxis(positions, -1, d)


# --- cumulative ---------------------------------------------------------------------------------------------
def _cumulate(name: str, a: Any, axis: int | None, dtype: Any, op: Any) -> Any:
    x, d = _flat(a, axis, name)
    if dtype is not None:
        x = convert(x, dtypes.requested(dtype, name))
    elif dtypes.is_bool(typeof(x).dtype):
        x = convert(x, dtypes.default_int())
    return op(x, d)


def cumsum(a: Any, axis: int | None = None, dtype: Any = None) -> Any:
    """Running sums along ``axis`` (of the flattened array without one).

    >>> cumsum(np.array([1, 2, 3])).tolist()
    [1, 3, 6]
    """
    return _cumulate("cumsum", a, axis, dtype, cumulative.cumsum)


def cumprod(a: Any, axis: int | None = None, dtype: Any = None) -> Any:
    """Running products along ``axis`` (of the flattened array without one).

    >>> cumprod(np.array([1, 2, 3])).tolist()
    [1, 2, 6]
    """
    return _cumulate("cumprod", a, axis, dtype, cumulative.cumprod)


def _cumulative_api(name: str, op: Any, start: int) -> Any:
    def f(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
        x = asarray(x)
        if axis is None and typeof(x).ndim != 1:
            raise ArgumentError(f"{name}: axis is needed for an array of {typeof(x).ndim} dimensions")
        d = normal_axis(0 if axis is None else axis, typeof(x).ndim, name)
        out = op(x, d, sum_dtype(typeof(x).dtype, dtype, name))
        if not include_initial:
            return out
        shape = list(typeof(out).shape)
        shape[d] = 1
        return concatenate([broadcast_in_dim(scalar_like(start, out), shape, ()), out], d)

    f.__name__ = f.__qualname__ = name
    f.__doc__ = f"Array API form of {op.__name__}: with ``include_initial`` there is a {start} first."
    return f


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Differences of neighbours along ``axis``, ``n`` times.

    >>> diff(np.array([1, 4, 9])).tolist()
    [3, 5]
    """
    x = asarray(a)
    d = normal_axis(axis, typeof(x).ndim, "diff")
    ends = []
    for extra in (prepend, append):
        if extra is None:
            continue
        e = asarray(extra)
        shape = list(typeof(x).shape)
        shape[d] = 1
        ends.append(broadcast_in_dim(e, shape, ()) if typeof(e).ndim == 0 else e)
    if ends:
        x = concatenate(
            [*([ends[0]] if prepend is not None else []), x, *([ends[-1]] if append is not None else [])], d
        )
    for _ in range(static_int(n, "diff", "n")):
        size = typeof(x).shape[d]
        later, earlier = slice_in_dim(x, min(1, size), size, 1, d), slice_in_dim(x, 0, max(size - 1, 0), 1, d)
        x = ops.ne(later, earlier) if dtypes.is_bool(typeof(x).dtype) else ops.sub(later, earlier)
    return x


cumulative_sum = _cumulative_api("cumulative_sum", cumsum, 0)
cumulative_prod = _cumulative_api("cumulative_prod", cumprod, 1)


# --- searching ----------------------------------------------------------------------------------------------
def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    """Where in the ascending vector ``a`` the elements of ``v`` belong, before ("left") or after equal ones.

    Every element is compared with all of ``a``; with ``a`` split over a mesh nothing is gathered.

    >>> searchsorted(np.array([1, 3, 5]), 3).item()
    1
    """
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: side must be 'left' or 'right', got {side!r}")
    a, v = _promoted(a, v)
    if typeof(a).ndim != 1:
        raise ArgumentError(f"searchsorted: a must be a vector, got shape {typeof(a).shape}")
    if sorter is not None:
        a = take(a, sorter)
    shape = (*typeof(v).shape, typeof(a).size)
    row = broadcast_in_dim(a, shape, (len(shape) - 1,))
    column = broadcast_in_dim(v, shape, range(len(shape) - 1))
    before = ops.lt(row, column) if side == "left" else ops.le(row, column)
    if dtypes.is_float(typeof(a).dtype):  # NaN is after all numbers
        is_nan = ops.ne(column, column)
        before = ops.or_(before, is_nan if side == "right" else ops.and_(is_nan, ops.eq(row, row)))
    return reduce_sum(convert(before, dtypes.default_int()), (len(shape) - 1,))


def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    """The number of the bin that each element is in; bins ascend.

    >>> digitize(np.array([0.5, 2.5]), np.array([0.0, 1.0, 2.0])).tolist()
    [1, 3]
    """
    return searchsorted(bins, x, "left" if right else "right")


def nonzero(a: Any, *, size: int | None = None, fill_value: Any = 0) -> tuple[Any, ...]:
    """The positions of the elements that are not 0, an array a dimension.

    Args:
      size: how many, while tracing: fewer are filled up with ``fill_value``, more are cut off.

    Raises:
      ConcretizationError: a traced array without ``size``.

    >>> nonzero(np.array([0, 3, 4]))[0].tolist()
    [1, 2]
    """
    x = asarray(a)
    shape = typeof(x).shape
    if not shape:
        raise ArgumentError("nonzero: a 0-d array has no positions; use atleast_1d, or test it with x != 0")
    if size is None:
        return tuple(asarray(p.astype(dtypes.default_int())) for p in np.nonzero(_concrete(x, "nonzero")))
    flags = ravel(truth(x, "nonzero"))
    count = cumulative.cumsum(convert(flags, dtypes.default_int()), 0)
    wanted = iota(dtypes.default_int(), (size,), 0)
    flat = searchsorted(count, ops.add(wanted, scalar_like(1, wanted)))  # the first place with so many behind it
    total = typeof(flags).size
    found = ops.lt(flat, scalar_like(total, flat))
    places, fills = [], fill_value if isinstance(fill_value, tuple) else (fill_value,) * len(shape)
    for d, fill in enumerate(fills):
        below = int(np.prod(shape[d + 1 :]))
        place = ops.rem(ops.div(flat, scalar_like(below, flat)), scalar_like(max(shape[d], 1), flat))
        places.append(select(found, place, scalar_like(fill, place)))
    return tuple(places)


def _concrete(x: Any, name: str) -> np.ndarray:
    if isinstance(x, Tracer) and x.concrete() is None:
        raise ConcretizationError(
            f"{name}: the shape of the result depends on values, and this array is traced ({x.aval}); pass size=, or "
            "where"
        )
    return np.asarray(x)


def flatnonzero(a: Any, *, size: int | None = None, fill_value: Any = 0) -> Any:
    """The positions in the flattened array of the elements that are not 0.

    >>> flatnonzero(np.array([[0, 3], [4, 0]])).tolist()
    [1, 2]
    """
    return nonzero(ravel(a), size=size, fill_value=fill_value)[0]


def argwhere(a: Any, *, size: int | None = None, fill_value: Any = 0) -> Any:
    """The positions of the elements that are not 0, a row each.

    >>> argwhere(np.array([[0, 3], [4, 0]])).tolist()
    [[0, 1], [1, 0]]
    """
    return stack(nonzero(a, size=size, fill_value=fill_value), -1)


def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Any:
    """How often each non-negative integer comes, or the sum of its weights.

    Args:
      length: of the result, while tracing; larger integers are not counted.

    >>> bincount(np.array([0, 2, 2])).tolist()
    [1, 0, 2]
    """
    x = asarray(x)
    if length is None:
        concrete = _concrete(x, "bincount")
        length = max(int(concrete.max()) + 1 if concrete.size else 0, minlength)
    w = np.asarray(1, dtypes.default_int()) if weights is None else as_operand(weights, "bincount")
    shape = (typeof(x).size, length)
    mask = ops.eq(broadcast_in_dim(x, shape, (0,)), iota(typeof(x).dtype, shape, 1))
    wide = broadcast_in_dim(w, shape, (0,)) if typeof(w).ndim else w
    return reduce_sum(where(mask, wide, scalar_like(0, w)), (0,))


def unique(
    ar: Any, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False,
    axis: int | None = None, *, equal_nan: bool = True,
) -> Any:  # fmt: skip
    """The different elements, in order; of concrete arrays.

    Raises:
      ConcretizationError: the array is traced.

    >>> unique(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    concrete = _concrete(asarray(ar), "unique")
    out: Any = np.unique(  # type: ignore[call-overload]
        concrete, return_index, return_inverse, return_counts, axis, equal_nan=equal_nan
    )
    return tuple(asarray(o) for o in out) if isinstance(out, tuple) else asarray(out)


def isin(element: Any, test_elements: Any, *, invert: bool = False) -> Any:
    """Whether each element is among ``test_elements``.

    >>> isin(np.array([1, 2]), np.array([2, 3])).tolist()
    [False, True]
    """
    x, t = _promoted(element, ravel(test_elements))
    shape = (*typeof(x).shape, typeof(t).size)
    same = ops.eq(broadcast_in_dim(x, shape, range(len(shape) - 1)), broadcast_in_dim(t, shape, (len(shape) - 1,)))
    found = reduce_or(same, (len(shape) - 1,))
    return ops.not_(found) if invert else found


def _promoted(a: Any, b: Any) -> tuple[Any, Any]:
    """Two arrays in their common dtype, shapes as they are."""
    a, b = asarray(a), asarray(b)
    dtype = result_type(a, b)
    return converted(a, dtype), converted(b, dtype)
