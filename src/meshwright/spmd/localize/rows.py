"""Rows of a split dimension on a device: which it has, how it gets those that others have, and how they are placed."""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.tracing import typeof
from meshwright.ops.collective.exchange import Ppermute
from meshwright.ops.collective.tiles import AllGather
from meshwright.ops.elementwise.table import and_, ge, lt, scalar_like, select
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota, match_shape
from meshwright.ops.shape.joined_pads import is_zero_value
from meshwright.ops.shape.slice_pad import concatenate, pad, slice_in_dim
from meshwright.sharding import AbstractMesh
from meshwright.sharding.row_map import RowMap, Slot
from meshwright.sharding.window import Window, WindowPlan, plan_ring, plan_window
from meshwright.spmd.reshard.emit import dynamic_slice, is_marked, lookup, named_axes


@dataclass(frozen=True)
class SplitDim:
    """Dimension ``dim`` of arrays whose tiles devices along ``axes`` have; values are those of this device."""

    dim: int
    axes: tuple[str, ...]
    mesh: AbstractMesh

    @property
    def tiles(self) -> int:
        return self.mesh.sizes(self.axes)

    def lookup(self, table: Sequence[int]) -> Any:
        """``table[number of this tile]``, an int32 scalar."""
        return lookup(table, self.axes, self.mesh)

    def gather(self, x: Any) -> Any:
        return AllGather(*named_axes(self.axes, self.mesh), self.dim).bind(x) if self.axes else x

    def permute(self, x: Any, perm: Sequence[tuple[int, int]]) -> Any:
        """Send tiles by pairs (source, target). Devices that are not a target get zeros."""
        return Ppermute(*named_axes(self.axes, self.mesh), tuple(perm)).bind(x)

    # --- windows --------------------------------------------------------------------------------------------
    def fetch(self, x: Any, size: int, window: Window, fill: Any = None, cyclic: bool = False) -> Any:
        """The window of the ``size`` rows that all tiles have together: see :meth:`.LocalContext.fetch_window`."""
        dim, length = self.dim, window.length
        zero = np.zeros((), typeof(x).dtype) if fill is None else fill
        plan = plan_ring(size, self.tiles, window.start, length) if cyclic else plan_window(size, self.tiles, *window)
        if plan.gather:
            x = self.gather(x)
        elif not plan.pieces:
            return match_shape(zero, with_rows(x, dim, length))
        else:
            x = self._assembled(x, plan, zero)
        x = self.cut(x, plan.starts, length, zero)
        if plan.complete or plan.apart:
            return x
        return self.keep(x, [window.start(t) for t in range(self.tiles)], size, zero)

    def keep(self, x: Any, starts: Sequence[int], size: int, fill: Any) -> Any:
        """Rows of ``x`` that exist: that at ``i`` is number ``starts[tile] + i`` of ``size``. Others are ``fill``."""
        aval = typeof(x)
        rows = aval.shape[self.dim]
        number, inside = iota(np.int32, (rows,), 0), []
        if max(starts) + rows > size:
            inside.append(lt(number, self.lookup([size - start for start in starts])))
        if min(starts) < 0:
            inside.append(ge(number, self.lookup([-start for start in starts])))
        if not inside:
            return x
        mask = broadcast_in_dim(functools.reduce(and_, inside), aval.shape, (self.dim,))
        return select(mask, x, match_shape(fill, aval))

    def _assembled(self, x: Any, plan: WindowPlan, fill: Any) -> Any:
        """The pieces and gaps of a plan, concatenated. If only existing rows are sent, the others are ``fill``."""
        parts = []
        for piece, gap in zip(plan.pieces, plan.gaps):
            part = slice_in_dim(x, piece.low, piece.high, axis=self.dim)
            if piece.perm:
                part = self.permute(part, piece.perm)
                if plan.apart and not (plan.complete or is_zero_value(fill)):
                    part = self._received(part, piece.perm, fill)
            parts.append(padded(part, self.dim, gap, 0, fill))
        return concatenate(parts, self.dim)

    def _received(self, x: Any, perm: Sequence[tuple[int, int]], fill: Any) -> Any:
        """The result of a permute, with ``fill`` on devices that are not a target."""
        targets = {target for _, target in perm}
        marks = [tile in targets for tile in range(self.tiles)]
        return select(is_marked(marks, self.axes, self.mesh), x, match_shape(fill, typeof(x)))

    def cut(self, x: Any, starts: Sequence[int], length: int, fill: Any = None) -> Any:
        """Rows ``[starts[t], starts[t] + length)`` of tile ``t``; rows that it does not have are ``fill`` (or 0)."""
        rows = typeof(x).shape[self.dim]
        low, high = max(0, -min(starts)), max(0, max(starts) + length - rows)
        x = padded(x, self.dim, low, high, fill)
        starts = [s + low for s in starts]
        if len(set(starts)) == 1:
            return slice_in_dim(x, starts[0], starts[0] + length, axis=self.dim)
        begin: list[Any] = [np.int32(0)] * typeof(x).ndim
        begin[self.dim] = self.lookup(starts)
        return dynamic_slice(x, begin, list(with_rows(x, self.dim, length).shape))

    # --- row maps -------------------------------------------------------------------------------------------
    def moved(self, xs: Sequence[Any], m: RowMap) -> Iterator[Any]:
        """This device's tile of each target of a row map."""
        plan = m.plan(self.tiles)
        if plan.gather:
            have = [self.gather(x) for x in xs]
        else:
            mine = concatenate(xs, self.dim)
            came = [self.permute(self.cut(mine, r.starts, r.length), r.perm) for r in plan.rounds]
            ups = sum(r.goes_up for r in plan.rounds)
            have = [*came[:ups], mine, *came[ups:]]
        if plan.zeros:
            have.append(match_shape(scalar_like(0, xs[0]), with_rows(xs[0], self.dim, plan.zeros)))
        for slots, size in zip(plan.targets, m.sizes):
            yield self._placed(have, slots, -(-size // self.tiles))

    def _placed(self, have: Sequence[Any], slots: Sequence[Slot], rows: int) -> Any:
        """Rows of the concatenation of arrays, in the places given by slots."""
        if all(len(set(slot.at)) == 1 for slot in slots):
            ends = [slot.at[0] for slot in slots[1:]] + [rows]
            return concatenate([self._part(have, s.starts, end - s.at[0]) for s, end in zip(slots, ends)], self.dim)
        placed = None
        for slot in slots:
            part = self._part(have, [s - a for s, a in zip(slot.starts, slot.at)], rows)
            if placed is not None:
                number = iota(np.int32, (rows,), 0)
                below = broadcast_in_dim(lt(number, self.lookup(slot.at)), typeof(part).shape, (self.dim,))
                part = select(below, placed, part)
            placed = part
        return placed

    def _part(self, have: Sequence[Any], starts: Sequence[int], rows: int) -> Any:
        """Rows ``[starts[t], starts[t] + rows)`` of concatenated arrays. Arrays without such rows are left out."""
        ends = list(itertools.accumulate(typeof(x).shape[self.dim] for x in have))
        first = min(bisect_right(ends, max(min(starts), 0)), len(have) - 1)
        last = min(bisect_right(ends, max(starts) + rows - 1), len(have) - 1)
        before = ends[first - 1] if first else 0
        return self.cut(concatenate(have[first : last + 1], self.dim), [s - before for s in starts], rows)


def padded(x: Any, dim: int, low: int, high: int, fill: Any = None) -> Any:
    """``x`` with ``low`` rows of ``fill`` (zero if None) before it and ``high`` after it."""
    if not (low or high):
        return x
    config = [(0, 0, 0)] * typeof(x).ndim
    config[dim] = (low, high, 0)
    return pad(x, np.zeros((), typeof(x).dtype) if fill is None else fill, config)


def with_rows(x: Any, dim: int, count: int) -> ShapedArray:
    """The type of ``x`` with ``count`` rows along ``dim``."""
    aval = typeof(x)
    return aval.update(shape=(*aval.shape[:dim], count, *aval.shape[dim + 1 :]))
