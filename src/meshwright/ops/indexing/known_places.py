"""Windows at static positions, as slices and as updates that are split like their operand.

A window at a dynamic position may be anywhere, so every device needs the whole update, and rows read are sent to all.
If the position is a constant, each device's part of the window is known, and only rows in other tiles are sent.
Programs also write such windows as a gather or scatter of one window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Localizer, Value
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var, all_eqns
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Linear, Op, Tangent, Zero
from meshwright.ir.rewrite import Replacement, in_regions, replaced
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import Composite
from meshwright.ops.elementwise.table import eq, materialize
from meshwright.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice, Inside, batched
from meshwright.ops.indexing.gather_add import Gather, ScatterBase
from meshwright.ops.indexing.gather_scatter import Scatter
from meshwright.ops.indexing.indexed import GatherDimensionNumbers, GatherScatterMode
from meshwright.ops.indexing.known_integers import KnownIntegers
from meshwright.ops.shape.broadcast_reduce import iota
from meshwright.ops.shape.rearrange import Reshape
from meshwright.ops.shape.slice_pad import Slice, slice_
from meshwright.sharding.rule import WINDOW, Passes, ShardingRule, make_rule
from meshwright.sharding.window import SentWindows, Shown

Place = tuple[int, ...]
Rows = tuple[tuple[int, int], ...]


# --- the op -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PlacedUpdate(Composite):
    """The first operand with ``rows`` of the second, which is at ``place``, written into it. ``rows`` is ``(low,
    high)`` for each dimension, counted in the second operand.

    Along a split dimension, both operands are split.
    """

    place: Place
    rows: Rows
    name: ClassVar[str] = "placed_update"
    update_operand: ClassVar[int | None] = 1
    takes_keys: ClassVar[bool] = True
    computes: ClassVar[bool] = False
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0, 1),)

    @staticmethod
    def of(place: Place, sizes: Sequence[int]) -> PlacedUpdate:
        """The op that writes all rows of an update with these ``sizes``."""
        return PlacedUpdate(place, tuple((0, n) for n in sizes))

    def infer(self, x: ShapedArray, update: ShapedArray) -> ShapedArray:
        ends = list(zip(self.place, self.rows, update.shape, x.shape))
        ok = len(self.place) == len(self.rows) == x.ndim == update.ndim and update.dtype == x.dtype
        if not ok or not all(at >= 0 and at + k <= n and 0 <= low <= high <= k for at, (low, high), k, n in ends):
            raise ShapeError(f"placed_update: rows {self.rows} of {update} at {self.place} do not fit in {x}")
        return x.strong()

    def expand(self, x: Value, update: Value) -> list[Value]:
        sizes, inside = typeof(update).shape, Inside()
        for d, (low, high) in enumerate(self.rows):
            if (low, high) != (0, sizes[d]):
                inside.rows(d, iota(np.int32, (sizes[d],), 0), low, high)
        return [inside.written(x, update, list(map(np.int32, self.place)))]

    def emit(self, b: Builder, x: Emitted, update: Emitted) -> Emitted | Sequence[Emitted]:
        if not self.is_full(b.in_avals[1]):
            return super().emit(b, x, update)
        starts = [b.constant(at, ShapedArray((), np.dtype(np.int32))) for at in self.place]
        return b.op("stablehlo.dynamic_update_slice", [x, update, *starts], b.out_avals)[0]

    def is_full(self, update: ShapedArray) -> bool:
        """Whether the whole update is written."""
        return self.rows == tuple((0, n) for n in update.shape)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        y = self.bind(*primals)
        return y, Zero(typeof(y)) if all(isinstance(t, Zero) for t in tangents) else self.bind(
            *map(materialize, tangents)
        )

    def transpose(self, ct: Any, x: Any, update: Any) -> Cotangents:
        aval = typeof(update)
        nothing = materialize(Zero(aval))
        ct_update = None
        if isinstance(update, Linear):
            read = slice_(ct, self.place, [at + k for at, k in zip(self.place, aval.shape)])
            whole = PlacedUpdate((0,) * aval.ndim, self.rows)
            ct_update = whole.bind(nothing, read)
        return [self.bind(ct, nothing) if isinstance(x, Linear) else None, ct_update]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        at = next(d for d in dims if d is not None)
        new = PlacedUpdate((*self.place[:at], 0, *self.place[at:]), (*self.rows[:at], (0, axis.size), *self.rows[at:]))
        return new.bind(*(batched(x, d, at, axis.size) for x, d in zip(args, dims))), at

    def sharding_rule(self, x: ShapedArray, update: ShapedArray) -> ShardingRule:
        names = [f"d{d}" for d in range(x.ndim)]
        part = {n: (k, at) for n, k, size, at in zip(names, update.shape, x.shape, self.place) if k != size}
        # A single row is not worth splitting: it is replicated, and the device whose tile it belongs to writes it.
        updates = [None if n in part and part[n][0] == 1 else n for n in names]
        passes: dict[str, Passes] = {}
        for name, size in zip(names, x.shape):
            if name in part and name in updates:
                k, at = part[name]
                passes[name] = SentWindows((Shown(k, size, at),), beside=x.size * k // max(1, update.size))
        sizes = dict(zip(names, x.shape))
        return make_rule([names, updates], [names], sizes, dict.fromkeys(part, WINDOW), passes=passes)

    def alternatives(self, x: ShapedArray, update: ShapedArray) -> Sequence[Op]:
        return (WholeUpdate(self.place, self.rows),) if self.is_full(update) else ()

    def localize(self, ctx: Localizer, x: ArrayLike, update: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        inside, begin = Inside(), list(map(np.int32, self.place))
        for d, (size, k, at, (low, high)) in enumerate(zip(*self._sides(ctx), self.place, self.rows)):
            if not ctx.is_split(0, d):
                if (low, high) != (0, k):
                    inside.rows(d, iota(np.int32, (k,), 0), low, high)
            elif not ctx.is_split(1, d):
                tile, row = divmod(at, ctx.in_local_shapes[0][d])
                begin[d] = np.int32(row)
                inside.tile(eq(ctx.tile_index(ctx.axes(0, d)), np.int32(tile)))
            else:
                begin[d] = np.int32(0)
                if k != size:
                    window = Shown(k, size, at).window(ctx.num_tiles(0, d))
                    update = ctx.fetch_window(update, 1, d, window)
                if (at + low, at + high) != (0, size):
                    number = ctx.add_tile_offset(iota(np.int32, (ctx.in_local_shapes[0][d],), 0), d)
                    inside.rows(d, number, at + low, at + high)
        return inside.written(x, update, begin)

    @staticmethod
    def _sides(ctx: Localizer) -> tuple[Sequence[int], Sequence[int]]:
        x, update = ctx.in_avals
        return x.shape, update.shape


@dataclass(frozen=True)
class WholeUpdate(PlacedUpdate):
    """A placed update that is replicated along the dimensions of the window."""

    name: ClassVar[str] = "whole_update"

    def sharding_rule(self, x: ShapedArray, update: ShapedArray) -> ShardingRule:
        return DynamicUpdateSlice().sharding_rule(x, update)

    def alternatives(self, x: ShapedArray, update: ShapedArray) -> Sequence[Op]:
        return ()

    def localize(self, ctx: Localizer, x: ArrayLike, update: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        return DynamicUpdateSlice().localize(ctx, x, update, *map(np.int32, self.place))


# --- recognized in programs ---------------------------------------------------------------------------------
def known_places(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Replace reads at static positions by slices, and updates by :class:`PlacedUpdate`; remove updates that are
    dropped."""
    if not any(isinstance(e.op, _WINDOWED) for e in all_eqns(jaxpr.jaxpr)):
        return jaxpr
    values = KnownIntegers(jaxpr)

    def rewritten(eqn: JaxprEqn) -> Replacement:
        if eqn.op.holds_jaxprs:
            return in_regions(eqn, known_places)
        if not isinstance(eqn.op, _WINDOWED) or not eqn.outvars[0].aval.size:
            return eqn
        return _placed(eqn, values)

    return replaced(jaxpr, rewritten)


