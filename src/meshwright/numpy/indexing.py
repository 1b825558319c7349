"""Reading elements: ``x[index]``, take and take_along_axis. Static indices become slices; only index arrays gather."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.window_index import has_windows
from meshwright.errors import ArgumentError, ShapeError
from meshwright.ir.tracing import Tracer, typeof
from meshwright.numpy.axes import normal_axis
from meshwright.numpy.creation import asarray
from meshwright.numpy.index_plan import Block, IndexPlan, plan_index
from meshwright.numpy.promotion import as_positions, scalar_like, spread
from meshwright.numpy.starts import as_start, from_start
from meshwright.numpy.windows import window_of
from meshwright.ops.elementwise.table import convert
from meshwright.ops.indexing.dynamic_slice import dynamic_slice
from meshwright.ops.indexing.gather_scatter import gather
from meshwright.ops.indexing.indexed import GatherDimensionNumbers, GatherScatterMode
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.ops.shape.rearrange import expand_dims, reshape, rev, squeeze
from meshwright.ops.shape.slice_pad import concatenate, slice_

CLIP = GatherScatterMode.CLIP
#: XLA's treatment of out-of-range positions, as in JAX: reads are clipped, their cotangents are dropped.
_INSIDE = GatherScatterMode.PROMISE_IN_BOUNDS


# --- basic --------------------------------------------------------------------------------------------------
def read_block(x: Any, block: Block) -> Any:
    """Read the rows of a basic index, without dropped dimensions."""
    x = slice_(x, block.start, block.limit, block.stride)
    x = rev(x, block.reverse)
    return squeeze(x, block.drop)


@lru_cache(maxsize=4096)
def _integer_plan(shape: tuple[int, ...], index: int | tuple[int, ...]) -> IndexPlan:
    return plan_index(shape, index)


def getitem(x: Any, index: Any) -> Any:
    """``x[index]`` with NumPy's semantics; out-of-range positions are clipped, as in JAX.

    Raises:
      IndexingError: not an index, or too many entries. ConcretizationTypeError: a traced mask.
    """
    if has_windows(index):
        window = window_of(x, index)
        return getitem(window.read(), window.rest)
    shape = x.aval.shape
    integers = type(index) is int or (type(index) is tuple and all(type(i) is int for i in index))
    plan = (_integer_plan if integers else plan_index)(shape, index)
    return read(x, plan, _INSIDE, None, False, False)


def read(x: Any, plan: IndexPlan, mode: GatherScatterMode, fill_value: Any, sorted_: bool, unique: bool) -> Any:
    """Read the elements that a plan selects."""
    if typeof(x).shape != plan.block.shape:  # a bool scalar added a dimension
        x = reshape(x, plan.block.shape)
    block = plan.block
    if not plan.indexed:
        if plan.out_shape == block.kept:
            return read_block(x, block)
        x = rev(slice_(x, block.start, block.limit, block.stride), block.reverse)
        return reshape(x, plan.out_shape)
    x = read_block(x, block)
    if 0 in plan.out_shape:  # nothing is read, and the operand may be empty
        return broadcast_in_dim(scalar_like(0, x), plan.out_shape, ())
    if plan.only_scalars and mode is not GatherScatterMode.FILL_OR_DROP:
        x = _read_scalars(x, plan)
    else:
        numbers, sizes = gather_numbers(plan, typeof(x).shape)
        x = gather(
            x, index_vectors(plan, typeof(x).shape), numbers, sizes, mode=mode, fill_value=fill_value,
            indices_are_sorted=sorted_, unique_indices=unique,
        )  # fmt: skip
    return reshape(x, plan.out_shape)


# --- index arrays -------------------------------------------------------------------------------------------
def scalar_starts(plan: IndexPlan, shape: tuple[int, ...]) -> list[Any]:
    """One start per dimension of the block, for dynamic_slice."""
    starts: list[Any] = [np.int32(0)] * len(shape)
    for d, index in zip(plan.indexed, plan.arrays):
        starts[d] = as_start(index, shape[d], plan.wrap)
    return starts


def _read_scalars(x: Any, plan: IndexPlan) -> Any:
    shape = typeof(x).shape
    sizes = [1 if d in plan.indexed else n for d, n in enumerate(shape)]
    return squeeze(dynamic_slice(x, scalar_starts(plan, shape), sizes, allow_negative_indices=False), plan.indexed)


def index_vectors(plan: IndexPlan, shape: tuple[int, ...]) -> Any:
    """Index arrays, broadcast and stacked along a last dimension."""
    columns = []
    for d, index in zip(plan.indexed, plan.arrays):
        index = from_start(index, shape[d], plan.wrap)
        if isinstance(index, (np.ndarray, np.generic)):
            columns.append(np.broadcast_to(index, plan.batch_shape)[..., None])
        else:
            columns.append(expand_dims(spread(index, plan.batch_shape), (len(plan.batch_shape),)))
    if len(columns) == 1:
        return columns[0]
    if all(isinstance(c, np.ndarray) for c in columns):
        return np.concatenate(columns, -1)
    common = np.result_type(*(typeof(c).dtype for c in columns))
    return concatenate([convert(c, common) for c in columns], len(plan.batch_shape))


def gather_numbers(plan: IndexPlan, shape: tuple[int, ...]) -> tuple[GatherDimensionNumbers, tuple[int, ...]]:
    """The dimension numbers and slice sizes of a plan's gather from the block."""
    n = len(plan.batch_shape)
    result_ndim = len(shape) - len(plan.indexed) + n
    offset = tuple(d for d in range(result_ndim) if not plan.place <= d < plan.place + n)
    collapsed = tuple(sorted(plan.indexed))
    sizes = tuple(1 if d in plan.indexed else s for d, s in enumerate(shape))
    return GatherDimensionNumbers(offset, collapsed, plan.indexed), sizes


