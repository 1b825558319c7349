"""The search for shardings: for every mesh axis one kind of dimension, judged by whole partitioned programs.

A *design* says for each axis which kind of dimension it splits, if any, and whether arguments that it does not split
that way (parameters, where the kind is the batch) are split by it along some other dimension, to be gathered where they
are used: data parallel, tensor parallel and fully sharded programs are such designs, and so are their combinations.
Designs are tried axis by axis, the most promising kinds first, and those of several axes are made of the best of
single ones. The step time of the partitioned program decides among those whose peak fits the memory.

Annotations of the user stay as they are; results that are of an argument's type are laid out like it.

Source: designs like these are what GSPMD's users write (Xu et al. 2021) and Alpa searches for (Zheng et al. 2022).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import MemoryLimitError
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.passes import run_passes
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.driver import PREPARE, partition
from meshwright.spmd.memory.held import Memory
from meshwright.spmd.memory.limits import does_not_fit
from meshwright.spmd.memory.predict import predict
from meshwright.spmd.partition.lookahead import price
from meshwright.spmd.partition.record import Partition
from meshwright.spmd.plan.dimensions import Kind, kinds
from meshwright.spmd.strategy import Strategy

#: kinds of dimensions that are tried for one axis, and for one of several; seconds after which no more are tried
KINDS, COMBINED, SECONDS = 8, 3, 20.0
#: how much slower a simpler design may be
SIMPLER = 1.03
#: the share of all arguments' bytes below which it does not pay to split one only to save memory
SMALL = 1e-3

Layouts = list[Layout | None]


@dataclass(frozen=True)
class AxisUse:
    """What one mesh axis is for: the kind of dimension that it splits (its number, None: none), and whether other
    arguments are split by it, too."""

    kind: int | None
    shards_rest: bool = False


@dataclass(frozen=True)
class Design:
    """A mesh, and what each of its axes is for."""

    mesh: AbstractMesh
    uses: tuple[AxisUse, ...]

    @property
    def complexity(self) -> tuple[int, int]:
        """How many axes there are, and by how many of them the rest is split."""
        return len(self.uses), sum(use.shards_rest for use in self.uses)


@dataclass
class Tried:
    """A design, its partition (a walk without looking ahead), and its price in seconds."""

    design: Design
    part: Partition
    seconds: float
    layouts: tuple[Layouts, Layouts]
    memory: Memory | None = None


@dataclass
class Request:
    """What is planned: a program, what the user said, and what to keep to."""

    jaxpr: ClosedJaxpr
    in_layouts: Callable[[AbstractMesh], Layouts]
    out_layouts: Callable[[AbstractMesh], Layouts]
    meshes: Sequence[AbstractMesh]
    memory_limit: float | None
    donated: Sequence[int] = ()
    seconds: float = SECONDS
    #: which arguments are to be chosen; all others that nobody laid out are left to the partitioner
    auto: frozenset[int] | None = None


@dataclass
class SearchResult:
    """The design chosen, and all that were tried."""

    best: Tried
    tried: list[Tried] = field(default_factory=list)
    kinds: Sequence[Kind] = ()


def search(request: Request) -> SearchResult:
    """The quickest design that fits.

    Raises:
      MemoryLimitError: none fits; says how much the best needs, and what is largest in it.
    """
    return _Search(request).run()


class _Search:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.flat = run_passes(request.jaxpr, PREPARE)
        self.kinds = kinds(self.flat.jaxpr)[:KINDS]
        self.tried: dict[Design, Tried] = {}
        self.end = time.monotonic() + request.seconds

    def run(self) -> SearchResult:
        for design in self.designs():
            if self.tried and time.monotonic() > self.end:
                break
            self.attempt(design)
        best = self.first_that_fits()
        return SearchResult(best, list(self.tried.values()), self.kinds)

    # --- designs --------------------------------------------------------------------------------------------
    def designs(self) -> Iterator[Design]:
        """Those of one axis, then of more made of the best kinds so far, with and without splitting the rest."""
        for mesh in sorted(self.request.meshes, key=lambda mesh: len(mesh.axis_names)):
            count = len(mesh.axis_names)
            choices = self.promising() if count > 1 else [None, *range(len(self.kinds))]
            for picked in itertools.product(choices, repeat=count):
                used = [k for k in picked if k is not None]
                if len(set(used)) < len(used) or not all(map(self.divides, picked, mesh.axis_sizes)):
                    continue
                for rest in self.sharding_the_rest(picked):
                    yield Design(mesh, tuple(map(AxisUse, picked, rest)))

    def promising(self) -> list[int | None]:
        """The kinds that made the quickest programs when tried, first; if none was, those of most bytes."""
        ranked: dict[int | None, float] = {}
        for tried in self.tried.values():
            for use in tried.design.uses:
                ranked[use.kind] = min(tried.seconds, ranked.get(use.kind, tried.seconds))
        order: list[int | None] = sorted(ranked, key=lambda kind: ranked[kind]) or list(range(len(self.kinds)))
        return [*[k for k in order if k is not None][:COMBINED], None]

    def divides(self, kind: int | None, size: int) -> bool:
        return kind is None or self.kinds[kind].size % size == 0

    def sharding_the_rest(self, picked: Sequence[int | None]) -> Iterator[tuple[bool, ...]]:
        """Of which axes the rest is split: of none; of the first; of all."""
        count = len(picked)
        yield from dict.fromkeys([(False,) * count, (True, *[False] * (count - 1)), (True,) * count])

    # --- layouts --------------------------------------------------------------------------------------------
    def layouts(self, design: Design) -> tuple[Layouts, Layouts]:
        """The layouts of arguments and results that a design means."""
        mesh = design.mesh
        given, out_layouts = self.request.in_layouts(mesh), self.request.out_layouts(mesh)
        avals = self.flat.in_avals
        dims: list[list[tuple[str, ...]]] = [[()] * a.ndim for a in avals]
        for axis, use in zip(mesh.axis_names, design.uses):
            if use.kind is not None:
                for number, dim in self.kinds[use.kind].arguments:
                    atoms = mesh.atoms_of(axis)
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
        return ins, _like_arguments(out_layouts, self.flat, ins)

    # --- trying ---------------------------------------------------------------------------------------------
    def attempt(self, design: Design) -> Tried:
        layouts = self.layouts(design)
        same = next((t for t in self.tried.values() if t.layouts == layouts and t.design.mesh == design.mesh), None)
        if same is not None:
            return same
        part = partition(self.flat, design.mesh, *layouts, strategy=Strategy())
        tried = self.tried[design] = Tried(design, part, price(part), layouts)
        return tried

    def peak(self, tried: Tried) -> int:
        if tried.memory is None:
            tried.memory = predict(tried.part.jaxpr, tried.design.mesh, self.request.donated)
        return tried.memory.peak_bytes

    def first_that_fits(self) -> Tried:
        """The quickest whose peak is within the limit, or a simpler one that is hardly slower."""
        quickest: Tried | None = None
        order = sorted(self.tried.values(), key=lambda t: t.seconds)
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


def _held(part: Partition) -> int:
    """Bytes of a device's arguments, which is the least that it holds."""
    return sum(v.aval.nbytes for v in part.jaxpr.jaxpr.invars)


def _split_too(dims: list[tuple[str, ...]], aval: ShapedArray, axis: str, mesh: AbstractMesh) -> None:
    """Split the largest dimension by an axis that splits none yet, if one can be evenly."""
    atoms = mesh.atoms_of(axis)
    if any(a in axes for axes in dims for a in atoms):
        return
    left = [size // mesh.sizes(axes) for size, axes in zip(aval.shape, dims)]
    fits = [d for d, size in enumerate(left) if size % mesh.sizes(atoms) == 0 and size > 0]
    if fits:
        dim = max(fits, key=lambda d: (left[d], -d))
        dims[dim] += atoms


def _like_arguments(out_layouts: Layouts, jaxpr: ClosedJaxpr, ins: Layouts) -> Layouts:
    """Results that nobody laid out, like the arguments of their types, in order: parameters, gradients, states."""
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
