"""dynamic_slice and dynamic_update_slice: one window at a dynamic position; each is the other's transpose.

The window is always inside the array, as its position is clamped. If a dimension is split, each device reads or writes
only its own tile, and only as many rows as the window has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.static import static_index, static_shape
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Localizer
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Linear, Op, Tangent, Zero
from meshwright.ir.reading import Reader, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.monoid import nothing, picked_kind
from meshwright.ops.elementwise.table import (
    add,
    and_,
    convert,
    eq,
    ge,
    le,
    lt,
    materialize,
    not_,
    or_,
    scalar_like,
    select,
    sub,
)
from meshwright.ops.indexing.gather_scatter import Gather, Scatter, ScatterDimensionNumbers
from meshwright.ops.indexing.indexed import GatherDimensionNumbers, GatherScatterMode
from meshwright.ops.indexing.tile_windows import TileWindow, known_place
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota
from meshwright.ops.shape.rearrange import above, move_dim, reshape, squeeze
from meshwright.ops.shape.slice_pad import concatenate, pad, slice_in_dim
from meshwright.sharding.rule import REDUCTION, WINDOW, ShardingRule, make_rule

Sizes = tuple[int, ...]


def _insert(values: Sequence[Any], dim: int, value: Any) -> tuple[Any, ...]:
    return (*values[:dim], value, *values[dim:])


def _check(name: str, x: ShapedArray, sizes: Sequence[int], starts: Sequence[ShapedArray]) -> None:
    if len(sizes) != x.ndim or any(not 0 <= k <= s for k, s in zip(sizes, x.shape)):
        raise ShapeError(f"{name}: a window of shape {tuple(sizes)} does not fit in an operand of shape {x.shape}")
    if len(starts) != x.ndim:
        raise ShapeError(f"{name}: operand {x} needs {x.ndim} start indices, got {len(starts)}")
    for i, start in enumerate(starts):
        if start.shape != () or not dtypes.is_integer(start.dtype) or start.dtype != starts[0].dtype:
            raise DTypeError(f"{name}: start indices must be integer scalars of one dtype, index {i} is {start}")


def batched(x: Any, dim: int | None, target: int, size: int) -> Any:
    """``x`` with its batch dimension at ``target``, broadcast along a new one if it has none."""
    if dim is not None:
        return move_dim(x, dim, target)
    shape = typeof(x).shape
    return broadcast_in_dim(x, _insert(shape, target, size), [above(d, target) for d in range(len(shape))])


def _index_vectors(starts: Sequence[Any], dims: Sequence[int | None], size: int) -> Any:
    """Start indices, some of them batched, as ``[batch, operand dimension]``."""
    columns = [reshape(batched(s, d, 0, size), (size, 1)) for s, d in zip(starts, dims)]
    return concatenate(columns, 1)


def _shifted(x: Any, dim: int, start: Any, length: int) -> Any:
    """Rows ``[start, start + length)`` along ``dim``; rows outside the array are :func:`nothing`."""
    shape = typeof(x).shape
    config = [(0, 0, 0)] * len(shape)
    config[dim] = (length, length, 0)
    starts: list[Any] = [np.int32(0)] * len(shape)
    starts[dim] = add(start, np.int32(length))
    # Clamping is harmless: a window that misses all rows ends up in the padding on one side.
    padded = pad(x, nothing(typeof(x).dtype), config)
    return DynamicSlice((*shape[:dim], length, *shape[dim + 1 :])).bind(padded, *starts)


# --- dynamic_slice ------------------------------------------------------------------------------------------
def _outside(starts: Sequence[Any], shape: Sequence[int], sizes: Sequence[int]) -> Any:
    """Whether a window is partly outside the array."""
    beyond = [
        or_(lt(s, scalar_like(0, s)), not_(le(s, scalar_like(d - k, s)))) for s, d, k in zip(starts, shape, sizes)
    ]
    return reduce(or_, beyond)


@dataclass(frozen=True)
class DynamicSlice(Op):
    """The window of ``slice_sizes`` that starts at the scalar operands after the first."""

    slice_sizes: Sizes
    name: ClassVar[str] = "dynamic_slice"
    takes_keys: ClassVar[bool] = True
    computes: ClassVar[bool] = False
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)
    moves_only: ClassVar[bool] = True

    def infer(self, x: ShapedArray, *starts: ShapedArray) -> ShapedArray:
        _check(self.name, x, self.slice_sizes, starts)
        return x.update(shape=self.slice_sizes)

    def index_operands(self, num_operands: int) -> range:
        return range(1, num_operands)

    def out_of_bounds(self, *operands: Any) -> Any:
        x, *starts = operands
        return _outside(starts, typeof(x).shape, self.slice_sizes)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        y = self.bind(*primals)
        t = tangents[0]
        return y, Zero(typeof(y)) if isinstance(t, Zero) else self.bind(t, *primals[1:])

    def transpose(self, ct: Any, x: Any, *starts: Any) -> Cotangents:
        return [DynamicUpdateSlice().bind(materialize(Zero(x.aval)), ct, *starts), *[None] * len(starts)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        x, *starts = args
        dx, *ds = dims
        if all(d is None for d in ds):
            assert dx is not None
            zero = scalar_like(0, starts[0]) if starts else np.int32(0)
            return DynamicSlice(_insert(self.slice_sizes, dx, axis.size)).bind(x, *_insert(starts, dx, zero)), dx
        place = 0 if dx is None else dx
        ndim = len(self.slice_sizes)
        offset = tuple(above(d, place) for d in range(ndim))
        if dx is None:
            numbers, sizes = GatherDimensionNumbers(offset, (), tuple(range(ndim))), self.slice_sizes
        else:
            numbers = GatherDimensionNumbers(offset, (), offset, (dx,), (0,))
            sizes = _insert(self.slice_sizes, dx, min(1, axis.size))
        indices = _index_vectors(starts, ds, axis.size)
        return Gather(numbers, sizes, GatherScatterMode.CLIP).bind(x, indices), place

    def sharding_rule(self, x: ShapedArray, *starts: ShapedArray) -> ShardingRule:
        names = [f"d{d}" for d in range(x.ndim)]
        whole = [k == s for k, s in zip(self.slice_sizes, x.shape)]
        result = [n if w else None for n, w in zip(names, whole)]
        kinds = {n: REDUCTION for n, w in zip(names, whole) if not w}
        sizes = dict(zip(names, x.shape))
        return make_rule([names, *[[]] * len(starts)], [result], sizes, kinds, picked_kind(x.dtype))

    def typing_rule(self, x: ShapedArray, *starts: ShapedArray) -> ShardingRule:
        """The rule of a slice, whose windows are split as the operand is."""
        names = [f"d{d}" for d in range(x.ndim)]
        kinds = {n: WINDOW for n, k, s in zip(names, self.slice_sizes, x.shape) if k != s}
        return make_rule([names, *[[]] * len(starts)], [names], dict(zip(names, x.shape)), kinds)

    def localize(self, ctx: Localizer, x: ArrayLike, *starts: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        shape, sizes = ctx.in_avals[0].shape, list(self.slice_sizes)
        begin: list[Any] = list(starts)
        windows = []
        for d, (k, size) in enumerate(zip(self.slice_sizes, shape)):
            if not ctx.is_split(0, d):
                continue
            if k == size:
                sizes[d] = ctx.in_local_shapes[0][d]
                continue
            window = TileWindow.of(ctx, d, starts[d], k)
            windows.append(window)
            sizes[d] = window.rows
            begin[d] = convert(window.near, typeof(starts[d]).dtype)
        x = DynamicSlice(tuple(sizes)).bind(x, *begin)
        for w in windows:
            x = _shifted(x, w.dim, sub(np.int32(0), w.shift), w.length)
        return x

    def emit(self, b: Builder, x: Emitted, *starts: Emitted) -> Emitted | Sequence[Emitted]:
        return b.op("stablehlo.dynamic_slice", [x, *starts], b.out_avals, slice_sizes=self.slice_sizes)[0]


# --- dynamic_update_slice -----------------------------------------------------------------------------------
class Inside:
    """Collects masks for the elements of an update that are written."""

    def __init__(self) -> None:
        self.masks: list[tuple[tuple[int, ...], Any]] = []

    def rows(self, dim: int, number: Any, low: int, high: int) -> None:
        """Select elements along ``dim`` whose ``number`` is in ``[low, high)``."""
        self.masks.append(((dim,), and_(ge(number, np.int32(low)), lt(number, np.int32(high)))))

    def tile(self, here: Any) -> None:
        """Select elements only if the scalar ``here`` is true."""
        self.masks.append(((), here))

    def written(self, x: Any, update: Any, starts: Sequence[Any]) -> Any:
        """``x`` with the selected elements of ``update``, written at ``starts``."""
        if self.masks:
            shape = typeof(update).shape
            alike = not any(dims for dims, _ in self.masks)
            masks = [mask if alike else broadcast_in_dim(mask, shape, dims) for dims, mask in self.masks]
            update = select(reduce(and_, masks), update, DynamicSlice(shape).bind(x, *starts))
        return DynamicUpdateSlice().bind(x, update, *starts)


@dataclass(frozen=True)
class DynamicUpdateSlice(Op):
    """The first operand with the window that starts at the scalar operands replaced by the second."""

    name: ClassVar[str] = "dynamic_update_slice"
    update_operand: ClassVar[int | None] = 1
    takes_keys: ClassVar[bool] = True
    computes: ClassVar[bool] = False
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0, 1),)

    def infer(self, x: ShapedArray, update: ShapedArray, *starts: ShapedArray) -> ShapedArray:
        if update.dtype != x.dtype:
            raise DTypeError(
                f"dynamic_update_slice: operand {x} and update {update} must have one dtype; convert the update"
            )
        _check(self.name, x, update.shape, starts)
        return x.strong()

    def index_operands(self, num_operands: int) -> range:
        return range(2, num_operands)

    def out_of_bounds(self, *operands: Any) -> Any:
        x, update, *starts = operands
        return _outside(starts, typeof(x).shape, typeof(update).shape)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        y = self.bind(*primals)
        if isinstance(tangents[0], Zero) and isinstance(tangents[1], Zero):
            return y, Zero(typeof(y))
        return y, self.bind(materialize(tangents[0]), materialize(tangents[1]), *primals[2:])

    def transpose(self, ct: Any, x: Any, update: Any, *starts: Any) -> Cotangents:
        aval = typeof(update)
        ct_x = self.bind(ct, materialize(Zero(aval)), *starts) if isinstance(x, Linear) else None
        ct_update = DynamicSlice(aval.shape).bind(ct, *starts) if isinstance(update, Linear) else None
        return [ct_x, ct_update, *[None] * len(starts)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        x, update, *starts = args
        dx, du, *ds = dims
        place = next((d for d in (dx, du) if d is not None), 0)
        x, update = batched(x, dx, place, axis.size), batched(update, du, place, axis.size)
        if all(d is None for d in ds):
            zero = scalar_like(0, starts[0]) if starts else np.int32(0)
            return self.bind(x, update, *_insert(starts, place, zero)), place
        window = tuple(above(d, place) for d in range(len(starts)))
        numbers = ScatterDimensionNumbers(window, (), window, (place,), (0,))
        op = Scatter(numbers, unique_indices=True, mode=GatherScatterMode.CLIP)
        return op.bind(x, _index_vectors(starts, ds, axis.size), update), place

    def sharding_rule(self, x: ShapedArray, update: ShapedArray, *starts: ShapedArray) -> ShardingRule:
        names = [f"d{d}" for d in range(x.ndim)]
        whole = [k == s for k, s in zip(update.shape, x.shape)]
        kinds = {n: WINDOW for n, w in zip(names, whole) if not w}
        updates = [n if w else None for n, w in zip(names, whole)]
        return make_rule([names, updates, *[[]] * len(starts)], [names], dict(zip(names, x.shape)), kinds)

    def localize(
        self, ctx: Localizer, x: ArrayLike, update: ArrayLike, *starts: ArrayLike
    ) -> ArrayLike | Sequence[ArrayLike]:
        shape, lengths = ctx.in_avals[0].shape, ctx.in_avals[1].shape
        split = [d for d in range(len(shape)) if ctx.is_split(0, d) and lengths[d] != shape[d]]
        if not split:
            return self.bind(x, update, *starts)
        begin, inside = list(starts), Inside()
        for d in split:
            place = known_place(ctx, d, starts[d], lengths[d])
            if place is not None:  # the device with this tile writes it
                begin[d] = scalar_like(place[1], starts[d])
                inside.tile(eq(ctx.tile_index(ctx.axes(0, d)), np.int32(place[0])))
                continue
            w = TileWindow.of(ctx, d, starts[d], lengths[d])
            begin[d] = convert(w.near, typeof(starts[d]).dtype)
            update = _shifted(update, d, w.shift, w.rows)
            inside.rows(d, add(iota(np.int32, (w.rows,), 0), w.shift), 0, w.length)
        return inside.written(x, update, begin)

    def emit(self, b: Builder, x: Emitted, update: Emitted, *starts: Emitted) -> Emitted | Sequence[Emitted]:
        return b.op("stablehlo.dynamic_update_slice", [x, update, *starts], b.out_avals)[0]


# --- functions ----------------------------------------------------------------------------------------------
def _entries(name: str, starts: Any) -> list[Any]:
    """The scalars of a 1-D array of start indices."""
    aval = typeof(starts)
    if aval.ndim != 1:
        raise ShapeError(f"{name}: start_indices must be a sequence of scalars or a 1-D array, got {aval}")
    return [squeeze(slice_in_dim(starts, i, i + 1), [0]) for i in range(aval.shape[0])]


def _start_indices(name: str, starts: Any, shape: Sequence[int], allowed: bool | Sequence[bool]) -> list[Any]:
    """Scalars of equal dtype; negative ones count from the end where allowed."""
    if not isinstance(starts, (tuple, list)):
        starts = _entries(name, starts)
    starts = list(starts)
    if len(starts) != len(shape):
        raise ShapeError(
            f"{name}: an operand of shape {tuple(shape)} needs {len(shape)} start indices, got {len(starts)}"
        )
    index_dtypes = {typeof(s).dtype for s in starts if not isinstance(s, int)}
    for s in starts:
        if not dtypes.is_integer(typeof(s).dtype):
            raise DTypeError(f"{name}: start indices must be integers, got {typeof(s)}; convert them with .astype(int)")
    wide = any(dtypes.bit_width(d) == 64 for d in index_dtypes)
    dtype = index_dtypes.pop() if len(index_dtypes) == 1 else dtypes.int64 if wide else dtypes.int32
    if dtypes.bit_width(dtype) < 32:
        dtype = dtypes.int32
    result = []
    counts_back = [allowed] * len(shape) if isinstance(allowed, (bool, np.bool_)) else list(allowed)
    if len(counts_back) != len(shape):
        raise ArgumentError(
            f"{name}: allow_negative_indices must be a bool, or one for each of {len(shape)} dimensions, got {allowed}"
        )
    for start, size, allow_negative_indices in zip(starts, shape, counts_back):
        if isinstance(start, (int, np.integer)):
            value = int(start)
            result.append(np.array(value + size if value < 0 and allow_negative_indices else value, dtype))
            continue
        start = convert(start, dtype)
        if allow_negative_indices and dtypes.is_signed(dtype):
            start = select(lt(start, scalar_like(0, start)), add(start, scalar_like(size, start)), start)
        result.append(start)
    return result


def dynamic_slice(
    operand: Any, start_indices: Any, slice_sizes: Sequence[int], *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Any:  # fmt: skip
    """The window of ``slice_sizes`` at ``start_indices``, clamped so that it is inside the operand.

    ``start_indices`` are scalars, possibly traced, or a 1-D array, one per dimension of ``operand``. Negative indices
    count from the end, unless ``allow_negative_indices`` is False (or False for their dimension).

    Raises:
      ShapeError: the window is larger than the operand, or the number of start indices is not its rank.
      DTypeError: start indices are not integers.

    Example:
      >>> x = jnp.arange(12).reshape(3, 4)
      >>> lax.dynamic_slice(x, (1, 2), (2, 2)).tolist(), lax.dynamic_slice(x, (2, -1), (2, 2)).tolist()
      ([[6, 7], [10, 11]], [[6, 7], [10, 11]])
    """
    starts = _start_indices("dynamic_slice", start_indices, typeof(operand).shape, allow_negative_indices)
    return DynamicSlice(static_shape(slice_sizes, "dynamic_slice")).bind(operand, *starts)


def dynamic_update_slice(
    operand: Any, update: Any, start_indices: Any, *, allow_negative_indices: bool | Sequence[bool] = True
) -> Any:
    """``operand`` with the window at ``start_indices``, clamped to be inside, replaced by ``update``.

    ``update`` has the window's shape and as many dimensions as ``operand``. Start indices are those of
    :func:`dynamic_slice`.

    Raises:
      ShapeError: the update is larger than the operand, or the number of start indices is not its rank.
      DTypeError: start indices are not integers, or the update has another dtype.

    Example:
      >>> lax.dynamic_update_slice(jnp.zeros((2, 4), int), jnp.array([[5, 7]]), (1, 3)).tolist()
      [[0, 0, 0, 0], [0, 0, 5, 7]]
    """
    starts = _start_indices("dynamic_update_slice", start_indices, typeof(operand).shape, allow_negative_indices)
    return DynamicUpdateSlice().bind(operand, update, *starts)


def _along(x: Any, axis: int, start: Any, name: str) -> tuple[int, list[Any]]:
    """The axis, counted from the front, and start indices that are zero for other axes."""
    ndim, axis = typeof(x).ndim, static_index(axis, name, "an axis")
    if not -ndim <= axis < ndim:
        raise ShapeError(f"{name}: axis {axis} does not exist in shape {typeof(x).shape}")
    starts: list[Any] = [0] * ndim
    starts[axis] = start
    return axis % ndim, starts


def dynamic_slice_in_dim(
    operand: Any, start_index: Any, slice_size: int, axis: int = 0, *, allow_negative_indices: bool = True
) -> Any:
    """``slice_size`` elements of ``operand`` along ``axis`` from the scalar ``start_index`` on.

    ``start_index`` is clamped so that they are inside. A negative one counts from the end.

    Raises:
      ShapeError: the axis is out of range, or has fewer than ``slice_size`` elements.
      DTypeError: ``start_index`` is not an integer.

    Example:
      >>> lax.dynamic_slice_in_dim(jnp.arange(8).reshape(2, 4), 1, 2, axis=1).tolist()
      [[1, 2], [5, 6]]
    """
    axis, starts = _along(operand, axis, start_index, "dynamic_slice_in_dim")
    shape = typeof(operand).shape
    sizes = (*shape[:axis], slice_size, *shape[axis + 1 :])
    return dynamic_slice(operand, starts, sizes, allow_negative_indices=allow_negative_indices)


def dynamic_index_in_dim(
    operand: Any, index: Any, axis: int = 0, keepdims: bool = True, *, allow_negative_indices: bool = True
) -> Any:
    """The slice of ``operand`` at the scalar ``index`` along ``axis``, which keeps size 1, or is removed without
    ``keepdims``.

    An index out of range is clamped; a negative one counts from the end.

    Raises:
      ShapeError: the axis is out of range, or empty.
      DTypeError: ``index`` is not an integer.

    Example:
      >>> x = jnp.arange(8).reshape(2, 4)
      >>> lax.dynamic_index_in_dim(x, 2, 1).tolist(), lax.dynamic_index_in_dim(x, -1, 1, keepdims=False).tolist()
      ([[2], [6]], [3, 7])
    """
    y = dynamic_slice_in_dim(operand, index, 1, axis, allow_negative_indices=allow_negative_indices)
    return y if keepdims else squeeze(y, [axis])


def dynamic_update_slice_in_dim(
    operand: Any, update: Any, start_index: Any, axis: int, *, allow_negative_indices: bool = True
) -> Any:
    """``operand`` with its elements along ``axis`` from the scalar ``start_index`` on replaced by ``update``.

    ``update`` has the shape of ``operand`` except along ``axis``, where it may be shorter. ``start_index`` is clamped
    so that it is inside.

    Raises:
      ShapeError: the axis is out of range, or the update does not fit.
      DTypeError: ``start_index`` is not an integer, or the update has another dtype.

    Example:
      >>> x = jnp.zeros((2, 4), int)
      >>> lax.dynamic_update_slice_in_dim(x, jnp.array([[1, 2], [3, 4]]), 1, axis=1).tolist()
      [[0, 1, 2, 0], [0, 3, 4, 0]]
    """
    _, starts = _along(operand, axis, start_index, "dynamic_update_slice_in_dim")
    return dynamic_update_slice(operand, update, starts, allow_negative_indices=allow_negative_indices)


def dynamic_update_index_in_dim(
    operand: Any, update: Any, index: Any, axis: int, *, allow_negative_indices: bool = True
) -> Any:
    """``operand`` with its slice at the scalar ``index`` along ``axis`` replaced by ``update``.

    ``update`` has the shape of that slice, with or without the ``axis`` of size 1.

    Raises:
      ShapeError: the axis is out of range, or the update does not fit.
      DTypeError: ``index`` is not an integer, or the update has another dtype.

    Example:
      >>> lax.dynamic_update_index_in_dim(jnp.zeros((2, 3), int), jnp.array([5, 7]), 1, axis=1).tolist()
      [[0, 5, 0], [0, 7, 0]]
    """
    axis, _ = _along(operand, axis, index, "dynamic_update_index_in_dim")
    shape = typeof(operand).shape
    update = reshape(update, (*shape[:axis], 1, *shape[axis + 1 :]))
    return dynamic_update_slice_in_dim(operand, update, index, axis, allow_negative_indices=allow_negative_indices)


# --- reading ------------------------------------------------------------------------------------------------
@reads("stablehlo.dynamic_slice")
def _read_dynamic_slice(r: Reader) -> Any:
    return DynamicSlice(r.attr("slice_sizes")).bind(*r.operands)


@reads("stablehlo.dynamic_update_slice")
def _read_dynamic_update_slice(r: Reader) -> Any:
    return DynamicUpdateSlice().bind(*r.operands)