_WINDOWED = (DynamicSlice, DynamicUpdateSlice, Gather, ScatterBase)


def _placed(eqn: JaxprEqn, values: KnownIntegers) -> Replacement:
    """The replacement of an equation whose window has a static position; otherwise the equation itself."""
    op, (x, *rest) = eqn.op, eqn.invars
    shape = x.aval.shape
    match op:
        case DynamicSlice(sizes):
            place = _place([values.known(a) for a in rest], shape, sizes)
            return eqn if place is None else _slice(eqn, x, place, sizes)
        case DynamicUpdateSlice():
            place = _place([values.known(a) for a in rest[1:]], shape, rest[0].aval.shape)
            return (
                eqn
                if place is None
                else eqn.replace(op=PlacedUpdate.of(place, rest[0].aval.shape), invars=[x, rest[0]])
            )
        case Gather():
            sizes = op.slice_sizes
            place = _of_vector(op.dimension_numbers, op.mode, values.known(rest[0]), shape, sizes)
            if place is None:
                return eqn
            read = Var(x.aval.update(shape=sizes))
            out = Reshape(eqn.outvars[0].aval.shape)
            return [_slice(eqn, x, place, sizes, read), eqn.replace(op=out, invars=[read])]
        case ScatterBase() if len(rest) == 2:
            return _scatter(eqn, op, values)
    return eqn


