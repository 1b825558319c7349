"""Arrays assembled from rows of other arrays along one dimension.

This is what trees of slices, concatenations, paddings and rotations compute together. Programs do not contain the op.
The partitioner inserts it where a dimension is split and one plan for the whole map communicates less than one per
equation (:mod:`meshwright.spmd.partition.moves`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ShapeError
from meshwright.ir.contract import ArrayLike, Localizer, Value
from meshwright.ir.op import BatchAxis, BatchedResults, Cotangents, Dual, Linear, Tangent, Zero
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import Composite
from meshwright.ops.elementwise.table import add, materialize, scalar_like
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, match_shape
from meshwright.ops.shape.rearrange import above, move_dim
from meshwright.ops.shape.slice_pad import concatenate, pad, slice_in_dim
from meshwright.sharding.row_map import ZEROS, MovedRows, RowMap, Spans
from meshwright.sharding.rule import WINDOW, ShardingRule, make_rule


@dataclass(frozen=True)
class RowMoves(Composite):
    """``map`` applied along ``dimension``: each result consists of rows of the operands, and zeros."""

    dimension: int
    map: RowMap
    name: ClassVar[str] = "row_moves"
    multiple_results: ClassVar[bool] = True
    computes: ClassVar[bool] = False

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        d, first = self.dimension, avals[0]
        if tuple(a.shape[d] for a in avals) != self.map.sources or any(
            a.dtype != first.dtype or a.shape[:d] + a.shape[d + 1 :] != first.shape[:d] + first.shape[d + 1 :]
            for a in avals
        ):
            raise ShapeError(f"row_moves: {', '.join(map(str, avals))} do not fit {self.map} along {d}")
        return tuple(first.update(shape=(*first.shape[:d], n, *first.shape[d + 1 :])) for n in self.map.sizes)

    def linear_groups(self, *avals: ShapedArray) -> tuple[tuple[int, ...], ...]:
        return (tuple(range(len(avals))),)

    def expand(self, *operands: Value) -> list[Value]:
        return [self._joined(spans, operands) for spans in self.map.targets]

    def _joined(self, spans: Spans, operands: Sequence[Any]) -> Any:
        d, first = self.dimension, typeof(operands[0])

        def part(source: int, low: int, high: int) -> Any:
            if source != ZEROS:
                return slice_in_dim(operands[source], low, high, axis=d)
            zeros = first.update(shape=(*first.shape[:d], high - low, *first.shape[d + 1 :]))
            return match_shape(scalar_like(0, operands[0]), zeros)

        return concatenate([part(*span) for span in spans], d)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        full = [materialize(t) for t in tangents]
        return self.bind(*primals), self.bind(*full)

    def transpose(self, cts: Any, *args: Any) -> Cotangents:
        cotangents: list[Any] = [None] * len(args)
        for ct, spans in zip(cts, self.map.targets):
            if isinstance(ct, Zero):
                continue
            at = 0
            for source, low, high in spans:
                if source != ZEROS and isinstance(args[source], Linear):
                    back = self._padded(ct, at, low, high, self.map.sources[source])
                    cotangents[source] = back if cotangents[source] is None else add(cotangents[source], back)
                at += high - low
        return [Zero(x.aval) if isinstance(x, Linear) and mine is None else mine for x, mine in zip(args, cotangents)]

    def _padded(self, ct: Any, at: int, low: int, high: int, size: int) -> Any:
        config = [(0, 0, 0)] * typeof(ct).ndim
        config[self.dimension] = (low, size - high, 0)
        rows = slice_in_dim(ct, at, at + high - low, axis=self.dimension)
        return pad(rows, scalar_like(0, ct), config)

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        place = next(d for d in dims if d is not None)
        full = []
        for x, d in zip(args, dims):
            if d is None:
                shape = (*typeof(x).shape[:place], axis.size, *typeof(x).shape[place:])
                full.append(broadcast_in_dim(x, shape, [above(i, place) for i in range(typeof(x).ndim)]))
            else:
                full.append(move_dim(x, d, place))
        moved = replace(self, dimension=above(self.dimension, place))
        return moved.bind(*full), [place] * len(self.map.targets)

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        names = [f"d{d}" for d in range(avals[0].ndim)]
        rows, sizes = names[self.dimension], dict(zip(names, avals[0].shape))
        sizes[rows] = max(*self.map.sources, *self.map.sizes)
        passes = {rows: MovedRows(self.map)}
        return make_rule([names] * len(avals), [names] * len(self.map.targets), sizes, {rows: WINDOW}, passes=passes)

    def localize(self, ctx: Localizer, *operands: Value) -> ArrayLike | Sequence[ArrayLike]:
        axes = ctx.axes(0, self.dimension)
        return list(ctx.move_rows(operands, self.dimension, axes, self.map) if axes else self.expand(*operands))
