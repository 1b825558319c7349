"""The search for shardings: each mesh axis splits one kind of dimension, and whole partitioned programs are compared.

A *design* says for each axis which kind of dimension it splits, if any, and whether it also splits the other arguments
(the parameters, if the kind is the batch) along some dimension, so that they are gathered where they are used. Data
parallelism, tensor parallelism, fully sharded data parallelism and their combinations are such designs. They are tried
for single axes first, with the most promising kinds first; those of several axes combine the best single ones, on
meshes of all shapes in turn. The predicted step time decides among those whose peak fits in memory. How many are tried
depends on the program alone, so that all processes choose the same.

The user's annotations are kept. Results with the type of an argument are laid out like that argument.

Source: designs like these are what GSPMD's users write (Xu et al. 2021) and what Alpa searches for (Zheng et al. 2022).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from operator import attrgetter

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import MemoryLimitError
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.passes import run_passes
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.evenness import well_divided
from meshwright.spmd.driver import PREPARE, partition
from meshwright.spmd.flatten import flatten
from meshwright.spmd.memory.held import Memory
from meshwright.spmd.memory.limits import does_not_fit
from meshwright.spmd.memory.predict import predict
from meshwright.spmd.partition.attempt import price
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.plan.dimensions import Kind, kinds, unions
from meshwright.spmd.steptime.schedule import step_time
from meshwright.spmd.strategy import Strategy

#: the kinds tried for a single axis, the unions of them, and for each of several axes: those known, and those unknown
KINDS, UNIONS, COMBINED = 8, 3, 3
#: budget of equations to partition, and the least and the greatest number of designs to try
EQUATIONS, FEWEST, MOST = 30_000, 16, 120
#: on meshes of several axes alone, one of how many designs may split one axis alone
SINGLE = 3
#: budget of equations to partition with lookahead, and the greatest number of designs that are
AHEAD_EQUATIONS, AHEAD = 1_000, 4
#: by which factor a simpler design may be slower
SIMPLER = 1.03
#: the share of all arguments' bytes below which an argument is not split just to save memory
SMALL = 1e-3

Layouts = list[Layout | None]


@dataclass(frozen=True)
class AxisUse:
    """The use of a mesh axis: the number of the kind that it splits, if any, and if it splits other arguments too."""

    kind: int | None
    shards_rest: bool = False


@dataclass(frozen=True)
class Design:
    """A mesh with a use for each of its axes."""

    mesh: AbstractMesh
    uses: tuple[AxisUse, ...]

    @property
    def complexity(self) -> tuple[int, int]:
        """The number of axes, and the number of axes that also split the other arguments."""
        return len(self.uses), sum(use.shards_rest for use in self.uses)


@dataclass(eq=False)
class Tried:
    """A design, its partition, and its price in seconds.

    ``busy`` are the seconds for which the partition first found, without lookahead, computes: what a better one for the
    same layouts may come to."""

    design: Design
    part: Partition
    seconds: float
    busy: float
    layouts: tuple[Layouts, Layouts]
    memory: Memory | None = None
    #: whether the partition was found with lookahead
    ahead: bool = False


@dataclass
class Request:
    """A planning problem: the program, the user's annotations, and the limits."""

    jaxpr: ClosedJaxpr
    in_layouts: Callable[[AbstractMesh], Layouts]
    out_layouts: Callable[[AbstractMesh], Layouts]
    meshes: Sequence[AbstractMesh]
    memory_limit: float | None
    donated: Sequence[int] = ()
    #: a time after which no more designs are tried, in seconds
    seconds: float = math.inf
    #: the arguments to choose layouts for; the others, unless annotated, are left to the partitioner. None: all
    auto: frozenset[int] | None = None


@dataclass
class SearchResult:
    """The chosen design, and all designs that were tried."""

    best: Tried
    tried: list[Tried] = field(default_factory=list)
    kinds: Sequence[Kind] = ()


def search(request: Request) -> SearchResult:
    """Find the fastest design that fits.

    Raises:
      MemoryLimitError: none fits. Says how much the best one needs, and the largest contributions to that.
    """
    return _Search(request).run()