def _scatter(eqn: JaxprEqn, op: ScatterBase, values: KnownIntegers) -> Replacement:
    """A scatter of one window as an update with the combined values; no equation if the window is dropped."""
    x, indices, update = eqn.invars
    sizes = op.window(x.aval.shape, update.aval.shape)
    starts = _starts(op.dimension_numbers.gather(), values.known(indices), x.aval.ndim)
    if starts is None or not isinstance(x, Var) or not update.aval.size:
        return eqn
    place = _in_mode(starts, op.mode, x.aval.shape, sizes)
    if place is None or (type(op) is not Scatter and op.monoid is None):
        dropped = place is None and op.mode == GatherScatterMode.FILL_OR_DROP
        return None if dropped and eqn.outvars[0].aval == x.aval else eqn
    window = x.aval.update(shape=sizes)
    new: Atom = Var(window)
    eqns = [eqn.replace(op=Reshape(sizes), invars=[update], outvars=[new])]
    if op.monoid is not None:
        old, joined = Var(window), Var(window)
        eqns.append(_slice(eqn, x, place, sizes, old))
        eqns.append(eqn.replace(op=op.monoid.combine, invars=[old, new], outvars=[joined]))
        new = joined
    return [*eqns, _update(eqn, x, new, place)]


def _update(eqn: JaxprEqn, x: Atom, update: Atom, place: Place) -> JaxprEqn:
    return eqn.replace(op=PlacedUpdate.of(place, update.aval.shape), invars=[x, update])


def _slice(eqn: JaxprEqn, x: Atom, place: Place, sizes: Sequence[int], out: Var | None = None) -> JaxprEqn:
    limits = tuple(at + n for at, n in zip(place, sizes))
    outs = eqn.outvars if out is None else [out]
    return eqn.replace(op=Slice(place, limits, (1,) * len(place)), invars=[x], outvars=outs)


def _place(starts: Sequence[np.ndarray | None], shape: Sequence[int], sizes: Sequence[int]) -> Place | None:
    """The start of a clamped window."""
    if any(s is None for s in starts):
        return None
    return _moved_inside([int(s) for s in starts if s is not None], shape, sizes)


def _moved_inside(starts: Sequence[int], shape: Sequence[int], sizes: Sequence[int]) -> Place:
    return tuple(min(max(s, 0), n - k) for s, n, k in zip(starts, shape, sizes))


def _of_vector(
    numbers: GatherDimensionNumbers,
    mode: GatherScatterMode,
    indices: np.ndarray | None,
    shape: Sequence[int],
    sizes: Sequence[int],
) -> Place | None:
    """The start of a gather's only window, if it is inside or clamped."""
    starts = _starts(numbers, indices, len(shape))
    return None if starts is None else _in_mode(starts, mode, shape, sizes)


def _starts(numbers: GatherDimensionNumbers, indices: np.ndarray | None, ndim: int) -> list[int] | None:
    """The start of the window given by indices; None if it is unknown, or there are several windows."""
    if indices is None or math.prod(indices.shape[:-1]) != 1 or numbers.operand_batching_dims:
        return None
    starts = [0] * ndim
    for d, start in zip(numbers.start_index_map, indices.reshape(-1)):
        starts[d] = int(start)
    return starts


def _in_mode(
    starts: Sequence[int], mode: GatherScatterMode, shape: Sequence[int], sizes: Sequence[int]
) -> Place | None:
    """The start of a window that is inside or clamped; None otherwise."""
    inside = all(0 <= s <= n - k for s, n, k in zip(starts, shape, sizes))
    return _moved_inside(starts, shape, sizes) if inside or mode == GatherScatterMode.CLIP else None
