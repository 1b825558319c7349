"""The context passed to an op's ``localize``: shapes, layouts, and the exchanges that it may need."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.op import Op
from meshwright.ir.tracing import typeof
from meshwright.ops.collective.all_reduce import ALL_REDUCE
from meshwright.ops.collective.exchange import AllToAll, Ppermute
from meshwright.ops.collective.tiles import AllGather
from meshwright.ops.elementwise.monoid import monoid_of, nothing
from meshwright.ops.elementwise.table import add, and_, convert, eq, ge, lt, mul, scalar_like, select
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota, match_shape
from meshwright.ops.shape.joined_pads import is_zero_value
from meshwright.ops.shape.slice_pad import concatenate, pad, slice_in_dim
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.row_map import RowMap, Slot
from meshwright.sharding.rule import REDUCTION, ShardingRule
from meshwright.sharding.window import Shown, WindowPlan, plan_ring, plan_window
from meshwright.spmd.reshard.emit import dynamic_slice, is_marked, lookup, named_axes, tile_index


@dataclass(frozen=True)
class LocalContext:
    """One equation being localized: its global avals, its chosen layouts, and the mesh.

    ``counting`` is, for each operand, the dimension along which its elements are known to be 0, 1, 2, …, or None.
    """

    mesh: AbstractMesh
    rule: ShardingRule
    in_avals: tuple[ShapedArray, ...]
    out_avals: tuple[ShapedArray, ...]
    in_layouts: tuple[Layout, ...]
    out_layouts: tuple[Layout, ...]
    counting: tuple[int | None, ...] = ()

    # --- shapes and splits ----------------------------------------------------------------------------------
    @cached_property
    def in_local_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(lo.local_shape(a.shape, self.mesh) for lo, a in zip(self.in_layouts, self.in_avals))

    @cached_property
    def out_local_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(lo.local_shape(a.shape, self.mesh) for lo, a in zip(self.out_layouts, self.out_avals))

    def axes(self, operand: int, dim: int) -> tuple[str, ...]:
        """The atoms that split an operand's dimension."""
        return self.in_layouts[operand].dims[dim]

    def result_axes(self, result: int, dim: int) -> tuple[str, ...]:
        """The atoms that split a result's dimension."""
        return self.out_layouts[result].dims[dim]

    def is_split(self, operand: int, dim: int) -> bool:
        return bool(self.in_layouts[operand].dims[dim])

    def is_split_result(self, result: int, dim: int) -> bool:
        return bool(self.out_layouts[result].dims[dim])

    def num_tiles(self, operand: int, dim: int) -> int:
        return self.in_layouts[operand].num_tiles(dim, self.mesh)

    def is_uneven(self, operand: int, dim: int) -> bool:
        """Whether the operand's dimension is padded on some device."""
        return self.in_avals[operand].shape[dim] % self.num_tiles(operand, dim) != 0

    # --- positions ------------------------------------------------------------------------------------------
    def tile_index(self, axes: Sequence[str]) -> Any:
        """This device's position along atoms, an int32 scalar."""
        return tile_index(axes, self.mesh)

    def add_tile_offset(self, x: Any, dim: int, result: int = 0) -> Any:
        """``x`` plus the global index of this tile's first row along a result's dimension."""
        axes = self.result_axes(result, dim)
        if not axes:
            return x
        offset = mul(self.tile_index(axes), np.int32(self.out_local_shapes[result][dim]))
        return add(x, convert(offset, typeof(x).dtype))

    def counts_rows(self, operand: int, dim: int) -> bool:
        """Whether an operand is known to hold the row numbers along a dimension."""
        return bool(self.counting) and self.counting[operand] == dim

    def number_rows(self, x: Any, operand: int, dim: int) -> Any:
        """Convert row numbers within a tile of an operand's dimension to those within the whole dimension."""
        first = mul(self.tile_index(self.axes(operand, dim)), np.int32(self.in_local_shapes[operand][dim]))
        return add(x, convert(first, typeof(x).dtype))

    def lookup(self, table: Sequence[int], axes: Sequence[str]) -> Any:
        """``table[position along axes]``, an int32 scalar."""
        return lookup(table, axes, self.mesh)

    # --- the default localization ---------------------------------------------------------------------------
    def default(self, op: Op, *operands: Any) -> Any:
        """Bind ``op.localized`` to the operands, with padding masked where it would be reduced."""
        if any(f.kind == REDUCTION for f in self.rule.factors):
            operands = tuple(self._mask_reduced(x, i) for i, x in enumerate(operands))
        return op.localized(self).bind(*operands)

    def _mask_reduced(self, x: Any, operand: int) -> Any:
        for dim, factors in enumerate(self.rule.operands[operand]):
            if any(self.rule.factors[f].kind == REDUCTION for f in factors):
                x = self.mask(x, operand, dim, monoid_of(self.rule.reduction).identity(typeof(x).dtype))
        return x

    def mask(self, x: Any, operand: int, dim: int, fill: Any) -> Any:
        """Replace the padding rows of an operand's dimension by ``fill``."""
        if not self.is_split(operand, dim) or not self.is_uneven(operand, dim):
            return x
        rows = typeof(x).shape[dim]
        first = mul(self.tile_index(self.axes(operand, dim)), np.int32(rows))
        return self._keep(x, dim, first, self.in_avals[operand].shape[dim], fill)

    def _keep(self, x: Any, dim: int, first: Any, size: int, fill: Any) -> Any:
        """Keep the rows whose global index, counted from ``first``, is in ``[0, size)``; the others become ``fill``."""
        aval = typeof(x)
        number = add(iota(np.int32, (aval.shape[dim],), 0), first)
        inside = and_(lt(number, np.int32(size)), ge(number, np.int32(0)))
        inside = broadcast_in_dim(inside, aval.shape, (dim,))
        return select(inside, x, match_shape(fill, aval))

    def only_on(self, x: Any, axes: Sequence[str], tile: int) -> Any:
        """``x`` on the devices at position ``tile`` along atoms, and :func:`nothing` on the others."""
        here = eq(self.tile_index(axes), np.int32(tile))
        return select(here, x, match_shape(nothing(typeof(x).dtype), typeof(x)))

    def place_row(self, x: Any, dim: int, position: int, fill: Any) -> Any:
        """This device's tile of a result that is ``fill`` except for the row ``x`` (of size 1 along ``dim``)."""
        aval = typeof(x)
        tile = aval.update(shape=(*aval.shape[:dim], self.out_local_shapes[0][dim], *aval.shape[dim + 1 :]))
        number = self.add_tile_offset(iota(np.int32, (tile.shape[dim],), 0), dim)
        here = broadcast_in_dim(eq(number, np.int32(position)), tile.shape, (dim,))
        return select(here, broadcast_in_dim(x, tile.shape, range(aval.ndim)), match_shape(fill, tile))

    # --- exchanges ------------------------------------------------------------------------------------------
    def all_gather(self, x: Any, axes: Sequence[str], dim: int) -> Any:
        """Gather tiles along atoms at ``dim``."""
        return AllGather(*named_axes(axes, self.mesh), dim).bind(x) if axes else x

    def all_to_all(self, x: Any, axes: Sequence[str], split: int, concat: int) -> Any:
        """Send part ``j`` of ``split`` to device ``j`` along atoms, and concatenate what arrives at ``concat``."""
        return AllToAll(*named_axes(axes, self.mesh), split, concat).bind(x) if axes else x

    def all_reduce(self, x: Any, axes: Sequence[str], kind: str) -> Any:
        """Reduce over atoms with a reduction of this kind."""
        return ALL_REDUCE[kind](*named_axes(axes, self.mesh)).bind(x) if axes else x

    def permute(self, x: Any, axes: Sequence[str], perm: Sequence[tuple[int, int]]) -> Any:
        """Permute tiles along atoms, by pairs (source, target). Devices that are not a target get zeros."""
        return Ppermute(*named_axes(axes, self.mesh), tuple(perm)).bind(x)

    def fetch_shown(self, x: Any, operand: int, dim: int, shown: Shown) -> Any:
        """The rows of an operand's dimension that each tile of the result shows; zero where there are none.

        If tiles show equally many rows each, only these are sent, without the rows between them.
        """
        picked = shown.picked(self.num_tiles(operand, dim))
        if picked is not None:
            x = slice_in_dim(x, shown.first, None, shown.stride, dim)
        window = (picked or shown).window(self.num_tiles(operand, dim))
        size = None if picked is None else picked.size
        x = self.fetch_window(x, operand, dim, window.start, window.length, stop=window.stop, size=size)
        return x if picked is not None else slice_in_dim(x, 0, window.length, shown.stride, dim)

    def fetch_window(
        self,
        x: Any,
        operand: int,
        dim: int,
        start: Callable[[int], int],
        length: int,
        fill: Any = None,
        stop: int | None = None,
        cyclic: bool = False,
        size: int | None = None,
    ) -> Any:
        """Global rows ``[start(t), start(t) + length)`` of an operand's dimension, where ``t`` is this tile's index.

        Rows outside of the dimension are ``fill`` (zero if None). Rows from ``stop`` on are arbitrary, because they end
        up in the padding of the result. With ``cyclic``, which requires tiles without padding, rows wrap around at the
        end. ``size`` is the number of rows, if the tiles hold only a part of the dimension. See
        :mod:`meshwright.sharding.window`.
        """
        size = self.in_avals[operand].shape[dim] if size is None else size
        axes = self.axes(operand, dim)
        tiles = self.num_tiles(operand, dim)
        zero = np.zeros((), typeof(x).dtype) if fill is None else fill
        plan = plan_ring(size, tiles, start, length) if cyclic else plan_window(size, tiles, start, length, stop)
        if plan.gather:
            x = self.all_gather(x, axes, dim)
        elif not plan.pieces:
            shape = typeof(x).shape
            return match_shape(zero, typeof(x).update(shape=(*shape[:dim], length, *shape[dim + 1 :])))
        else:
            x = self._assemble(x, dim, axes, plan, zero)
        x = self._cut(x, dim, axes, plan.starts, length, zero)
        if plan.complete or plan.apart:
            return x
        first = self.lookup([start(t) for t in range(tiles)], axes)
        return self._keep(x, dim, first, size, zero)

    def _assemble(self, x: Any, dim: int, axes: Sequence[str], plan: WindowPlan, fill: Any) -> Any:
        """The pieces and gaps of a plan, concatenated. If only existing rows are sent, the others are ``fill``."""
        parts = []
        for piece, gap in zip(plan.pieces, plan.gaps):
            part = slice_in_dim(x, piece.low, piece.high, axis=dim)
            if piece.perm:
                part = self.permute(part, axes, piece.perm)
                if plan.apart and not (plan.complete or is_zero_value(fill)):
                    part = self._received(part, axes, piece.perm, fill)
            parts.append(_padded(part, dim, gap, 0, fill))
        return concatenate(parts, dim)

    def _received(self, x: Any, axes: Sequence[str], perm: Sequence[tuple[int, int]], fill: Any) -> Any:
        """The result of a permute, with ``fill`` on devices that are not a target."""
        targets = {target for _, target in perm}
        marks = [tile in targets for tile in range(self.mesh.sizes(axes))]
        return select(is_marked(marks, axes, self.mesh), x, match_shape(fill, typeof(x)))

    def _cut(self, x: Any, dim: int, axes: Sequence[str], starts: Sequence[int], length: int, fill: Any = None) -> Any:
        """Rows ``[starts[t], starts[t] + length)``; rows that do not exist are ``fill`` (zero if None)."""
        rows = typeof(x).shape[dim]
        low, high = max(0, -min(starts)), max(0, max(starts) + length - rows)
        x = _padded(x, dim, low, high, fill)
        starts = [s + low for s in starts]
        if len(set(starts)) == 1:
            return slice_in_dim(x, starts[0], starts[0] + length, axis=dim)
        begin: list[Any] = [np.int32(0)] * typeof(x).ndim
        begin[dim] = self.lookup(starts, axes)
        sizes = list(typeof(x).shape)
        sizes[dim] = length
        return dynamic_slice(x, begin, sizes)

    def move_rows(self, xs: Sequence[Any], dim: int, axes: Sequence[str], m: RowMap) -> Iterator[Any]:
        """This device's tile of each target of a row map along ``dim``, which ``axes`` split."""
        plan = m.plan(self.mesh.sizes(axes))
        if plan.gather:
            have = [self.all_gather(x, axes, dim) for x in xs]
        else:
            mine = concatenate(xs, dim)
            came = [self.permute(self._cut(mine, dim, axes, r.starts, r.length), axes, r.perm) for r in plan.rounds]
            ups = sum(r.goes_up for r in plan.rounds)
            have = [*came[:ups], mine, *came[ups:]]
        if plan.zeros:
            have.append(match_shape(scalar_like(0, xs[0]), _rows(xs[0], dim, plan.zeros)))
        for slots, size in zip(plan.targets, m.sizes):
            yield self._placed(have, dim, axes, slots, -(-size // self.mesh.sizes(axes)))

    def _placed(self, have: Sequence[Any], dim: int, axes: Sequence[str], slots: Sequence[Slot], rows: int) -> Any:
        """Rows of the concatenation of arrays, in the places given by slots."""
        if all(len(set(slot.at)) == 1 for slot in slots):
            ends = [slot.at[0] for slot in slots[1:]] + [rows]
            return concatenate(
                [self._part(have, dim, axes, s.starts, end - s.at[0]) for s, end in zip(slots, ends)], dim
            )
        placed = None
        for slot in slots:
            part = self._part(have, dim, axes, [s - a for s, a in zip(slot.starts, slot.at)], rows)
            if placed is not None:
                number = iota(np.int32, (rows,), 0)
                below = broadcast_in_dim(lt(number, self.lookup(slot.at, axes)), typeof(part).shape, (dim,))
                part = select(below, placed, part)
            placed = part
        return placed

    def _part(self, have: Sequence[Any], dim: int, axes: Sequence[str], starts: Sequence[int], rows: int) -> Any:
        """Rows ``[starts[t], starts[t] + rows)`` of concatenated arrays. Arrays without such rows are left out."""
        ends = list(itertools.accumulate(typeof(x).shape[dim] for x in have))
        first = min(bisect_right(ends, max(min(starts), 0)), len(have) - 1)
        last = min(bisect_right(ends, max(starts) + rows - 1), len(have) - 1)
        before = ends[first - 1] if first else 0
        return self._cut(concatenate(have[first : last + 1], dim), dim, axes, [s - before for s in starts], rows)

    def cut(self, x: Any, operand: int, dim: int, starts: Sequence[int], length: int, fill: Any = None) -> Any:
        """Rows ``[starts[t], starts[t] + length)`` of this tile; missing rows are ``fill``."""
        return self._cut(x, dim, self.axes(operand, dim), starts, length, fill)


def _padded(x: Any, dim: int, low: int, high: int, fill: Any = None) -> Any:
    """``x`` with ``low`` rows of ``fill`` (zero if None) before it and ``high`` after it."""
    if not (low or high):
        return x
    config = [(0, 0, 0)] * typeof(x).ndim
    config[dim] = (low, high, 0)
    return pad(x, np.zeros((), typeof(x).dtype) if fill is None else fill, config)


def _rows(x: Any, dim: int, count: int) -> ShapedArray:
    """The type of ``x`` with ``count`` rows along ``dim``."""
    aval = typeof(x)
    return aval.update(shape=(*aval.shape[:dim], count, *aval.shape[dim + 1 :]))