# --- take ---------------------------------------------------------------------------------------------------
_MODES = {None: _INSIDE, "clip": CLIP, "fill": GatherScatterMode.FILL_OR_DROP, "drop": GatherScatterMode.FILL_OR_DROP,
          "promise_in_bounds": GatherScatterMode.PROMISE_IN_BOUNDS}  # fmt: skip


def read_mode(mode: Any, name: str, others: tuple[str, ...] = ()) -> GatherScatterMode:
    """The gather mode for a ``mode=`` argument; None clips. ``others`` are modes that the caller handles itself.

    Raises:
      ArgumentError: an unknown mode.
    """
    if isinstance(mode, GatherScatterMode):
        return mode
    if mode not in _MODES:
        known = ", ".join(repr(m) for m in (*filter(None, _MODES), *others))
        raise ArgumentError(f"{name}: mode must be one of {known}, got {mode!r}")
    return _MODES[mode]


def take(
    a: Any, indices: Any, axis: int | None = None, out: None = None, mode: str | None = None,
    unique_indices: bool = False, indices_are_sorted: bool = False, fill_value: Any = None,
) -> Any:  # fmt: skip
    """Elements at ``indices`` along ``axis``, or of the flattened array without one.

    Args:
      a: array of shape (..., n, ...).
      indices: integers of any shape, which replaces the dimension.
      mode: for out-of-range positions: "fill" (default; NaN, or the least integer), "clip" (negative positions are out
        of range), "wrap".

    >>> take(np.array([10, 20, 30]), np.array([2, 0])).tolist()
    [30, 10]
    """
    x, index = asarray(a), indices if isinstance(indices, (Tracer, np.ndarray)) else asarray(indices)
    index = as_positions(index) if dtypes.is_bool(typeof(index).dtype) else index  # bools are numbers here, not a mask
    if out is not None:
        raise ArgumentError("take: out= is not supported, arrays are immutable; use the result")
    if axis is None:
        x, axis = reshape(x, (typeof(x).size,)), 0
    d = normal_axis(axis, typeof(x).ndim, "take")
    if mode == "wrap":
        index, mode = _wrap(index, typeof(x).shape[d]), "promise_in_bounds"
    plan = plan_index(typeof(x).shape, (slice(None),) * d + (index,), wrap=mode != "clip")
    return read(x, plan, read_mode(mode or "fill", "take", ("wrap",)), fill_value, indices_are_sorted, unique_indices)


def _wrap(index: Any, size: int) -> Any:
    return as_positions(asarray(index)) % max(size, 1)


def take_along_axis(
    arr: Any, indices: Any, axis: int | None = -1, mode: Any = None, fill_value: Any = None, *,
    wrap_negative_indices: bool | None = None,
) -> Any:  # fmt: skip
    """For each position of ``indices``, the element of ``arr`` at that position with ``axis`` replaced by the index.

    Args:
      arr: array. indices: integers with the same number of dimensions; other dimensions have equal sizes or 1.
      wrap_negative_indices: whether negative indices count from the end; default: yes, unless the mode promises valid
        indices.

    Raises:
      ShapeError: different numbers of dimensions, or sizes that do not broadcast.

    >>> take_along_axis(np.array([[1, 2], [3, 4]]), np.array([[1], [0]]), axis=1).tolist()
    [[2], [3]]
    """
    x, index = asarray(arr), indices if isinstance(indices, (Tracer, np.ndarray)) else asarray(indices)
    if axis is None:
        x, axis = reshape(x, (typeof(x).size,)), 0
    sx, si = typeof(x).shape, typeof(index).shape
    d = normal_axis(axis, len(sx), "take_along_axis")
    if len(sx) != len(si) or any(a != b and 1 not in (a, b) for e, (a, b) in enumerate(zip(sx, si)) if e != d):
        raise ShapeError(
            f"take_along_axis: array {sx} and indices {si} must have equally many dimensions, of equal sizes (or 1) "
            f"but for axis {d}"
        )
    shape = tuple(si[e] if e == d else max(a, b) if 0 not in (a, b) else 0 for e, (a, b) in enumerate(zip(sx, si)))
    if 0 in shape:  # nothing is read, and the operand may be empty: the result is then strongly typed
        return broadcast_in_dim(scalar_like(0, x) if sx[d] else np.zeros((), typeof(x).dtype), shape, ())
    x = spread(x, [sx[e] if e == d else s for e, s in enumerate(shape)])
    wrap = mode != "promise_in_bounds" if wrap_negative_indices is None else wrap_negative_indices
    index = spread(from_start(index, sx[d], wrap), shape)
    others = tuple(e for e in range(len(shape)) if e != d)
    numbers = GatherDimensionNumbers((), (d,), (d,), others, others)
    chosen = read_mode("fill" if mode is None else mode, "take_along_axis")
    return gather(
        x, expand_dims(index, (len(shape),)), numbers, (1,) * len(shape), mode=chosen, fill_value=fill_value
    )  # fmt: skip