class _Search:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.flat = run_passes(request.jaxpr, PREPARE)
        single = kinds(self.flat.jaxpr)[:KINDS]
        self.kinds = sorted([*single, *unions(single)[:UNIONS]], key=lambda kind: -kind.weight)
        self.tried: dict[Design, Tried] = {}
        self.size = len(flatten(self.flat.jaxpr).eqns)
        self.most = min(MOST, max(FEWEST, EQUATIONS // max(1, self.size)))
        self.end = time.monotonic() + request.seconds

    def run(self) -> SearchResult:
        for design in self.designs():
            if self.tried and (len(self.tried) >= self.most or time.monotonic() > self.end):
                break
            self.attempt(design)
        self.look_ahead()
        best = self.first_that_fits()
        return SearchResult(best, list(self.tried.values()), self.kinds)

    # --- designs --------------------------------------------------------------------------------------------
    def designs(self) -> Iterator[Design]:
        """All designs of one axis, then those of several that combine the best kinds so far, of each mesh in turn."""
        by_count = itertools.groupby(sorted(self.request.meshes, key=_axes), _axes)
        for count, group in by_count:
            meshes = list(group)
            if count > 1 and not self.tried:
                yield from self.along_one_axis(meshes[0])
            choices = self.promising() if count > 1 else [None, *range(len(self.kinds))]
            each = [self.designs_on(mesh, choices) for mesh in meshes]
            for designs in itertools.zip_longest(*each):
                yield from filter(None, designs)

    def along_one_axis(self, mesh: AbstractMesh) -> Iterator[Design]:
        """The designs whose largest axis alone splits something: they tell which kinds are worth combining."""
        largest = max(mesh.axis_names, key=mesh.shape.__getitem__)
        for kind in itertools.islice(range(len(self.kinds)), self.most // SINGLE):
            if self.divides(kind, mesh.shape[largest]):
                yield Design(mesh, tuple(AxisUse(kind if axis == largest else None) for axis in mesh.axis_names))

    def designs_on(self, mesh: AbstractMesh, choices: Sequence[int | None]) -> Iterator[Design]:
        """The designs on a mesh whose axes split these kinds, with the first ones first."""
        places = itertools.product(range(len(choices)), repeat=_axes(mesh))
        for numbers in sorted(places, key=sum):
            picked = [choices[n] for n in numbers]
            used = [k for k in picked if k is not None]
            if len(set(used)) == len(used) and all(map(self.divides, picked, mesh.axis_sizes)):
                for rest in self.sharding_the_rest(picked):
                    yield Design(mesh, tuple(map(AxisUse, picked, rest)))

    def promising(self) -> list[int | None]:
        """For one of several axes: the heaviest kinds that were not tried, as they do not divide by all devices, and
        those with the fastest programs so far."""
        ranked: dict[int | None, float] = {}
        for tried in self.tried.values():
            for use in tried.design.uses:
                ranked[use.kind] = min(tried.seconds, ranked.get(use.kind, tried.seconds))
        known = sorted((k for k in ranked if k is not None), key=lambda kind: ranked[kind])
        unknown = [k for k in range(len(self.kinds)) if k not in ranked]
        return [*unknown[:COMBINED], *known[:COMBINED], None]

    def divides(self, kind: int | None, size: int) -> bool:
        return kind is None or bool(self.kinds[kind].divided_by(size))

    def sharding_the_rest(self, picked: Sequence[int | None]) -> Iterator[tuple[bool, ...]]:
        """Which axes also split the other arguments: none, the first, or all."""
        count = len(picked)
        yield from dict.fromkeys([(False,) * count, (True, *[False] * (count - 1)), (True,) * count])

    # --- layouts --------------------------------------------------------------------------------------------
    def layouts(self, design: Design) -> tuple[Layouts, Layouts]:
        """The layouts of arguments and results in a design."""
        mesh = design.mesh
        given, out_layouts = self.request.in_layouts(mesh), self.request.out_layouts(mesh)
        avals = self.flat.in_avals
        dims: list[list[tuple[str, ...]]] = [[()] * a.ndim for a in (*avals, *self.flat.out_avals)]
        for axis, use in zip(mesh.axis_names, design.uses):
            if use.kind is not None:
                atoms = mesh.atoms_of(axis)
                places = self.kinds[use.kind].places
                ways = {p: (p.size, mesh.sizes((*dims[p.value][p.dim], *atoms))) for p in places}
                for number, dim, _ in well_divided(ways):
                    if not any(a in axes for axes in dims[number] for a in atoms):
                        dims[number][dim] += atoms
        total = sum(a.nbytes for a in avals)
        for axis, use in zip(mesh.axis_names, design.uses):
            if use.shards_rest:
                for number, aval in enumerate(avals):
                    if aval.nbytes >= SMALL * total:
                        _split_too(dims[number], aval, axis, mesh)
        chosen = self.request.auto
        ins = [
            g
            if g is not None or (chosen is not None and n not in chosen)
            else Layout(tuple(map(mesh.in_mesh_order, d)))
            for n, (g, d) in enumerate(zip(given, dims))
        ]
        made = zip(out_layouts, dims[len(avals) :])
        outs = [Layout(tuple(map(mesh.in_mesh_order, d))) if g is None and any(d) else g for g, d in made]
        return ins, _like_arguments(outs, self.flat, ins)

    # --- evaluation -----------------------------------------------------------------------------------------
    def attempt(self, design: Design) -> Tried:
        layouts = self.layouts(design)
        same = next((t for t in self.tried.values() if t.layouts == layouts and t.design.mesh == design.mesh), None)
        if same is not None:
            return same
        part = partition(self.flat, design.mesh, *layouts, strategy=Strategy(in_steps=True))  # holds least
        step = step_time(part.jaxpr.jaxpr, design.mesh)
        tried = self.tried[design] = Tried(design, part, price(part), step.seconds - step.links, layouts)
        return tried

    def look_ahead(self) -> None:
        """Partition the most promising designs that fit with lookahead, as they will be: the quickest, and those that
        compute least, whose communication may be what lookahead avoids (stencils, layouts that annotations contest)."""
        count = max(1, min(AHEAD, AHEAD_EQUATIONS // max(1, self.size)))
        each = zip(*(sorted(self.tried.values(), key=key) for key in map(attrgetter, ("seconds", "busy"))))
        fitting = filter(self.fits, dict.fromkeys(itertools.chain.from_iterable(each)))
        for tried in itertools.islice(fitting, count):
            if time.monotonic() > self.end:
                return
            part = partition(self.flat, tried.design.mesh, *tried.layouts)
            ahead = replace(tried, part=part, seconds=price(part), memory=None, ahead=True)
            if self.fits(ahead):
                self.tried[tried.design] = ahead

    def peak(self, tried: Tried) -> int:
        if tried.memory is None:
            tried.memory = predict(tried.part.jaxpr, tried.design.mesh, self.request.donated)
        return tried.memory.peak_bytes

    def first_that_fits(self) -> Tried:
        """The fastest design whose peak is within the limit, or a simpler one that is hardly slower."""
        quickest: Tried | None = None
        order = sorted(self.tried.values(), key=attrgetter("seconds"))
        fitting = []
        for tried in order:
            if quickest is not None and tried.seconds > SIMPLER * quickest.seconds:
                break
            if self.fits(tried):
                quickest = quickest or tried
                fitting.append(tried)
        if not fitting:
            least = min(order, key=self.peak)
            self.peak(least)
            assert least.memory is not None and self.request.memory_limit is not None
            reason = does_not_fit(least.memory, self.request.memory_limit)
            raise MemoryLimitError(f"no shardings were found that fit; with those that need least, {reason}")
        return min(fitting, key=lambda t: t.design.complexity)

    def fits(self, tried: Tried) -> bool:
        limit = self.request.memory_limit
        return limit is None or (_held(tried.part) <= limit and self.peak(tried) <= limit)


def _axes(mesh: AbstractMesh) -> int:
    return len(mesh.axis_names)


def _held(part: Partition) -> int:
    """The bytes of a device's arguments, a lower bound of its peak."""
    return sum(v.aval.nbytes for v in part.jaxpr.jaxpr.invars)


def _split_too(dims: list[tuple[str, ...]], aval: ShapedArray, axis: str, mesh: AbstractMesh) -> None:
    """Split the largest dimension that divides well by an axis that does not split the value yet."""
    atoms = mesh.atoms_of(axis)
    if any(a in axes for axes in dims for a in atoms):
        return
    left = [size // mesh.sizes(axes) for size, axes in zip(aval.shape, dims)]
    fits = well_divided({d: (size, mesh.sizes(atoms)) for d, size in enumerate(left)})
    if fits:
        dim = max(fits, key=lambda d: (left[d], -d))
        dims[dim] += atoms


def _like_arguments(out_layouts: Layouts, jaxpr: ClosedJaxpr, ins: Layouts) -> Layouts:
    """Lay out results without annotation like the arguments of the same type, in order (parameters, states)."""
    places: dict[tuple[tuple[int, ...], object], list[Layout | None]] = {}
    for aval, layout in zip(jaxpr.in_avals, ins):
        places.setdefault((aval.shape, aval.dtype), []).append(layout)
    layouts: Layouts = []
    taken: dict[object, int] = {}
    for aval, layout in zip(jaxpr.out_avals, out_layouts):
        same = places.get((aval.shape, aval.dtype), [])
        number = taken.get((aval.shape, aval.dtype), 0)
        taken[aval.shape, aval.dtype] = number + 1
        like = same[number % len(same)] if same and aval.ndim else None
        layouts.append(layout if layout is not None else like)
    return layouts
