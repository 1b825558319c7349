"""Arrays as sets: unique elements and functions based on them, by sorting; ``size`` fixes the shape while tracing.

Without ``size``, the unique elements of a concrete array are first counted on the host, so that one program serves both
cases, and derivatives with respect to the elements are those of selecting them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from meshwright.core import dtypes
from meshwright.core.key_types import is_key
from meshwright.errors import ArgumentError
from meshwright.ir.tracing import Tracer, typeof
from meshwright.numpy.at import IndexUpdater
from meshwright.numpy.axes import normal_axis, static_int
from meshwright.numpy.creation import asarray, full
from meshwright.numpy.indexing import take
from meshwright.numpy.joining import concatenate
from meshwright.numpy.logic import equal, where
from meshwright.numpy.manipulation import moveaxis, ravel, reshape
from meshwright.numpy.promotion import aval_of, converted, promote_all, scalar_like
from meshwright.numpy.searching import concrete, nonzero, promoted, searchsorted
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import convert
from meshwright.ops.reduce import cumulative
from meshwright.ops.reduce.reductions import reduce_or
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota, reduce_sum
from meshwright.ops.shape.slice_pad import slice_in_dim
from meshwright.ops.sort.sorting import sort as sort_op

#: up to this number, elements are compared one by one
_FEW = 16


class UniqueAll(NamedTuple):
    """The result of :func:`unique_all`."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """The result of :func:`unique_counts`."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """The result of :func:`unique_inverse`."""

    values: Any
    inverse_indices: Any


# --- unique -------------------------------------------------------------------------------------------------
def unique(
    ar: Any, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False,
    axis: int | None = None, *, equal_nan: bool = True, size: int | None = None, fill_value: Any = None,
    sorted: bool = True,
) -> Any:  # fmt: skip
    """The distinct elements of the flattened array, or with ``axis`` the distinct slices, sorted.

    Args:
      return_index: also return the position of the first occurrence of each.
      return_inverse: also return each element's position among the unique ones, in the shape of ``ar`` (along
        ``axis``).
      return_counts: also return the number of occurrences.
      equal_nan: whether all NaNs are the same element.
      sorted: NumPy's option to skip sorting; here results are always sorted.
      size: the static size of the result: excess elements are dropped, missing ones are ``fill_value`` (default: the
        least).

    Raises:
      ConcretizationTypeError: the array is traced, and ``size`` is not given.

    >>> unique(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    x = asarray(ar)
    shape = typeof(x).shape
    returned = (True, return_index, return_inverse, return_counts)
    if size is None and not isinstance(x, Tracer):
        weak = typeof(x).weak_type and not dtypes.is_complex(typeof(x).dtype)  # as in JAX
        return _on_host(concrete(x, "unique"), returned, axis, equal_nan, weak)
    if size is None:
        size = _count(concrete(x, "unique"), axis, equal_nan)
    rows = reshape(x, (-1, 1)) if axis is None else moveaxis(x, normal_axis(axis, len(shape), "unique"), 0)
    inner = typeof(rows).shape[1:]
    n = typeof(rows).shape[0]
    table = reshape(rows, (n, int(np.prod(inner, dtype=int))))
    outs = _unique_rows(table, static_int(size, "unique", "size"), fill_value, equal_nan)
    values = reshape(outs[0], (size, *inner))
    if dtypes.is_complex(typeof(values).dtype):
        values = convert(values, typeof(values).dtype)  # not weakly typed, as in JAX
    values = reshape(values, (size,)) if axis is None else moveaxis(values, 0, normal_axis(axis, len(shape), "unique"))
    inverse = reshape(outs[2], shape) if axis is None else outs[2]
    picked = [r for r, want in zip((values, outs[1], inverse, outs[3]), returned) if want]
    return picked[0] if len(picked) == 1 else tuple(picked)


def _on_host(x: np.ndarray, returned: tuple[bool, ...], axis: int | None, equal_nan: bool, weak: bool) -> Any:
    # With positions NumPy sorts stably, so the first of several zeros of either sign represents them.
    out: Any = np.unique(_in_order(x), True, True, True, axis=axis, equal_nan=equal_nan)
    values = convert(asarray(out[0].astype(x.dtype)), x.dtype, weak)
    results = [values, *(asarray(o.astype(dtypes.default_int())) for o in out[1:])]
    picked = [r for r, want in zip(results, returned) if want]
    return picked[0] if len(picked) == 1 else tuple(picked)


def _count(x: np.ndarray, axis: int | None, equal_nan: bool) -> int:
    return np.unique(_in_order(x), axis=axis, equal_nan=equal_nan).shape[0 if axis is None else axis]


def _in_order(x: np.ndarray) -> np.ndarray:
    """``x`` in a dtype that NumPy sorts with NaN last, unlike dtypes that are not its own, such as bfloat16."""
    return x.astype(np.float32) if x.dtype.kind == "V" else x


def _unique_rows(table: Any, size: int, fill_value: Any, equal_nan: bool) -> tuple[Any, Any, Any, Any]:
    """The unique rows of a matrix, their first positions, the inverse of all rows, and counts."""
    n, width = typeof(table).shape
    index = dtypes.default_int()
    if n == 0:
        fill = scalar_like(0, table) if fill_value is None else converted(asarray(fill_value), typeof(table).dtype)
        none = full((size,), 0, index)
        return broadcast_in_dim(fill, (size, width), ()), none, full((0,), 0, index), none
    columns = [reshape(slice_in_dim(table, c, c + 1, 1, 1), (n,)) for c in range(width)]
    positions = iota(index, (n,), 0)
    *ordered, order = sort_op((*columns, positions), 0, True, width) if width else [positions]
    new = _differs_from_before(ordered, n, equal_nan)
    (bounds,) = nonzero(new, size=size + 1, fill_value=n)
    starts, ends = slice_in_dim(bounds, 0, size), slice_in_dim(bounds, 1, size + 1)
    real = ops.lt(starts, scalar_like(n, starts))
    first = take(order, starts, mode="clip")
    values = take(table, where(real, first, take(order, np.array(0))), 0, mode="clip")
    if fill_value is not None:
        values = where(reshape(real, (size, 1)), values, converted(asarray(fill_value), typeof(table).dtype))
    group = cumulative.cumsum(convert(new, index), 0)
    inverse = IndexUpdater(full((n,), 0, index))[order].set(ops.sub(group, scalar_like(1, group)), unique_indices=True)
    return values, where(real, first, take(order, np.array(0))), inverse, where(real, ops.sub(ends, starts), 0)


def _differs_from_before(columns: list[Any], n: int, equal_nan: bool) -> Any:
    different: Any = full((n - 1,), False)
    for column in columns:
        before, after = slice_in_dim(column, 0, n - 1), slice_in_dim(column, 1, n)
        changed = ops.ne(before, after)
        if equal_nan and dtypes.is_inexact(typeof(column).dtype):
            changed = ops.and_(changed, ops.not_(ops.and_(ops.ne(before, before), ops.ne(after, after))))
        different = ops.or_(different, changed)
    return concatenate([full((1,), True), different])


def unique_all(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueAll:
    """Unique elements, first positions, inverse and counts; all NaNs are distinct (array API).

    >>> unique_all(np.array([3, 1, 3])).counts.tolist()
    [1, 2]
    """
    return UniqueAll(*unique(x, True, True, True, equal_nan=False, size=size, fill_value=fill_value))


def unique_counts(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueCounts:
    """Unique elements and their counts; all NaNs are distinct (array API).

    >>> unique_counts(np.array([3, 1, 3])).values.tolist()
    [1, 3]
    """
    return UniqueCounts(*unique(x, return_counts=True, equal_nan=False, size=size, fill_value=fill_value))


def unique_inverse(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueInverse:
    """Unique elements and the inverse; all NaNs are distinct (array API).

    >>> unique_inverse(np.array([3, 1, 3])).inverse_indices.tolist()
    [1, 0, 1]
    """
    return UniqueInverse(*unique(x, return_inverse=True, equal_nan=False, size=size, fill_value=fill_value))


def unique_values(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> Any:
    """Unique elements; all NaNs are distinct (array API).

    >>> unique_values(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    return unique(x, equal_nan=False, size=size, fill_value=fill_value)


# --- membership ---------------------------------------------------------------------------------------------
def isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, method: str = "auto"
) -> Any:
    """Whether each element is among ``test_elements``.

    Args:
      method: "compare_all" compares with all of them; "sort" and "binary_search" sort and search; "auto" compares if
        they are few.

    Raises:
      ArgumentError: another method.

    >>> isin(np.array([1, 2]), np.array([2, 3])).tolist()
    [False, True]
    """
    if method not in ("auto", "compare_all", "binary_search", "sort"):
        raise ArgumentError(f"isin: method must be 'auto', 'compare_all', 'binary_search' or 'sort', got {method!r}")
    if is_key(aval_of(element, "isin").dtype):
        same = equal(reshape(element, (*aval_of(element, "isin").shape, 1)), ravel(test_elements))
        is_member = reduce_or(same, (typeof(same).ndim - 1,))
        return ops.not_(is_member) if invert else is_member
    x, t = promoted(element, ravel(test_elements))
    n = typeof(t).size
    if (n <= _FEW if method == "auto" else method == "compare_all") or n == 0 or dtypes.is_complex(typeof(x).dtype):
        shape = (*typeof(x).shape, n)
        same = ops.eq(broadcast_in_dim(x, shape, range(len(shape) - 1)), broadcast_in_dim(t, shape, (len(shape) - 1,)))
        is_member = reduce_or(same, (len(shape) - 1,))
    else:
        if dtypes.is_bool(typeof(x).dtype):
            x, t = convert(x, dtypes.uint8), convert(t, dtypes.uint8)
        (ordered,) = sort_op((t,), 0)
        is_member = ops.eq(take(ordered, searchsorted(ordered, x), mode="clip"), x)
    return ops.not_(is_member) if invert else is_member


# --- of two sets --------------------------------------------------------------------------------------------
def union1d(ar1: Any, ar2: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The unique elements of both arrays together.

    >>> union1d(np.array([1, 3]), np.array([2, 3])).tolist()
    [1, 2, 3]
    """
    return unique(concatenate([ravel(ar1), ravel(ar2)]), size=size, fill_value=fill_value)


def _kept(flat: Any, keep: Any, size: int | None, fill_value: Any, name: str, least: bool = False) -> Any:
    """The elements of a sorted vector selected by ``keep``; with ``size``, padded with ``fill_value``.

    The default ``fill_value`` is the ``least`` selected element, or 0. Where the least is the default, another one is
    promoted with the elements, and otherwise converted to their dtype, as in JAX.
    """
    if size is None and typeof(flat).size == 0:
        return flat
    if size is None:
        return take(flat, np.flatnonzero(concrete(keep, name, "pass size=")))
    (places,) = nonzero(keep, size=size, fill_value=typeof(flat).size)
    fill = asarray(0 if fill_value is None else fill_value)
    if fill_value is None or not least:
        fill = converted(fill, typeof(flat).dtype)
    else:
        flat, fill = promote_all([flat, fill])
    if typeof(flat).size == 0 or size == 0:
        return full((size,), fill, typeof(flat).dtype)
    inside, elements = ops.lt(places, scalar_like(typeof(flat).size, places)), take(flat, places, mode="clip")
    if fill_value is None and least:
        fill = where(inside[0], elements[0], fill)
    return where(inside, elements, fill)


def setdiff1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Any:
    """The unique elements of the first array that are not in the second.

    >>> setdiff1d(np.array([3, 1, 2]), np.array([2])).tolist()
    [1, 3]
    """
    flat = ravel(ar1)
    if size is None:
        flat = flat if assume_unique else unique(flat)
        return _kept(flat, isin(flat, ar2, invert=True), None, None, "setdiff1d")
    flat, new = _sorted_firsts(flat)
    return _kept(flat, ops.and_(new, isin(flat, ar2, invert=True)), size, fill_value, "setdiff1d")


def _sorted_firsts(flat: Any) -> tuple[Any, Any]:
    """A sorted vector, and which of its elements differ from the preceding one."""
    (ordered,) = sort_op((flat,), 0)
    n = typeof(flat).size
    return ordered, _differs_from_before([ordered], n, True) if n else full((0,), True)


def intersect1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, return_indices: bool = False, *, size: int | None = None,
    fill_value: Any = None,
) -> Any:  # fmt: skip
    """The unique elements that are in both arrays; with ``return_indices`` also their first positions in each.

    With ``size``, missing elements are ``fill_value`` (default: the least element found, or 0), and missing positions
    the size of the array.

    >>> intersect1d(np.array([3, 1, 2]), np.array([2, 3])).tolist()
    [2, 3]
    """
    first, second = promoted(ravel(ar1), ravel(ar2))
    if dtypes.is_complex(typeof(first).dtype):
        first = convert(first, typeof(first).dtype)  # not weakly typed, as in JAX
    ordered, new = _sorted_firsts(first)
    both = ops.and_(new, isin(ordered, second))
    common = _kept(ordered, both, size, fill_value, "intersect1d", True)
    if not return_indices:
        return common
    count = reduce_sum(convert(both, dtypes.default_int()), (0,))
    return common, _first_places(first, common, count), _first_places(second, common, count)


def _first_places(x: Any, values: Any, count: Any) -> Any:
    """The first positions in ``x`` of the first ``count`` of ``values``; the size of ``x`` for the others."""
    index, n = dtypes.default_int(), typeof(x).size
    if n == 0:
        return full(typeof(values).shape, 0, index)
    ordered, order = sort_op((x, iota(index, (n,), 0)), 0, True, 1)
    places = take(order, searchsorted(ordered, values), mode="clip")
    shape = typeof(values).shape
    return where(ops.lt(iota(index, shape, 0), broadcast_in_dim(count, shape, ())), places, n)


def setxor1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Any:
    """The unique elements that are in exactly one of the arrays. NaN is in no other array.

    >>> setxor1d(np.array([1, 2]), np.array([2, 3])).tolist()
    [1, 3]
    """
    first, second = promoted(ravel(ar1), ravel(ar2))
    joined = concatenate([first, second])
    ordered, order = sort_op((joined, iota(dtypes.default_int(), typeof(joined).shape, 0)), 0, True, 1)
    new = _differs_from_before([ordered], typeof(joined).size, True) if typeof(joined).size else full((0,), True)
    alone = ops.ne(isin(ordered, first), isin(ordered, second))
    # NaN equals nothing, so the NaN of either array is not in the other.
    nans = take(concatenate([_first_nan(first), _first_nan(second)]), order)
    return _kept(ordered, ops.or_(nans, ops.and_(new, alone)), size, fill_value, "setxor1d", True)


def _first_nan(x: Any) -> Any:
    is_nan = ops.ne(x, x)
    count = cumulative.cumsum(convert(is_nan, dtypes.default_int()), 0)
    return ops.and_(is_nan, ops.eq(count, scalar_like(1, count)))
