"""``bcoo_*`` functions that move, join and combine the elements of sparse arrays.

All of them keep the number of stored elements static: elements that are cut off get positions past the end, which mean
nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

import meshwright.numpy as mnp
from meshwright import lax
from meshwright.core.expected import as_integers
from meshwright.errors import ArgumentError, ArgumentTypeError, AxisError, ShapeError
from meshwright.experimental.sparse.base import left_out
from meshwright.experimental.sparse.bcoo import BCOO, broadcast_at, require_sparse, taken
from meshwright.experimental.sparse.layout import (
    SparseEfficiencyError,
    SparseEfficiencyWarning,
    beside,
    checked,
    expanded,
    flat,
    per_batch,
    whole,
    with_batch,
    with_dense,
)
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
    data = per_batch(lambda m, x: taken(x, m.indices), sparr, dense)
    if not (sparr.unique_indices if assume_unique is None else assume_unique):
        data = mnp.where(beside(sparr, per_batch(_is_first, sparr)), data, mnp.zeros((), data.dtype))
    return sparr.with_data(data)


def _is_first(mat: BCOO) -> Any:
    """Whether no element before has the same position; a bool for each."""
    number = _numbers(mat)
    return mnp.argmax(number[:, None] == number[None, :], 1) == mnp.arange(mat.nse)


def _numbers(mat: BCOO) -> Any:
    """Positions as integers, those past the end as the size of the array."""
    sizes = mat.sparse_shape
    if math.prod(sizes) >= 2**31:
        raise ShapeError(f"a sparse array of shape {mat.shape} has too many positions; expected fewer than 2**31")
    if not sizes:
        return mnp.zeros(mat.nse, np.int32)
    numbers = sum(mat.indices[:, d].astype(np.int32) * math.prod(sizes[d + 1 :]) for d in range(len(sizes)))
    return mnp.where(mat.inside, numbers, math.prod(sizes))


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
    n = mat.n_batch
    if n and sizes[:n] == mat.shape[:n]:
        return per_batch(lambda m: bcoo_reshape(m, new_sizes=sizes[n:]), mat)  # type: ignore[no-any-return]
    mat = flat(mat)
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
    return arr.summed(tuple(dropped)) if dropped else arr


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
    mat = flat(mat)
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
    """Join sparse arrays along a dimension; all dimensions become sparse, unless they are so in the same way.

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
    layouts = {(m.n_batch, m.n_dense, d < m.n_batch and m.nse) for m in operands}
    if len(layouts) > 1 or d >= first.ndim - first.n_dense:
        operands = [flat(m) for m in operands]
    mats = [whole(m) for m in operands]
    n = mats[0].n_batch
    shape = [*first.shape[:d], sum(m.shape[d] for m in operands), *first.shape[d + 1 :]]
    unique = all(m.unique_indices for m in operands)
    parts, start = [m.indices for m in mats], 0
    for i, mat in enumerate(mats if d >= n else ()):
        column = mat.indices[..., d - n]
        moved = mnp.where(column < mat.shape[d], column + start, shape[d])
        parts[i] = mat.indices.at[..., d - n].set(moved)
        start += mat.shape[d]
    indices, data = (mnp.concatenate(xs, min(d, n)) for xs in (parts, [m.data for m in mats]))
    return mats[0].changed(data, indices, shape, unique)


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
    mat, given = whole(mat), list(zip(starts, steps, shape))
    n, s = mat.n_batch, mat.n_batch + mat.n_sparse
    data, found = mat.data, mat.indices
    for d, (start, step, count) in enumerate(given):
        if d < n or d >= s:
            rows = mnp.asarray(start) + step * np.arange(count)
            data = mnp.take(data, rows, d if d < n else d - mat.n_sparse + 1, mode="clip")
            found = mnp.take(found, rows, d, mode="clip") if d < n else found
    if n < s:
        away = [found[..., d] - mnp.asarray(given[n + d][0]).astype(found.dtype) for d in range(s - n)]
        kept = [(a >= 0) & (a % step == 0) & (a // step < count) for a, (_, step, count) in zip(away, given[n:s])]
        inside = mnp.all(mnp.stack(kept), 0)
        found = mnp.stack([mnp.where(inside, a // step, count) for a, (_, step, count) in zip(away, given[n:s])], -1)
        data = mnp.where(beside(mat, inside), data, mnp.zeros((), mat.dtype))
    return mat.changed(data, found, shape)


def bcoo_rev(operand: BCOO, dimensions: Sequence[int]) -> BCOO:
    """Reverse dimensions of a sparse array."""
    require_sparse("bcoo_rev", operand)
    operand = whole(operand)
    data, indices, n = operand.data, operand.indices, operand.n_batch
    for d in normal_axes(tuple(dimensions), operand.ndim, "bcoo_rev"):
        if d < n:
            data, indices = mnp.flip(data, d), mnp.flip(indices, d)
        elif d >= n + operand.n_sparse:
            data = mnp.flip(data, d - operand.n_sparse + 1)
        else:
            column, size = indices[..., d - n], operand.shape[d]
            indices = indices.at[..., d - n].set(mnp.where(column < size, size - 1 - column, size))
    return operand.changed(data, indices)


def bcoo_multiply_sparse(lhs: BCOO, rhs: BCOO) -> BCOO:
    """The elementwise product of two sparse arrays of one shape, stored at the positions of ``lhs``; all dimensions
    become sparse, unless both have the same batch dimensions and no dense ones.

    Raises:
      ShapeError: the shapes differ.
    """
    require_sparse("bcoo_multiply_sparse", lhs)
    require_sparse("bcoo_multiply_sparse", rhs)
    if lhs.shape != rhs.shape:
        raise ShapeError(f"bcoo_multiply_sparse: shapes {lhs.shape} and {rhs.shape} must be equal")
    if lhs.n_batch != rhs.n_batch or lhs.n_dense or rhs.n_dense:
        lhs, rhs = flat(lhs), flat(rhs)
    return per_batch(_multiplied, lhs, whole(rhs))  # type: ignore[no-any-return]


def _multiplied(lhs: BCOO, rhs: BCOO) -> BCOO:
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
    """The same array with other numbers of batch and dense dimensions.

    Args:
      on_inefficient: what is done where more would be stored than before: ``"error"``, ``"warn"`` or None.

    Raises:
      SparseEfficiencyError: more would be stored.
      ArgumentError: there are not so many dimensions, or ``on_inefficient`` is something else.

    Example:
      >>> from meshwright.experimental import sparse
      >>> m = sparse.BCOO.fromdense(mnp.array([[0.0, 2.0], [3.0, 0.0]]), n_batch=1)
      >>> sparse.bcoo_update_layout(m, n_batch=0).indices
      Array([[0, 1],
             [1, 0]], dtype=int32)
    """
    require_sparse("bcoo_update_layout", mat)
    if on_inefficient not in ("error", "warn", None):
        raise ArgumentError(
            f'bcoo_update_layout: on_inefficient must be "error", "warn" or None, got {on_inefficient!r}'
        )
    batch, dense = checked("bcoo_update_layout", mat.ndim, n_batch, n_dense, (mat.n_batch, mat.n_dense))
    found = with_dense(with_batch(mat, min(batch, mat.n_batch)), min(dense, mat.n_dense))
    found = with_batch(with_dense(found, dense), batch)
    before, after = (math.prod(m.data.shape) for m in (whole(mat), found))
    if after > before and on_inefficient is not None:
        text = (
            f"bcoo_update_layout: {found!r} stores {after} numbers, {mat!r} stores {before}; on_inefficient=None makes "
            "it nevertheless"
        )
        if on_inefficient == "error":
            raise SparseEfficiencyError(text)
        warnings.warn(text, SparseEfficiencyWarning, stacklevel=2)
    return found


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
    new, dropped, starts = list[int](), list[int](), list[int]()
    limits, strides, turned = list[int](), list[int](), list[int]()
    for entry in entries:
        if entry is None:
            new.append(len(starts) - len(dropped) + len(new))
            continue
        size = mat.shape[len(starts)]
        if isinstance(entry, slice):
            rows = range(size)[entry] or range(0)
            if rows.step < 0:
                turned.append(len(starts))
                rows = rows[::-1]
        elif isinstance(entry, (int, np.integer)) and not isinstance(entry, bool):
            rows = range(size)[int(entry) :][:1] if -size <= entry < size else range(0)
            if not rows:
                raise AxisError(f"index {entry} is out of range for a dimension of size {size} of a sparse array")
            dropped.append(len(starts))
        else:
            raise ArgumentTypeError(f"a sparse array takes integers, slices, ... and None as indices, got {entry!r}")
        starts.append(rows.start)
        limits.append(rows[-1] + 1 if rows else rows.start)
        strides.append(rows.step)
    cut = bcoo_slice(mat, start_indices=starts, limit_indices=limits, strides=strides)
    found = bcoo_squeeze(bcoo_rev(cut, turned) if turned else cut, dimensions=dropped)
    for d in new:
        found = expanded(found, d)
    return found


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
