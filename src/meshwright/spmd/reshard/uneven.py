"""Ways to reshard besides the search: overlaps, padding of uneven tiles, and splitting of copies if links differ.

The tiles of a dimension split in 8 nest in those of the dimension split in 2 only for certain numbers of rows. For
others, a reshard has these ways besides the plain search:

* directly, by an overlap (see ``overlap``), which is also possible between even tiles;
* devices that will hold the same tile receive different parts of it by an overlap, and then gather these. They are
  parts of a tile, but not necessarily tiles of the dimension;
* the dimension is padded until all tiles nest, which moves a few rows between neighbors. The search then plans as for
  an even array, and the padding is removed in the same way.

If links differ in speed, there is one more way. Devices connected by fast links may hold copies of data that has to
be sent over slow links. Each then sends only its part of the copy, and the parts are gathered over the fast links at
the end (hierarchical collectives). A single collective over both fast and slow links is left whole, since libraries and
compilers already do this inside it. But collectives over slow links alone cannot use the copies of other groups.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from meshwright.core.records import dataclass
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.reshard.blocks import blocks_of
from meshwright.spmd.reshard.overlap import Tiling, flat, moving_axes
from meshwright.spmd.reshard.steps import AllGather, Exchange, Overlap, Slice, Step, dims_in_parts, joins

MAX_SPARE = 3  # the maximum number of blocks for splitting tiles further of which all arrangements are tried

Shape = tuple[int, ...]
#: steps, each with the padded shape of the array after it
Way = list[tuple[Step, Shape]]
#: the steps between two layouts of an array of a shape
Searched = Callable[[Shape, Layout, Layout], Iterable[Step]]


@dataclass(frozen=True)
class Ways:
    """The ways to reshard an array of ``size`` on ``mesh``.

    ``start`` is the cost of starting a permute, in elements; ``search`` returns the steps between even tiles.
    """

    size: Shape
    mesh: AbstractMesh
    start: int
    search: Searched

    def of(self, src: Layout, dst: Layout) -> Iterator[Way]:
        """All ways. Some of their overlaps may turn out to be too large."""
        yield from self._in_parts(src, dst)
        torn = is_torn(self.size, src, dst, self.mesh)
        if torn:
            yield from self._padded(src, dst)
        if src.partial == dst.partial:
            yield self._overlap(flat(self.size, src.dims), flat(self.size, dst.dims))
            if torn:
                yield from self._spread(src, dst)

    def direct(self, src: Layout, dst: Layout) -> Iterator[Way]:
        """Fewer ways, for pricing many choices; their cost is about that of the best way."""
        yield from self._in_parts(src, dst)
        if src.partial != dst.partial:
            yield from self._padded(src, dst)
        elif way := self._overlap(flat(self.size, src.dims), flat(self.size, dst.dims)):
            yield way
            if is_torn(self.size, src, dst, self.mesh):
                yield from self._spread(src, dst)

    def _padded(self, src: Layout, dst: Layout) -> Iterator[Way]:
        size = self.size
        for padded in dict.fromkeys(_padded(size, src, dst, self.mesh)):
            if padded != size:
                begin, end = (self._where_split(padded, layout.dims) for layout in (src, dst))
                first = self._overlap(flat(size, src.dims), begin)
                last = self._overlap(end, flat(size, dst.dims))
                yield [*first, *self._steps(padded, src, dst), *last]
                if src.partial == dst.partial and (first or last):
                    yield [*first, *self._overlap(begin, end), *last]

    def _where_split(self, padded: Shape, dims: Sequence[tuple[str, ...]]) -> Tiling:
        """Tiles of the padded array. Dimensions that are whole keep their rows: what splits them pads them, too."""
        return flat(tuple(more if axes else rows for rows, more, axes in zip(self.size, padded, dims)), tuple(dims))

    def _steps(self, padded: Shape, src: Layout, dst: Layout) -> Iterator[tuple[Step, Shape]]:
        """The steps between two layouts of the padded array, in which dimensions are padded while they are split."""
        layout = src
        for step in self.search(padded, src, dst):
            before, layout = layout, step.apply(layout, self.mesh)
            begin, end = (self._where_split(padded, each.dims) for each in (before, layout))
            if isinstance(step, Exchange):  # takes all dimensions as they will be
                yield from self._overlap(begin, flat(padded, before.dims))
                yield step, padded
                yield from self._overlap(flat(padded, layout.dims), end)
            else:
                yield step, end.shape

    def _spread(self, src: Layout, dst: Layout) -> Iterator[Way]:
        """Ways in which the devices that will hold a tile receive different parts of it, and then gather these."""
        for inner in _parts(src, dst, self.mesh):
            first = self._overlap(flat(self.size, src.dims), Tiling(self.size, dst.dims, inner))
            gathers = [(AllGather(axes, dim), self.size) for dim, axes in enumerate(inner) if axes]
            yield [*first, *reversed(gathers)]

    def _in_parts(self, src: Layout, dst: Layout) -> Iterator[Way]:
        """Ways in which copies along fast links are first cut into parts, which are gathered at the end."""
        for axes in copies_on_fast_links(src, dst, self.mesh):
            number = self.mesh.sizes(axes)
            for dim, (rows, mine, theirs) in enumerate(zip(self.size, src.dims, dst.dims)):
                if rows >= number and all(joins(rows, self.mesh.sizes(outer), number) for outer in (mine, theirs)):
                    parts = (src.with_dim(dim, mine + axes), dst.with_dim(dim, theirs + axes))
                    steps = [Slice(axes, dim), *self.search(self.size, *parts), AllGather(axes, dim)]
                    yield [(step, self.size) for step in steps]

    def _overlap(self, before: Tiling, after: Tiling) -> Way:
        """The step between two tilings, as a list; empty if the tiles are the same."""
        mesh = self.mesh
        if before.layout == after.layout and before.rows(mesh) == after.rows(mesh) and not dims_in_parts(after, mesh):
            return []
        axes = moving_axes(before, after, mesh)
        return [(Overlap(axes, self.size, before, after, self.start), after.shape)]


def copies_on_fast_links(src: Layout, dst: Layout, mesh: AbstractMesh) -> list[tuple[str, ...]]:
    """The axes along which there are copies before and after, with faster links than some that the reshard uses.

    They are returned all together, and each alone.
    """
    if mesh.fabric.is_uniform:
        return []
    changed = {a for mine, theirs in zip(src.dims, dst.dims) if mine != theirs for a in (*mine, *theirs)}
    slowest = min(map(mesh.bandwidth, changed.union(src.partial).difference(dst.partial)), default=0.0)
    used = src.axes_used | dst.axes_used
    free = [atom for atom in mesh.atoms if atom not in used and mesh.bandwidth(atom) > slowest]
    alone = [tuple(atoms) for _, atoms in itertools.groupby(free, mesh.axis_of)]
    return list(dict.fromkeys([tuple(free), *alone])) if free else []


def is_torn(size: Shape, src: Layout, dst: Layout, mesh: AbstractMesh) -> bool:
    """Whether the size of a dimension whose tiles change is not a multiple of the numbers of tiles."""
    return any(
        mine != theirs and any(rows % mesh.sizes(axes) for axes in (mine, theirs))
        for rows, mine, theirs in zip(size, src.dims, dst.dims)
    )


def _padded(size: Shape, src: Layout, dst: Layout, mesh: AbstractMesh) -> Iterator[Shape]:
    """Padded shapes for which tiles nest.

    Dimensions are padded if their tiles change and do not nest; if their tiles change; and one dimension at a time.
    """
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


def _parts(src: Layout, dst: Layout, mesh: AbstractMesh) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Ways to split the target's tiles further, per dimension: all arrangements of blocks that do not split it."""
    free = mesh.in_mesh_order(set(mesh.atoms).difference(src.axes_used, dst.axes_used))
    spare = [b for b in (*blocks_of(src, dst, mesh), free) if b and b[0] not in dst.axes_used]
    for number in range(1, len(spare) + 1) if len(spare) <= MAX_SPARE else ():
        for kept in itertools.permutations(spare, number):
            for cuts in itertools.combinations_with_replacement(range(number + 1), dst.rank - 1):
                parts = (kept[a:b] for a, b in itertools.pairwise((0, *cuts, number)))
                yield tuple(tuple(itertools.chain.from_iterable(part)) for part in parts)
