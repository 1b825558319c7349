"""gather and scatter_add: reading windows at dynamic positions and adding to them, each the other's transpose; and the
base class of the other scatters.

If an indexed dimension is split, the operand is not moved: every device reads the rows in its tile (other rows are
zero, and the results are summed) and writes the updates that fall into its tile. Embeddings with a sharded vocabulary
work in this way (Megatron-LM, Shoeybi et al. 2019).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Localizer, Region
from meshwright.ir.jaxpr import Literal
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Linear, Op, Tangent, Zero
from meshwright.ir.reading import Reader, reads
from meshwright.ir.tracing import JaxprTrace, JaxprTracer, typeof
from meshwright.ops.composite import emit_traced
from meshwright.ops.elementwise.monoid import SUM, Monoid, monoid_of, nothing, picked_kind
from meshwright.ops.elementwise.table import eq, materialize, select
from meshwright.ops.indexing.indexed import (
    DimensionNumbers,
    Dims,
    GatherDimensionNumbers,
    GatherScatterMode,
    beside,
    check_numbers,
    clamp_indices,
    in_bounds,
    index_range,
    indexed_factors,
    margins,
    offset_range,
    outside,
    shift_to_tile,
    split_indexed_dims,
)
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim, broadcast_in_dim, match_shape
from meshwright.ops.shape.rearrange import above, expand_dims, move_dim
from meshwright.ops.shape.slice_pad import slice_
from meshwright.sharding.rule import PARALLEL, REDUCTION, ShardingRule, make_rule

CLIP, FILL = GatherScatterMode.CLIP, GatherScatterMode.FILL_OR_DROP


def _list(dims: Sequence[int]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def _insert(values: Sequence[int], dim: int, value: int) -> tuple[int, ...]:
    return (*values[:dim], value, *values[dim:])


def _batched(x: Any, dim: int | None, target: int, size: int) -> Any:
    """``x`` with its batch dimension at ``target``, broadcast along a new one if it has none."""
    if dim is not None:
        return move_dim(x, dim, target)
    shape = typeof(x).shape
    return broadcast_in_dim(x, _insert(shape, target, size), [above(d, target) for d in range(len(shape))])


def _vector_last(indices: Any, dim: int) -> tuple[Any, int]:
    """Indices with the batch dimension moved before the index vector, and its position."""
    last = typeof(indices).ndim - 1
    return (indices, dim) if dim < last else (move_dim(indices, last, last - 1), last - 1)


# --- gather -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Gather(Op):
    """Windows of ``slice_sizes`` of the operand, one per index vector.

    ``fill_value`` None means NaN, the least signed integer, the largest unsigned one, or True.
    """

    dimension_numbers: GatherDimensionNumbers
    slice_sizes: Dims
    mode: GatherScatterMode = FILL
    indices_are_sorted: bool = False
    unique_indices: bool = False
    fill_value: float | int | None = None
    name: ClassVar[str] = "gather"
    takes_keys: ClassVar[bool] = True
    computes: ClassVar[bool] = False

    @property
    def linear_in(self) -> tuple[tuple[int, ...], ...]:
        # In partial sums, a nonzero fill value would be counted several times.
        return ((0,),) if self.mode is not FILL or self.fill_value == 0 else ()

    @property
    def moves_only(self) -> bool:
        return self.mode is not FILL

    def index_operands(self, num_operands: int) -> range:
        return range(1, 2)

    def out_of_bounds(self, *operands: Any) -> Any:
        x, indices = operands
        return outside(indices, self.dimension_numbers.limits(typeof(x).shape, self.slice_sizes))

    def infer(self, x: ShapedArray, indices: ShapedArray) -> ShapedArray:
        shape = check_numbers(self.name, self.dimension_numbers, x, indices, self.slice_sizes)
        return x.update(shape=shape)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        y = self.bind(*primals)
        if isinstance(tangents[0], Zero):
            return y, Zero(typeof(y))
        return y, dataclasses.replace(self, fill_value=0).bind(tangents[0], primals[1])

    def transpose(self, ct: Any, x: Any, indices: Any) -> Cotangents:
        numbers = ScatterDimensionNumbers.of_gather(self.dimension_numbers)
        op = ScatterAdd(numbers, self.indices_are_sorted, self.unique_indices, self.mode)
        return [op.bind(materialize(Zero(x.aval)), indices, ct), None]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x, indices), (dx, di) = args, dims
        n = self.dimension_numbers
        result_ndim = typeof(indices).ndim - (di is not None) - 1 + len(n.offset_dims)
        if di is None:
            assert dx is not None
            out = beside(n, typeof(x).ndim - 1, result_ndim, dx)
            new, sizes = n.with_operand_dim(dx).with_offset_dim(out), _insert(self.slice_sizes, dx, axis.size)
        else:
            indices, di = _vector_last(indices, di)
            low, high = index_range(n, result_ndim, di)
            out = high if di < len(n.index_places(result_ndim)) else low
            new, sizes = n.with_index_dim(di, out), self.slice_sizes
            if dx is not None:
                new, sizes = new.with_operand_dim(dx).with_batching_dims(dx, di), _insert(sizes, dx, min(1, axis.size))
        return dataclasses.replace(self, dimension_numbers=new, slice_sizes=sizes).bind(x, indices), out

    def sharding_rule(self, x: ShapedArray, indices: ShapedArray) -> ShardingRule:
        ndim = indices.ndim - 1 + len(self.dimension_numbers.offset_dims)
        f = indexed_factors(self.dimension_numbers, x, indices, self.slice_sizes, ndim)
        dims, kind = [f.operand, f.indices], picked_kind(x.dtype)
        return make_rule(dims, [f.result], f.sizes, f.kinds, kind, indexed=f.indexed)

    def localize(self, ctx: Localizer, x: ArrayLike, indices: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        n, shape = self.dimension_numbers, ctx.in_avals[0].shape
        whole = set(n.window_dims(len(shape)))
        sizes = tuple(
            local if d in whole and k == size else k
            for d, (k, size, local) in enumerate(zip(self.slice_sizes, shape, ctx.in_local_shapes[0]))
        )
        split = split_indexed_dims(ctx, n, shape, self.slice_sizes)
        if not split:
            return dataclasses.replace(self, slice_sizes=sizes).bind(x, indices)
        # Treat out-of-range positions first, since that needs the global size.
        limits = n.limits(shape, self.slice_sizes)
        valid = in_bounds(indices, limits) if self.mode is FILL else None
        if valid is None:
            indices = clamp_indices(indices, limits)
        indices = shift_to_tile(ctx, n, indices, sizes, split)
        y = self._masked(n, sizes, margins(x, sizes, split), indices)
        if valid is None:
            return y
        # Only one tile contributes the fill value to the sum.
        first = eq(ctx.tile_index([a for d in split for a in ctx.axes(0, d)]), np.int32(0))
        dtype = typeof(y).dtype
        return self._select(valid, y, select(first, self._fill(dtype), nothing(dtype)))

    def _masked(self, n: GatherDimensionNumbers, sizes: Dims, x: Any, indices: Any) -> Any:
        """Windows of a tile; those outside it are empty (:func:`nothing`)."""
        limits = n.limits(typeof(x).shape, sizes)
        y = Gather(n, sizes, CLIP).bind(x, indices)
        return self._select(in_bounds(indices, limits), y, nothing(typeof(y).dtype))

    def emit(self, b: Builder, x: Emitted, indices: Emitted) -> Emitted | Sequence[Emitted]:
        if self.mode is FILL:
            return emit_traced(b, self._filled, "gather_fill", x, indices)[0]
        n = self.dimension_numbers
        text = (
            f"offset_dims = {_list(n.offset_dims)}, collapsed_slice_dims = {_list(n.collapsed_slice_dims)}, "
            f"operand_batching_dims = {_list(n.operand_batching_dims)}, "
            f"start_indices_batching_dims = {_list(n.start_indices_batching_dims)}, "
            f"start_index_map = {_list(n.start_index_map)}, index_vector_dim = {b.in_avals[1].ndim - 1}"
        )
        return b.op(
            "stablehlo.gather",
            [x, indices],
            b.out_avals,
            dimension_numbers=f"#stablehlo.gather<{text}>",
            slice_sizes=self.slice_sizes,
            indices_are_sorted=self.indices_are_sorted,
        )[0]

    def _filled(self, x: Any, indices: Any) -> list[Any]:
        # XLA clips; windows to fill are masked.
        y = dataclasses.replace(self, mode=CLIP).bind(x, indices)
        valid = in_bounds(indices, self.dimension_numbers.limits(typeof(x).shape, self.slice_sizes))
        return [self._select(valid, y, self._fill(typeof(y).dtype))]

    def _select(self, valid: Any, y: Any, fill: Any) -> Any:
        aval = typeof(y)
        mask = broadcast_in_dim(valid, aval.shape, self.dimension_numbers.index_places(aval.ndim))
        return select(mask, y, match_shape(fill, aval))

    def _fill(self, dtype: np.dtype) -> np.ndarray:
        return missing(dtype) if self.fill_value is None else np.array(self.fill_value).astype(dtype)


def missing(dtype: np.dtype) -> np.ndarray:
    """What stands for elements outside of an array: NaN, the least signed integer, the largest unsigned, or True."""
    if dtypes.is_inexact(dtype):
        return np.array(np.nan).astype(dtype)
    return dtypes.min_value(dtype) if dtypes.is_signed(dtype) else dtypes.max_value(dtype)


# --- scatter ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ScatterDimensionNumbers(DimensionNumbers):
    """How the dimensions of operand, indices and updates of a scatter correspond. Names are those of
    :class:`GatherDimensionNumbers`, with updates in place of the result."""

    update_window_dims: Dims
    inserted_window_dims: Dims
    scatter_dims_to_operand_dims: Dims
    operand_batching_dims: Dims = ()
    scatter_indices_batching_dims: Dims = ()

    def gather(self) -> GatherDimensionNumbers:
        """The dimension numbers of the gather that reads the windows."""
        return GatherDimensionNumbers(*vars(self).values())

    @staticmethod
    def of_gather(n: GatherDimensionNumbers) -> ScatterDimensionNumbers:
        """The dimension numbers of the scatter that writes the windows read by a gather."""
        return ScatterDimensionNumbers(*vars(n).values())


@dataclass(frozen=True)
class ScatterBase(Op):
    """Base class: the operand with windows combined with updates."""

    dimension_numbers: ScatterDimensionNumbers
    indices_are_sorted: bool = False
    unique_indices: bool = False
    mode: GatherScatterMode = FILL
    computes: ClassVar[bool] = False
    update_operand: ClassVar[int | None] = 2
    #: combines an element and its updates; None if the order of updates matters
    monoid: ClassVar[Monoid | None] = None

    def index_operands(self, num_operands: int) -> range:
        return range(1, 2)

    def out_of_bounds(self, *operands: Any) -> Any:
        x, indices, updates = operands
        shape = typeof(x).shape
        window = self.window(shape, typeof(updates).shape)
        return outside(indices, self.dimension_numbers.gather().limits(shape, window))

    def infer(self, x: ShapedArray, indices: ShapedArray, updates: ShapedArray) -> ShapedArray:
        n = self.dimension_numbers.gather()
        if updates.dtype != x.dtype:
            raise DTypeError(f"{self.name}: operand {x} and updates {updates} must have one dtype; convert the updates")
        window = n.window_dims(x.ndim)
        if len(window) != len(n.offset_dims) or any(d >= updates.ndim for d in n.offset_dims):
            raise ShapeError(
                f"{self.name}: update_window_dims {n.offset_dims} must name a dimension of updates {updates} for each "
                f"of dimensions {window} of operand {x}"
            )
        expected = check_numbers(self.name, n, x, indices, self.window(x.shape, updates.shape))
        if expected != updates.shape:
            raise ShapeError(
                f"{self.name}: updates have shape {updates.shape}, expected {expected} for indices {indices} and "
                f"dimension numbers {self.dimension_numbers}"
            )
        return x

    def window(self, shape: Sequence[int], update_shape: Sequence[int]) -> Dims:
        """The sizes of a window in the operand's dimensions."""
        n = self.dimension_numbers.gather()
        sizes = dict(zip(n.window_dims(len(shape)), (update_shape[d] for d in n.offset_dims)))
        return tuple(sizes.get(d, min(1, s)) for d, s in enumerate(shape))

    def read(self, x: Any, indices: Any, updates: Any) -> Any:
        """The windows of ``x`` that are updated by ``updates`` (or any value of that type); zero for those outside."""
        sizes = self.window(typeof(x).shape, typeof(updates).shape)
        numbers = self.dimension_numbers.gather()
        return Gather(numbers, sizes, self.mode, self.indices_are_sorted, self.unique_indices, 0).bind(x, indices)

    def as_add(self) -> ScatterAdd:
        """The scatter that adds at the same positions."""
        return ScatterAdd(self.dimension_numbers, self.indices_are_sorted, self.unique_indices, self.mode)

    # --- batching -------------------------------------------------------------------------------------------
    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        count = len(args) // 2
        indices, di = args[count], dims[count]
        dx = next((d for d in dims[:count] if d is not None), None)
        du = next((d for d in dims[count + 1 :] if d is not None), None)
        n = self.dimension_numbers.gather()
        ndim = typeof(args[0]).ndim - (dims[0] is not None)
        update_ndim = typeof(args[-1]).ndim - (dims[-1] is not None)
        if di is None:
            if dx is None:
                assert du is not None
                dx = self._beside_update(n, ndim, du)
            low, high = offset_range(n, ndim, update_ndim, dx)
            place = beside(n, ndim, update_ndim, dx) if du is None else min(max(du, low), high)
            new = n.with_operand_dim(dx).with_offset_dim(place)
            target = dx
        else:
            indices, di = _vector_last(indices, di)
            low, high = index_range(n, update_ndim, di)
            place = low if du is None else min(max(du, low), high)
            target = 0 if dx is None else dx
            new = n.with_index_dim(di, place).with_operand_dim(target).with_batching_dims(target, di)
        xs = [_batched(x, d, target, axis.size) for x, d in zip(args[:count], dims)]
        updates = [_batched(u, d, place, axis.size) for u, d in zip(args[count + 1 :], dims[count + 1 :])]
        op = dataclasses.replace(self, dimension_numbers=ScatterDimensionNumbers.of_gather(new))
        return op.bind(*xs, indices, *updates), [target] * count if self.multiple_results else target

    @staticmethod
    def _beside_update(n: GatherDimensionNumbers, ndim: int, du: int) -> int:
        """The position in the operand of a batch dimension that only the updates have."""
        window = n.window_dims(ndim)
        k = sum(d < du for d in n.offset_dims)
        return window[k] if k < len(window) else ndim

    # --- sharding -------------------------------------------------------------------------------------------
    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        count = len(avals) // 2
        x, indices, updates = avals[0], avals[count], avals[-1]
        n = self.dimension_numbers.gather()
        f = indexed_factors(n, x, indices, self.window(x.shape, updates.shape), updates.ndim)
        kinds = dict.fromkeys(f.kinds, PARALLEL)
        over_updates = {name for name in f.kinds if name.startswith("i")}
        if self.monoid:
            kinds.update(dict.fromkeys(over_updates, REDUCTION))

        def names(dims: Sequence[str | None]) -> list[str | None]:
            return [None if not self.monoid and d in over_updates else d for d in dims]

        monoid = self.monoid or SUM
        # A device may have none of the updates of an element.
        kind = picked_kind(x.dtype) if monoid is SUM else monoid.kind
        operands = [*[f.operand] * count, names(f.indices), *[names(f.result)] * count]
        joins = (0,) if self.monoid else ()
        return make_rule(operands, [f.operand] * count, f.sizes, kinds, kind, joins=joins, indexed=f.indexed)

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        count = len(operands) // 2
        n = self.dimension_numbers.gather()
        op = dataclasses.replace(self, indices_are_sorted=False, unique_indices=False)
        xs, indices, updates = operands[:count], operands[count], operands[count + 1 :]
        if self.monoid:
            x, update = self._count_once(ctx, xs[0], updates[0])
            xs, updates = (x,), (update,)
        shape = ctx.in_avals[0].shape
        window = self.window(shape, ctx.in_avals[-1].shape)
        split = split_indexed_dims(ctx, n, shape, window)
        if not split:
            return op.bind(*xs, indices, *updates)
        limits = n.limits(shape, window)
        if self.mode is CLIP:
            indices = shift_to_tile(ctx, n, clamp_indices(indices, limits), window, split)
        else:
            # A window not inside the array is dropped by all tiles, including those it overlaps.
            valid = in_bounds(indices, limits)
            indices = shift_to_tile(ctx, n, indices, window, split)
            aval = typeof(indices)
            nowhere = match_shape(dtypes.max_value(aval.dtype), aval)
            indices = select(broadcast_in_dim(valid, aval.shape, range(aval.ndim - 1)), indices, nowhere)
        wide = [margins(x, window, split) for x in xs]
        outs = dataclasses.replace(op, mode=FILL).bind(*wide, indices, *updates)
        start = [max(window[d] - 1, 0) if d in split else 0 for d in range(len(shape))]
        limit = [a + s for a, s in zip(start, typeof(xs[0]).shape)]
        if self.multiple_results:
            return [slice_(y, start, limit) for y in outs]
        return slice_(outs, start, limit)

    def _count_once(self, ctx: Localizer, x: Any, updates: Any) -> tuple[Any, Any]:
        """If updates are split: keep the operand on one device only, unless it is partial itself, and mask updates in
        padding."""
        rule = ctx.rule
        reduced = [d for d, fs in enumerate(rule.operands[2]) if any(rule.factors[f].kind == REDUCTION for f in fs)]
        axes = [a for d in reduced if ctx.is_split(2, d) for a in ctx.axes(2, d)]
        if not axes:
            return x, updates
        identity = monoid_of(rule.reduction).identity(typeof(x).dtype)
        for d in reduced:
            updates = ctx.mask(updates, 2, d, identity)
        is_partial = set(axes) <= set(ctx.in_layouts[0].partial)
        if not is_partial and not _is_filled_with(x, identity):
            x = select(eq(ctx.tile_index(axes), np.int32(0)), x, match_shape(identity, typeof(x)))
        return x, updates

    # --- emission -------------------------------------------------------------------------------------------
    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        if self.mode is CLIP:
            outs = emit_traced(b, self._clipped, f"{self.name}_clip", *operands)
            return outs if self.multiple_results else outs[0]
        n = self.dimension_numbers
        indices = b.in_avals[len(operands) // 2]
        text = (
            f"update_window_dims = {_list(n.update_window_dims)}, "
            f"inserted_window_dims = {_list(n.inserted_window_dims)}, "
            f"input_batching_dims = {_list(n.operand_batching_dims)}, "
            f"scatter_indices_batching_dims = {_list(n.scatter_indices_batching_dims)}, "
            f"scatter_dims_to_operand_dims = {_list(n.scatter_dims_to_operand_dims)}, "
            f"index_vector_dim = {indices.ndim - 1}"
        )
        outs = b.op(
            "stablehlo.scatter",
            operands,
            b.out_avals,
            regions=[self.region(b, ShapedArray((), b.in_avals[0].dtype))],
            scatter_dimension_numbers=f"#stablehlo.scatter<{text}>",
            indices_are_sorted=self.indices_are_sorted,
            unique_indices=self.unique_indices,
        )
        return outs if self.multiple_results else outs[0]

    def region(self, b: Builder, scalar: ShapedArray) -> Region:
        """The region that combines an element and an update."""
        assert self.monoid is not None, "the others have regions of their own"
        return self.monoid.region(b, scalar.dtype)

    def _clipped(self, *operands: Any) -> list[Any]:
        # XLA drops out-of-range windows; clip their positions first where that is wanted.
        count, shape = len(operands) // 2, typeof(operands[0]).shape
        limits = self.dimension_numbers.gather().limits(shape, self.window(shape, typeof(operands[-1]).shape))
        moved = clamp_indices(operands[count], limits)
        out = dataclasses.replace(self, mode=FILL).bind(*operands[:count], moved, *operands[count + 1 :])
        return out if self.multiple_results else [out]


def _is_filled_with(x: Any, value: np.ndarray) -> bool:
    """Whether a value in the current trace is a broadcast constant, such as the zeros to which gradients are added."""
    if not isinstance(x, JaxprTracer) or not isinstance(x.owner, JaxprTrace):
        return False
    producer = next((e for e in reversed(x.owner.eqns) if x.variable in e.outvars), None)
    if producer is None or not isinstance(producer.op, BroadcastInDim):
        return False
    source = producer.invars[0]
    return isinstance(source, Literal) and bool(source.val == value)


@dataclass(frozen=True)
class ScatterAdd(ScatterBase):
    """Adds updates to windows."""

    name: ClassVar[str] = "scatter_add"
    monoid: ClassVar[Monoid] = SUM
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0, 2),)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        y = self.bind(*primals)
        if isinstance(tangents[0], Zero) and isinstance(tangents[2], Zero):
            return y, Zero(typeof(y))
        return y, self.bind(materialize(tangents[0]), primals[1], materialize(tangents[2]))

    def transpose(self, ct: Any, x: Any, indices: Any, updates: Any) -> Cotangents:
        return [
            ct if isinstance(x, Linear) else None,
            None,
            self.read(ct, indices, updates) if isinstance(updates, Linear) else None,
        ]


# --- reading ------------------------------------------------------------------------------------------------
def read_indices(indices: Any, vector_dim: int) -> Any:
    """Indices with the index vector in the last dimension, from any form that StableHLO allows."""
    ndim = typeof(indices).ndim
    if vector_dim == ndim:  # index vectors of one component need not have a dimension
        return expand_dims(indices, [ndim])
    return move_dim(indices, vector_dim, ndim - 1)


@reads("stablehlo.gather")
def _read_gather(r: Reader) -> Any:
    n = r.attr("dimension_numbers")
    x, indices = r.operands
    numbers = GatherDimensionNumbers.read(
        n, "offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims",
        "start_indices_batching_dims",
    )  # fmt: skip
    op = Gather(numbers, r.attr("slice_sizes"), CLIP, r.attr("indices_are_sorted", False))
    return op.bind(x, read_indices(indices, n.get("index_vector_dim", 0)))
