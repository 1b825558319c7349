"""Ways besides the search: by overlaps, and, between uneven tiles, by padding.

The tiles of a dimension in 8 nest in those of the same dimension in 2 only if the rows allow. Where they do not, a
reshard has these ways besides the plain search:

* all at once, by overlaps (see ``overlap``), which even tiles may have, too;
* by overlaps to the target and what is still to be gathered then, and gathers;
* the dimension is padded so far that all tiles nest, which moves a few rows between neighbours; the search then finds
  what it would of an even array; in the end padding goes in the same way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from meshwright.core.records import dataclass
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.reshard.blocks import blocks_of
from meshwright.spmd.reshard.overlap import Tiling, moving_axes
from meshwright.spmd.reshard.steps import AllGather, Overlap, Step, joins

MAX_SPARE = 2  # blocks left to be gathered of which every arrangement is tried

Shape = tuple[int, ...]
#: steps, each with the padded shape of the array after it
Way = list[tuple[Step, Shape]]
#: the steps between two layouts of an array of a shape
Searched = Callable[[Shape, Layout, Layout], Iterable[Step]]


@dataclass(frozen=True)
class Ways:
    """The ways there are for an array of ``size`` on ``mesh``. Starting a permute counts for ``start`` elements;
    ``search`` finds the steps between even tiles."""

    size: Shape
    mesh: AbstractMesh
    start: int
    search: Searched

    def of(self, src: Layout, dst: Layout) -> Iterator[Way]:
        """All ways; overlaps among them may turn out to take too much."""
        torn = is_torn(self.size, src, dst, self.mesh)
        if torn:
            yield from self._padded(src, dst)
        if src.partial != dst.partial:
            return
        before = Tiling(self.size, src.dims)
        yield self._overlap(before, Tiling(self.size, dst.dims))
        for middle in _unfinished(src, dst, self.mesh) if torn else ():
            first = self._overlap(before, Tiling(self.size, middle.dims))
            yield [*first, *((step, self.size) for step in self.search(self.size, middle, dst))]
            for rest in self._padded(middle, dst):
                yield [*first, *rest]

    def direct(self, src: Layout, dst: Layout) -> Iterator[Way]:
        """Ways whose cost, if they exist or not, is about that of the best, where many choices are priced."""
        if src.partial != dst.partial:
            yield from self._padded(src, dst)
            return
        for middle in (dst, *_unfinished(src, dst, self.mesh)):
            first = self._overlap(Tiling(self.size, src.dims), Tiling(self.size, middle.dims))
            rest = ((dim, mine[len(kept) :]) for dim, (mine, kept) in enumerate(zip(middle.dims, dst.dims)))
            if first:  # or the search has looked at it
                yield [*first, *((AllGather(axes, dim), self.size) for dim, axes in rest if axes)]

    def _padded(self, src: Layout, dst: Layout) -> Iterator[Way]:
        size = self.size
        for padded in dict.fromkeys(_padded(size, src, dst, self.mesh)):
            if padded != size:
                first = self._overlap(Tiling(size, src.dims), Tiling(padded, src.dims))
                last = self._overlap(Tiling(padded, dst.dims), Tiling(size, dst.dims))
                yield [*first, *((step, padded) for step in self.search(padded, src, dst)), *last]
                if src.partial == dst.partial:
                    yield [*first, *self._overlap(Tiling(padded, src.dims), Tiling(padded, dst.dims)), *last]

    def _overlap(self, before: Tiling, after: Tiling) -> Way:
        """The one step between two tilings; none where the tiles are the same."""
        if before.dims == after.dims and before.rows(self.mesh) == after.rows(self.mesh):
            return []
        axes = moving_axes(before, after, self.mesh)
        return [(Overlap(axes, self.size, before, after, self.start), after.shape)]


def is_torn(size: Shape, src: Layout, dst: Layout, mesh: AbstractMesh) -> bool:
    """Whether a dimension whose tiles change is not divided by their numbers."""
    return any(
        mine != theirs and any(rows % mesh.sizes(axes) for axes in (mine, theirs))
        for rows, mine, theirs in zip(size, src.dims, dst.dims)
    )


def _padded(size: Shape, src: Layout, dst: Layout, mesh: AbstractMesh) -> Iterator[Shape]:
    """The array padded so that tiles nest wherever they change, and do not nest already; wherever they change; and in
    one dimension alone."""
    changing = [
        (dim, rows, math.lcm(tiles, others), _nest(rows, tiles, others))
        for dim, (rows, mine, theirs) in enumerate(zip(size, src.dims, dst.dims))
        for tiles, others in [(mesh.sizes(mine), mesh.sizes(theirs))]
        if mine != theirs
    ]
    even = {dim: -(-rows // every) * every for dim, rows, every, _ in changing}
    for dims in ([dim for dim, _, _, nest in changing if not nest], list(even), *([dim] for dim in even)):
        yield tuple(even[dim] if dim in dims else rows for dim, rows in enumerate(size))


def _nest(rows: int, mine: int, theirs: int) -> bool:
    every = math.lcm(mine, theirs)
    return all(joins(rows, tiles, every // tiles) for tiles in (mine, theirs))


def _unfinished(src: Layout, dst: Layout, mesh: AbstractMesh) -> Iterator[Layout]:
    """The target, split besides by what splits the source alone, in all ways."""
    spare = [b for b in blocks_of(src, dst, mesh) if b[0] in src.split_axes and b[0] not in dst.split_axes]
    if len(spare) > MAX_SPARE:
        return
    for number in range(1, len(spare) + 1):
        for kept in itertools.permutations(spare, number):
            for cuts in itertools.combinations_with_replacement(range(number + 1), dst.rank - 1):
                yield _appended(dst, kept, (0, *cuts, number))


def _appended(layout: Layout, blocks: Sequence[tuple[str, ...]], ends: Sequence[int]) -> Layout:
    for dim in range(layout.rank):
        more = itertools.chain.from_iterable(blocks[ends[dim] : ends[dim + 1]])
        layout = layout.with_dim(dim, (*layout.dims[dim], *more))
    return layout
