"""Ways between uneven tiles: by overlaps, and by padding.

The tiles of a dimension in 8 nest in those of the same dimension in 2 only if the rows allow. Where they do not, a
reshard has these ways besides the plain search:

* all at once, by overlaps (see ``overlap``);
* by overlaps to the target and what is still to be gathered then, and gathers;
* the dimension is padded so far that all tiles nest, which moves a few rows between neighbours; the search then finds
  what it would of an even array; in the end padding goes in the same way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.reshard.blocks import blocks_of
from meshwright.spmd.reshard.overlap import Tiling, moving_axes, plan_overlaps
from meshwright.spmd.reshard.steps import Overlap, Step, joins

MAX_SPARE = 2  # blocks left to be gathered of which every arrangement is tried

Shape = tuple[int, ...]
#: steps, each with the padded shape of the array after it
Way = list[tuple[Step, Shape]]
#: the steps between two layouts of an array of a shape
Searched = Callable[[Shape, Layout, Layout], Iterable[Step]]


def uneven_ways(size: Shape, src: Layout, dst: Layout, mesh: AbstractMesh, search: Searched) -> Iterator[Way]:
    """The ways there are besides the plain search; none where all tiles nest."""
    if not _is_torn(size, src, dst, mesh):
        return
    yield from _padded_ways(size, src, dst, mesh, search)
    if src.partial != dst.partial:
        return
    yield from _overlapping(size, Tiling(size, src.dims), Tiling(size, dst.dims), mesh)
    for middle in _unfinished(src, dst, mesh):
        for first in _overlapping(size, Tiling(size, src.dims), Tiling(size, middle.dims), mesh):
            yield [*first, *((step, size) for step in search(size, middle, dst))]
            for rest in _padded_ways(size, middle, dst, mesh, search):
                yield [*first, *rest]


def _is_torn(size: Shape, src: Layout, dst: Layout, mesh: AbstractMesh) -> bool:
    """Whether a dimension whose tiles change is not divided by their numbers."""
    return any(
        mine != theirs and any(rows % mesh.sizes(axes) for axes in (mine, theirs))
        for rows, mine, theirs in zip(size, src.dims, dst.dims)
    )


def _padded(size: Shape, src: Layout, dst: Layout, mesh: AbstractMesh) -> Iterator[Shape]:
    """The array padded so that tiles nest wherever they change, and do not nest already; and wherever they change."""
    places = [
        (rows, *(mesh.sizes(axes) for axes in ((mine, theirs) if mine != theirs else ((), ()))))
        for rows, mine, theirs in zip(size, src.dims, dst.dims)
    ]
    for everywhere in (False, True):
        yield tuple(
            rows if not everywhere and _nest(rows, mine, theirs) else -(-rows // every) * every
            for rows, mine, theirs in places
            for every in [math.lcm(mine, theirs)]
        )


def _nest(rows: int, mine: int, theirs: int) -> bool:
    every = math.lcm(mine, theirs)
    return all(joins(rows, tiles, every // tiles) for tiles in (mine, theirs))


def _padded_ways(size: Shape, src: Layout, dst: Layout, mesh: AbstractMesh, search: Searched) -> Iterator[Way]:
    for padded in dict.fromkeys(_padded(size, src, dst, mesh)):
        if padded != size:
            for first in _overlapping(size, Tiling(size, src.dims), Tiling(padded, src.dims), mesh):
                for last in _overlapping(size, Tiling(padded, dst.dims), Tiling(size, dst.dims), mesh):
                    yield [*first, *((step, padded) for step in search(padded, src, dst)), *last]


def _overlapping(size: Shape, before: Tiling, after: Tiling, mesh: AbstractMesh) -> Iterator[Way]:
    """The one step between two tilings, if it can be done; none where the tiles are the same."""
    plan = plan_overlaps(size, before, after, mesh)
    if before.dims == after.dims and before.rows(mesh) == after.rows(mesh):
        yield []
    elif plan is not None:
        yield [(Overlap(moving_axes(before, after, mesh), size, before, after), after.shape)]


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
