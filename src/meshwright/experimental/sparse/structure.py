"""``bcoo_*`` functions that move, join and combine the elements of sparse arrays.

All of them keep the number of stored elements static: elements that are cut off get positions past the end, which mean
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import meshwright.numpy as mnp
from meshwright import lax
from meshwright.core.expected import as_integers
from meshwright.errors import ArgumentError, ArgumentTypeError, AxisError, ShapeError
from meshwright.experimental.sparse.base import all_sparse, left_out
from meshwright.experimental.sparse.bcoo import BCOO, broadcast_at, require_sparse, taken
from meshwright.numpy.axes import normal_axes


def bcoo_sort_indices(mat: BCOO) -> BCOO:
    """Sort the elements by position."""
    require_sparse("bcoo_sort_indices", mat)
    return mat.sort_indices()


def bcoo_sum_duplicates(mat: BCOO, nse: int | None = None) -> BCOO:
    """Add the elements at equal positions; see :meth:`BCOO.sum_duplicates`."""
    require_sparse("bcoo_sum_duplicates", mat)
    return mat.sum_duplicates(nse, remove_zeros=False)


def bcoo_extract(sparr: BCOO, arr: Any, *, assume_unique: bool | None = None) -> BCOO:
    """The elements of a dense array at the positions of a sparse one of its shape.

    Where positions are stored twice, only the first is filled, so that the sum is the element, unless
    ``assume_unique``.

    Raises:
      ShapeError: the shapes differ.
    """
    require_sparse("bcoo_extract", sparr)
    dense = mnp.asarray(arr)
    if dense.shape != sparr.shape:
        raise ShapeError(f"bcoo_extract: shapes {sparr.shape} and {dense.shape} must be equal")
    data = taken(dense, sparr.indices)
    if not (sparr.unique_indices if assume_unique is None else assume_unique):
        data = mnp.where(_is_first(sparr), data, mnp.zeros((), data.dtype))
    return sparr.with_data(data)


def _is_first(mat: BCOO) -> Any:
    """Whether no element before has the same position; a bool for each."""
    number = _numbers(mat)
    return mnp.argmax(number[:, None] == number[None, :], 1) == mnp.arange(mat.nse)


def _numbers(mat: BCOO) -> Any:
    """Positions as integers, those past the end as the size of the array."""
    if mat.size >= 2**31:
        raise ShapeError(f"a sparse array of shape {mat.shape} has {mat.size} positions; expected fewer than 2**31")
    if not mat.ndim:
        return mnp.zeros(mat.nse, np.int32)
    flat = sum(mat.indices[:, d].astype(np.int32) * math.prod(mat.shape[d + 1 :]) for d in range(mat.ndim))
    return mnp.where(mat.inside, flat, mat.size)


def bcoo_reshape(
    mat: BCOO, *, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None, sharding: None = None
) -> BCOO:
    """The elements in row-major order in another shape, after a permutation of dimensions.

    Raises:
      ShapeError: another number of elements. ArgumentError: a sharding is given.
    """
    require_sparse("bcoo_reshape", mat)
    left_out("bcoo_reshape", sharding=sharding)
    if dimensions is not None:
        mat = mat.transpose(dimensions)
    sizes = as_integers("bcoo_reshape: new_sizes", new_sizes)
    if math.prod(sizes) != mat.size:
        raise ShapeError(f"bcoo_reshape: {mat.shape} has {mat.size} elements, {sizes} has {math.prod(sizes)}")
    rest = numbers = _numbers(mat)
    found = []
    for d in range(len(sizes)):
        below = max(math.prod(sizes[d + 1 :]), 1)
        found.append(rest // below)
        rest = rest % below
    past = numbers >= mat.size
    indices = mnp.stack(found, 1) if found else mnp.zeros((mat.nse, 0), np.int32)
    data = mat.data
    if sizes:
        indices = mnp.where(past[:, None], np.array(sizes, np.int32), indices)
    else:  # the only position is not past the end
        data = mnp.where(past, mnp.zeros((), mat.dtype), data)
    moved = data, indices.astype(mat.indices.dtype)
    unique = mat.unique_indices and bool(sizes)
    return BCOO(moved, shape=sizes, indices_sorted=mat.indices_sorted, unique_indices=unique)


def bcoo_squeeze(arr: BCOO, *, dimensions: Sequence[int]) -> BCOO:
    """Drop dimensions of size 1.

    Raises:
      ShapeError: a dimension has another size.
    """
    require_sparse("bcoo_squeeze", arr)
    dropped = normal_axes(dimensions, arr.ndim, "bcoo_squeeze")
    if any(arr.shape[d] != 1 for d in dropped):
        raise ShapeError(f"bcoo_squeeze: dimensions {tuple(dropped)} of {arr.shape} must be of size 1")
    return arr.sum(tuple(dropped)) if dropped else arr


def bcoo_broadcast_in_dim(
    mat: BCOO, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], sharding: None = None
) -> BCOO:
    """``lax.broadcast_in_dim`` of a sparse array: each element is stored once for each of its copies.

    Raises:
      ShapeError: the shapes do not fit. ArgumentError: a sharding is given.
    """
    require_sparse("bcoo_broadcast_in_dim", mat)
    left_out("bcoo_broadcast_in_dim", sharding=sharding)
    sizes, places = as_integers("shape", shape), as_integers("broadcast_dimensions", broadcast_dimensions)
    if len(places) != mat.ndim or any(s not in (1, sizes[p]) for s, p in zip(mat.shape, places)):
        raise ShapeError(f"bcoo_broadcast_in_dim: {mat.shape} does not fit dimensions {places} of {sizes}")
    repeated = [d for d in range(len(sizes)) if d not in places or mat.shape[places.index(d)] != sizes[d]]
    copies = np.stack([g.ravel() for g in np.indices([sizes[d] for d in repeated])], 1) if repeated else None
    count = 1 if copies is None else len(copies)
    data = mnp.repeat(mat.data, count)
    found: list[Any] = []
    for d in range(len(sizes)):
        if d in repeated:
            assert copies is not None
            found.append(mnp.tile(copies[:, repeated.index(d)].astype(np.int32), mat.nse))
        else:
            found.append(mnp.repeat(mat.indices[:, places.index(d)], count))
    if not sizes:
        return mat
    inside = mnp.repeat(mat.inside, count)[:, None]  # copies along a dimension of size 1 would be
    indices = mnp.where(inside, mnp.stack(found, 1), np.array(sizes, np.int32)).astype(mat.indices.dtype)
    return BCOO((data, indices), shape=sizes, unique_indices=mat.unique_indices)


def bcoo_concatenate(operands: Sequence[BCOO], *, dimension: int) -> BCOO:
    """Join sparse arrays along a dimension.

    Raises:
      ArgumentError: there are none. ShapeError: other dimensions differ.
    """
    if not operands:
        raise ArgumentError("bcoo_concatenate: expected at least one sparse array, got none")
    for mat in operands:
        require_sparse("bcoo_concatenate", mat)
    first = operands[0]
    (d,) = normal_axes(dimension, first.ndim, "bcoo_concatenate")
    if len({(*m.shape[:d], *m.shape[d + 1 :]) for m in operands}) > 1:
        raise ShapeError(f"bcoo_concatenate: shapes {[m.shape for m in operands]} differ beside dimension {d}")
    total, start = sum(m.shape[d] for m in operands), 0
    parts = []
    for mat in operands:
        column = mat.indices[:, d]
        moved = mnp.where(column < mat.shape[d], column + start, total)
        parts.append(mat.indices.at[:, d].set(moved))
        start += mat.shape[d]
    data = mnp.concatenate([m.data for m in operands])
    shape = (*first.shape[:d], total, *first.shape[d + 1 :])
    unique = all(m.unique_indices for m in operands)
    return BCOO((data, mnp.concatenate(parts)), shape=shape, unique_indices=unique)


def bcoo_slice(
    mat: BCOO, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None
) -> BCOO:
    """``lax.slice`` of a sparse array; as many elements are stored as before.

    Raises:
      ShapeError: the slice is not within the array.
    """
    require_sparse("bcoo_slice", mat)
    starts, limits = as_integers("start_indices", start_indices), as_integers("limit_indices", limit_indices)
    steps = (1,) * mat.ndim if strides is None else as_integers("strides", strides)
    inside = len(starts) == len(limits) == len(steps) == mat.ndim and all(
        0 <= a <= b <= n and s > 0 for a, b, n, s in zip(starts, limits, mat.shape, steps)
    )
    if not inside:
        raise ShapeError(f"bcoo_slice: start {starts}, limit {limits} and strides {steps} do not fit {mat.shape}")
    shape = tuple(-((a - b) // s) for a, b, s in zip(starts, limits, steps))
    return _cut(mat, starts, steps, shape)


def bcoo_dynamic_slice(mat: BCOO, start_indices: Sequence[Any], slice_sizes: Sequence[int]) -> BCOO:
    """``lax.dynamic_slice`` of a sparse array; starts are moved so that the slice is within it.

    Raises:
      ShapeError: the sizes do not fit.
    """
    require_sparse("bcoo_dynamic_slice", mat)
    sizes = as_integers("slice_sizes", slice_sizes)
    if len(sizes) != mat.ndim or any(not 0 <= s <= n for s, n in zip(sizes, mat.shape)):
        raise ShapeError(f"bcoo_dynamic_slice: slice_sizes {sizes} do not fit {mat.shape}")
    return cut_within(mat, [mnp.where(mnp.asarray(i) < 0, i + n, i) for i, n in zip(start_indices, mat.shape)], sizes)


def cut_within(mat: BCOO, starts: Sequence[Any], sizes: Sequence[int]) -> BCOO:
    """The slice from ``starts``, which are moved so that it is within the array."""
    moved = [mnp.clip(i, 0, n - s) for i, n, s in zip(starts, mat.shape, sizes)]
    return _cut(mat, moved, (1,) * mat.ndim, sizes)


def _cut(mat: BCOO, starts: Sequence[Any], steps: Sequence[int], shape: Sequence[int]) -> BCOO:
    """The elements at ``starts + steps * i`` for the positions ``i`` of ``shape``."""
    if not mat.ndim:
        return mat
    away = [mat.indices[:, d] - mnp.asarray(starts[d]).astype(mat.indices.dtype) for d in range(mat.ndim)]
    kept = [(a >= 0) & (a % s == 0) & (a // s < n) for a, s, n in zip(away, steps, shape)]
    inside = mnp.all(mnp.stack(kept), 0)
    found = mnp.stack([mnp.where(inside, a // s, n) for a, s, n in zip(away, steps, shape)], 1)
    data = mnp.where(inside, mat.data, mnp.zeros((), mat.dtype))
    return BCOO((data, found), shape=tuple(shape), unique_indices=mat.unique_indices)


def bcoo_rev(operand: BCOO, dimensions: Sequence[int]) -> BCOO:
    """Reverse dimensions of a sparse array."""
    require_sparse("bcoo_rev", operand)
    indices = operand.indices
    for d in normal_axes(tuple(dimensions), operand.ndim, "bcoo_rev"):
        column, size = indices[:, d], operand.shape[d]
        indices = indices.at[:, d].set(mnp.where(column < size, size - 1 - column, size))
    return BCOO((operand.data, indices), shape=operand.shape, unique_indices=operand.unique_indices)


def bcoo_multiply_sparse(lhs: BCOO, rhs: BCOO) -> BCOO:
    """The elementwise product of two sparse arrays of one shape, stored at the positions of ``lhs``.

    Raises:
      ShapeError: the shapes differ.
    """
    require_sparse("bcoo_multiply_sparse", lhs)
    require_sparse("bcoo_multiply_sparse", rhs)
    if lhs.shape != rhs.shape:
        raise ShapeError(f"bcoo_multiply_sparse: shapes {lhs.shape} and {rhs.shape} must be equal")
    mine, other = _numbers(lhs), _numbers(rhs)
    same = (mine[:, None] == other[None, :]) & (other < rhs.size)[None, :]
    factor = mnp.where(same, rhs.data[None, :], mnp.zeros((), rhs.dtype)).sum(1)
    return lhs.with_data(lhs.data * factor.astype(rhs.dtype))


def product_of_sparse(lhs: BCOO, rhs: BCOO, left: Sequence[int], right: Sequence[int]) -> BCOO:
    """The product of two sparse arrays, contracted along dimensions: an element for each pair of elements."""
    at = lhs.indices[:, np.array(left, int)], rhs.indices[:, np.array(right, int)]
    same = mnp.all(at[0][:, None] == at[1][None], 2) & lhs.inside[:, None] & rhs.inside[None]
    data = mnp.where(same, lhs.data[:, None] * rhs.data[None], mnp.zeros((), mnp.result_type(lhs.data, rhs.data)))
    frees = [[d for d in range(m.ndim) if d not in used] for m, used in ((lhs, left), (rhs, right))]
    rows = mnp.repeat(lhs.indices[:, np.array(frees[0], int)], rhs.nse, 0)
    cols = mnp.tile(rhs.indices[:, np.array(frees[1], int)], (lhs.nse, 1)).astype(rows.dtype)
    shape = [*(lhs.shape[d] for d in frees[0]), *(rhs.shape[d] for d in frees[1])]
    return BCOO((data.ravel(), mnp.concatenate([rows, cols], 1)), shape=shape)


def bcoo_dot_general_sampled(A: Any, B: Any, indices: Any, *, dimension_numbers: Any) -> Any:
    """The elements of ``lax.dot_general(A, B)`` at positions, shape (nse,); 0 for positions past the end.

    Raises:
      ArgumentError: there are batch dimensions.
    """
    (left, right), batch = dimension_numbers
    if any(map(len, batch)):
        raise ArgumentError(f"bcoo_dot_general_sampled: batch dimensions {batch} are not supported; use vmap")
    a, b = mnp.asarray(A), mnp.asarray(B)
    a, b = mnp.moveaxis(a, tuple(left), range(-len(left), 0)), mnp.moveaxis(b, tuple(right), range(-len(right), 0))
    free, where = a.ndim - len(left), mnp.asarray(indices)
    rows, cols = taken(a, where[:, :free]), taken(b, where[:, free:])
    return (rows * cols).reshape(where.shape[0], -1).sum(1)


def bcoo_update_layout(
    mat: BCOO, *, n_batch: int | None = None, n_dense: int | None = None, on_inefficient: str | None = "error"
) -> BCOO:
    """The same array: every dimension is sparse here.

    Raises:
      ArgumentError: ``n_batch`` or ``n_dense`` is not 0.
    """
    require_sparse("bcoo_update_layout", mat)
    all_sparse("bcoo_update_layout", n_batch, n_dense)
    return mat


def at_index(mat: BCOO, index: Any) -> BCOO:
    """``mat[index]``, for integers, slices, ``...`` and None.

    Raises:
      ArgumentTypeError: other indices.
      AxisError: more indices than dimensions, or an integer that is out of range.
    """
    entries = list(index) if isinstance(index, tuple) else [index]
    taken = sum(e is not None and e is not ... for e in entries)
    if taken > mat.ndim:
        raise AxisError(f"a sparse array of {mat.ndim} dimensions got {taken} indices; give at most one a dimension")
    if not any(e is ... for e in entries):
        entries.append(...)
    at = next(i for i, e in enumerate(entries) if e is ...)
    entries[at : at + 1] = [slice(None)] * (mat.ndim - taken)
    starts: list[int] = []
    limits: list[int] = []
    strides, turned, shape = list[int](), list[int](), list[int]()
    for entry in entries:
        if entry is None:
            shape.append(1)
            continue
        size = mat.shape[len(starts)]
        if isinstance(entry, slice):
            rows = range(size)[entry] or range(0)
            shape.append(len(rows))
            if rows.step < 0:
                turned.append(len(starts))
                rows = rows[::-1]
        elif isinstance(entry, (int, np.integer)) and not isinstance(entry, bool):
            rows = range(size)[int(entry) :][:1] if -size <= entry < size else range(0)
            if not rows:
                raise AxisError(f"index {entry} is out of range for a dimension of size {size} of a sparse array")
        else:
            raise ArgumentTypeError(f"a sparse array takes integers, slices, ... and None as indices, got {entry!r}")
        starts.append(rows.start)
        limits.append(rows[-1] + 1 if rows else rows.start)
        strides.append(rows.step)
    cut = bcoo_slice(mat, start_indices=starts, limit_indices=limits, strides=strides)
    return bcoo_reshape(bcoo_rev(cut, turned) if turned else cut, new_sizes=shape)


def added(lhs: Any, rhs: Any) -> Any:
    """The sum of two sparse arrays of one shape, which is sparse, or of a sparse and a dense one."""
    if isinstance(lhs, BCOO) and isinstance(rhs, BCOO):
        return lhs + rhs
    return (lhs.todense() if isinstance(lhs, BCOO) else lhs) + (rhs.todense() if isinstance(rhs, BCOO) else rhs)


def multiplied(lhs: Any, rhs: Any) -> BCOO:
    """The product of arrays of which one is sparse."""
    if isinstance(lhs, BCOO) and isinstance(rhs, BCOO):
        return bcoo_multiply_sparse(lhs, rhs)
    mat, dense = (lhs, rhs) if isinstance(lhs, BCOO) else (rhs, lhs)
    return mat.with_data(mat.data * broadcast_at(mat, dense))


def mapped(mat: BCOO, function: Any) -> BCOO:
    """A function that maps 0 to 0, of every element; equal positions are added before."""
    mat = _apart(mat)
    return mat.with_data(function(mat.data))


def _apart(mat: BCOO) -> BCOO:
    """The array with no position stored twice."""
    return mat if mat.unique_indices else mat.sum_duplicates(mat.nse, remove_zeros=False)


def divided(lhs: Any, rhs: Any) -> BCOO:
    """A sparse array divided by a dense one, as ``lax.div``.

    Raises:
      ArgumentTypeError: the divisor is sparse, so most of the result is not a number.
    """
    if isinstance(rhs, BCOO):
        raise ArgumentTypeError("div: the divisor is sparse, and divides by 0; use todense()")
    if not mnp.issubdtype(lhs.dtype, mnp.inexact):  # what is rounded does not add up
        lhs = _apart(lhs)
    return lhs.with_data(lax.div(lhs.data, broadcast_at(lhs, rhs)))
