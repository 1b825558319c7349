"""Sharding propagation: from the user's shardings to a layout for every value.

Works forwards and backwards over the equations until nothing changes, as GSPMD (Xu et al. 2021, section 3.5) and Shardy
do: each equation's sharding rule says which dimensions share a factor, and axes spread along factors. Dimensions that
the user fixed never change. Equations that only pass values through come first, so that the layout of a large
elementwise neighbourhood is settled before contractions choose among competing axes. Annotations may have priorities,
as in Shardy: those of one priority spread everywhere before those of the next start.

The result is not a plan: the partitioner decides by cost, and takes these layouts as the targets of the values.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import takewhile

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn, Literal, Var
from meshwright.ops.sharding.constraint import ShardingConstraint
from meshwright.ops.sharding.propagation_marks import PropagationMark
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.rule import REPLICATED, Part, ShardingRule
from meshwright.spmd.custom import inferred
from meshwright.spmd.factors import Axes, clashing_axes, contested_axes
from meshwright.spmd.flatten import flatten, is_tie
from meshwright.spmd.origin import Annotation, Origins, Sort
from meshwright.spmd.pencils import left_split
from meshwright.spmd.pins import pin
from meshwright.spmd.spread import Dims, spread
from meshwright.spmd.strategy import AS_WRITTEN, FIRST, Share, Strategy, Turn

#: the layout to start a value with, and the annotation that its axes come from
Seed = tuple[Dims, Annotation]
#: the priority of annotations that wait until all others have spread
_LAST = sys.maxsize


@dataclass
class Placement:
    """What propagation knows about a value: the axes of each dimension, the dimensions that are fixed, and barred axes.

    ``barred`` axes must not be added to any dimension.
    """

    dims: Dims
    fixed: tuple[bool, ...]
    barred: frozenset[str] = frozenset()

    def with_dim(self, dim: int, axes: Axes, fixed: bool, barred: frozenset[str]) -> Placement:
        """A copy with dimension ``dim`` and ``barred`` replaced."""
        dims = (*self.dims[:dim], axes, *self.dims[dim + 1 :])
        return Placement(dims, (*self.fixed[:dim], fixed, *self.fixed[dim + 1 :]), barred)

    def grown(self, dims: Dims) -> Dims:
        """``dims`` restricted to what is allowed: fixed dimensions stay, others grow up to the first barred axis, or
        that splits another dimension (``dims`` may have been found without this placement)."""
        taken = set(self.barred.union(*self.dims))
        grown: list[Axes] = []
        for old, new, fixed in zip(self.dims, dims, self.fixed):
            more = () if fixed or new[: len(old)] != old else new[len(old) :]
            grown.append((*old, *takewhile(lambda axis: axis not in taken, more)))
            taken.update(grown[-1])
        return tuple(grown)


@dataclass
class Propagation:
    """The layouts found. ``layout(atom)`` is replicated for values that no axis reached, and for literals."""

    mesh: AbstractMesh
    placements: dict[Var, Placement] = field(default_factory=dict)
    #: values from which pass-through equations alone compute outputs with a given layout
    pinned: dict[Var, Layout] = field(default_factory=dict)
    #: what brought each axis to each value
    origins: Origins = field(default_factory=Origins)
    #: the rules of the equations in ``origins``
    rules: Sequence[ShardingRule] = ()
    #: the order in which annotations spread, and other choices
    strategy: Strategy = AS_WRITTEN

    def layout(self, atom: Atom) -> Layout:
        """The layout of a value, without partial axes."""
        placement = self.placements.get(atom) if isinstance(atom, Var) else None
        return Layout.tiled(placement.dims if placement else ((),) * atom.aval.ndim)

    def place(self, var: Var, dims: Iterable[Axes]) -> Var:
        """Enter a value that a rewrite adds to the program, split by ``dims``; returns it."""
        placed = tuple(dims)
        self.placements[var] = Placement(placed, (False,) * len(placed))
        return var

    def target(self, var: Var) -> Layout | None:
        """The layout that a value should end up in; None if any will do."""
        pinned = self.pinned.get(var)
        if pinned is not None:
            return pinned
        placement = self.placements.get(var)
        return Layout.tiled(placement.dims) if placement is not None and any(placement.dims) else None


def placement_of(op: ShardingConstraint, ndim: int, mesh: AbstractMesh) -> Placement:
    """The placement that a constraint gives its value."""
    dims = op.sharding.layout(ndim).dims
    used = {a for axes in dims for a in axes}
    barred = frozenset(a for a in mesh.expand(op.leeway.replicated) if a not in used)
    return Placement(dims, tuple(not op.is_open(d) for d in range(ndim)), barred)


def propagate(
    jaxpr: Jaxpr,
    mesh: AbstractMesh,
    in_layouts: Sequence[Layout | None],
    out_layouts: Sequence[Layout | None],
    strategy: Strategy = AS_WRITTEN,
    known: dict[Strategy, Propagation] | None = None,
) -> Propagation:
    """Propagate the layouts of inputs and outputs (None: not given) to all values of a jaxpr without calls.

    ``known`` keeps what was found for this program: each turn of a strategy starts from what spreads without it, which
    the search asks for again and again.
    """
    known = {} if known is None else known
    asked = strategy.of_spreading
    if asked not in known:
        seeds: dict[Var, Seed] = {}
        for number, turn in enumerate(asked.turns):
            before = replace(asked, turns=asked.turns[:number])
            seeds |= _turned(propagate(jaxpr, mesh, in_layouts, out_layouts, before, known), turn)
        known[asked] = _propagated(jaxpr, mesh, in_layouts, out_layouts, asked, seeds)
    found = known[asked]
    # Rewrites of the program enter what they add.
    return replace(found, placements={**found.placements}, pinned={**found.pinned}, strategy=strategy)


def _propagated(
    jaxpr: Jaxpr,
    mesh: AbstractMesh,
    in_layouts: Sequence[Layout | None],
    out_layouts: Sequence[Layout | None],
    strategy: Strategy,
    seeds: Mapping[Var, Seed],
) -> Propagation:
    propagator = _Propagator(jaxpr, mesh, strategy)
    for number, (var, layout) in enumerate(zip(jaxpr.invars, in_layouts)):
        if layout is not None:
            propagator.place(var, layout, "input", number)
    for number, (atom, layout) in enumerate(zip(jaxpr.outvars, out_layouts)):
        if layout is not None and isinstance(atom, Var) and atom not in propagator.result.placements:
            # An output's sharding does not fix the value: its other uses may prefer another layout.
            propagator.place(atom, layout, "output", number)
    propagator.keep_whole()
    propagator.run(seeds)
    for atom, layout in zip(jaxpr.outvars, out_layouts):
        if layout is not None and isinstance(atom, Var):
            propagator.result.pinned.setdefault(atom, layout)
    result = propagator.result
    fixing = [eqn for eqn, _ in propagator.constraints if all(result.placements[eqn.outvars[0]].fixed)]
    pin(propagator.flat, result.pinned, fixing, result.layout, mesh)
    return result


class _Propagator:
    def __init__(self, jaxpr: Jaxpr, mesh: AbstractMesh, strategy: Strategy) -> None:
        self.mesh = mesh
        self.strategy = strategy
        self.result = Propagation(mesh, strategy=strategy)
        self.flat = flat = flatten(jaxpr)
        self.eqns, self.rules, self.atoms = flat.eqns, flat.rules, flat.atoms
        self.levels, self.neighbours = flat.levels, flat.neighbours
        self.result.origins.eqns, self.result.rules = self.eqns, self.rules
        self.queues: list[deque[int]] = [deque(), deque()]
        self.queued = [True] * len(self.eqns)
        #: values with annotations, which wait while those of a turn spread
        self.hidden: set[Var] = set()
        self.planting = False
        self.constraints = [(e, e.op) for e in self.eqns if isinstance(e.op, ShardingConstraint)]
        marks = ((e, e.op.exact_group) for e in self.eqns if isinstance(e.op, PropagationMark))
        self.groups = [(e, group) for e, group in marks if group is not None]
        #: by priority, the dimensions that are held back until then, with their placements
        self.later: dict[int, list[tuple[Var, int, Placement]]] = {}
        for i, level in enumerate(self.levels):
            self.queues[level].append(i)

    def fix(self, var: Var, placement: Placement, cause: Annotation) -> None:
        """Place a value as an annotation says, in place of what others said of it."""
        for waiting in self.later.values():
            waiting[:] = [held for held in waiting if held[0] is not var]
        self.result.placements[var] = placement
        self.result.origins.note(var, [a for axes in placement.dims for a in axes], cause)

    def place(self, var: Var, layout: Layout, kind: str, number: int) -> None:
        """Place an input, which fixes it, or an output; those that the strategy defers wait for all others."""
        sort = Sort(kind, var.aval, layout.dims)
        ndim = len(layout.dims)
        placement = Placement(layout.dims, (kind == "input",) * ndim)
        self.fix(var, placement, Annotation(kind, number, sort=sort))
        if sort in self.strategy.later:
            for dim in range(ndim):
                self.wait(var, dim, placement, _LAST)

    def keep_whole(self) -> None:
        """Fix what regions read of inputs that are whole. A part of it can be taken anywhere, and is taken once for a
        loop; from parts, the rest would have to be gathered."""
        for eqn, atoms in zip(self.eqns, self.atoms):
            if is_tie(eqn) and len(atoms) == 2 and atoms[0].aval.shape == atoms[1].aval.shape:
                outside = self.result.placements.get(atoms[0])  # type: ignore[arg-type]
                if outside is not None and all(outside.fixed) and not any(outside.dims) and not outside.barred:
                    self.result.placements[atoms[1]] = outside  # type: ignore[index]

    def wait(self, var: Var, dim: int, placement: Placement, priority: int) -> None:
        """Hold a dimension back until a priority's turn: it is unsplit, and its axes are barred from the value."""
        now = self.result.placements[var]
        self.result.placements[var] = now.with_dim(dim, (), True, now.barred.union(placement.dims[dim]))
        self.later.setdefault(priority, []).append((var, dim, placement))

    def run(self, seeds: Mapping[Var, Seed]) -> None:
        for eqn, op in self.constraints:
            self.constrain(eqn, op)
        self.agree(at_first=True)
        if seeds:
            self.plant(seeds)
        self.settle()
        for priority in sorted(self.later):
            for var, dim, placement in self.later[priority]:
                now = self.result.placements[var]
                axes = placement.dims[dim]
                self.result.placements[var] = now.with_dim(dim, axes, placement.fixed[dim], now.barred.difference(axes))
                self.wake(var)
            self.settle()
        if self.strategy.across:
            for i, operand, parameter in scanned(self.result):
                self.move(self.dims_of(operand)[0], parameter, i)
            self.settle()
        for share in self.strategy.shares:
            self.share(share)
            self.settle()
        self.agree()

    def plant(self, seeds: Mapping[Var, Seed]) -> None:
        """Spread axes from some values first, while no other equation spreads any.

        They end where tiles are exchanged: what is split otherwise behind a transform stays so.
        """
        waiting, self.queues = self.queues, [deque(), deque()]
        self.queued = [False] * len(self.eqns)
        self.hidden, self.planting = set(self.result.placements), True
        for var, (dims, cause) in seeds.items():
            placement = self.result.placements.get(var)
            if placement is None or not any(placement.dims):  # what an annotation says of a value stays
                self.update(var, dims, cause)
        self.settle()
        self.hidden, self.planting = set(), False
        self.queues, self.queued = waiting, [True] * len(self.eqns)

    def share(self, share: Share) -> None:
        """Split the results of equations by axes that split none of their loops."""
        for eqn, rule in zip(self.eqns, self.rules):
            if rule == share.rule and not set(share.axes) & loop_axes(eqn, rule, self.dims_of):
                dims = self.dims_of(eqn.outvars[0])
                if not set(share.axes) & set(_used(dims)):
                    cause = Annotation("share", share.dim, eqn.source, what=share.what)
                    split = *dims[share.dim], *share.axes
                    self.update(eqn.outvars[0], (*dims[: share.dim], split, *dims[share.dim + 1 :]), cause)

    def move(self, axes: Axes, var: Var, cause: int) -> None:
        """Add axes to an unsplit dimension of a value: the largest one or the first one, as the strategy says."""
        dims, shape = self.dims_of(var), var.aval.shape
        free = [d for d in range(len(shape)) if not dims[d] and shape[d] >= self.mesh.sizes(axes)]
        if free:
            best = free[0] if self.strategy.across == FIRST else max(free, key=lambda d: shape[d])
            self.update(var, (*dims[:best], axes, *dims[best + 1 :]), cause)

    def constrain(self, eqn: JaxprEqn, op: ShardingConstraint) -> None:
        """Place a constraint's value. Dimensions with a priority above 0 wait for their turn (see :meth:`wait`)."""
        var = eqn.outvars[0]
        placement = placement_of(op, var.aval.ndim, self.mesh)
        sort = Sort("constraint", var.aval, placement.dims)
        self.fix(var, placement, Annotation("constraint", 0, eqn.source, sort, op.leeway.priorities))
        priorities = op.leeway.priorities or (0,) * var.aval.ndim
        for dim, priority in enumerate(priorities):
            if priority or sort in self.strategy.later:
                self.wait(var, dim, placement, _LAST if sort in self.strategy.later else priority)

    def settle(self) -> None:
        """Spread axes until nothing changes."""
        while True:
            queue = next((q for q in self.queues if q), None)
            if queue is None:
                return
            i = queue.popleft()
            self.queued[i] = False
            self.visit(i)

    def agree(self, at_first: bool = False) -> None:
        """Fix the values of each exact sharding group to the layout of the first of them that has any axes.

        Before anything has spread (``at_first``), annotated layouts are found at the operands of the group's equations.
        """
        by_group: dict[str, Dims] = {}
        for eqn, group in self.groups:
            dims = self.dims_of(eqn.invars[0] if at_first else eqn.outvars[0])
            if any(dims):
                by_group.setdefault(group, dims)
        for eqn, group in self.groups:
            var, dims = eqn.outvars[0], by_group.get(group, ())
            known = self.result.placements.get(var)
            if dims and len(dims) == var.aval.ndim and not (known and all(known.fixed)):
                self.fix(var, Placement(dims, (True,) * len(dims)), Annotation("constraint", 0, eqn.source))

    def dims_of(self, atom: Var | Literal) -> Dims:
        if isinstance(atom, Literal):
            return ()
        placement = self.result.placements.get(atom)
        return placement.dims if placement and atom not in self.hidden else ((),) * atom.aval.ndim

    def visit(self, i: int) -> None:
        eqn, rule, atoms = self.eqns[i], self.rules[i], self.atoms[i]
        stays = not self.planting and rule in self.strategy.stays
        read = rule.with_whole_exchanges if self.planting else rule.with_whole_windows if stays else rule
        dims = tuple(map(self.dims_of, atoms))
        if not any(map(any, dims)):
            return
        asked = inferred(eqn, dims, self.mesh) if eqn.op.kept_whole else None
        new = spread(read, dims, len(eqn.invars), self.mesh) if asked is None else asked
        if stays and read == rule.with_whole_exchanges and not any(new[-1]):
            # Nothing is sent back after a transform: its result has the axes where the operand's moved to.
            new = (*new[:-1], left_split(dims[0], rule, eqn.invars[0].aval, eqn.outvars[0].aval, self.mesh))
        mark = eqn.op if isinstance(eqn.op, PropagationMark) else None
        for n, (atom, old, after) in enumerate(zip(atoms, dims, new)):
            if after != old and isinstance(atom, Var) and (mark is None or mark.crosses(n < len(eqn.invars))):
                self.update(atom, after, i)

    def update(self, var: Var, dims: Dims, cause: Annotation | int) -> None:
        placement = self.result.placements.get(var)
        if placement is None:
            placement = self.result.placements[var] = Placement(((),) * var.aval.ndim, (False,) * var.aval.ndim)
        merged = placement.grown(dims)
        if merged == placement.dims:
            return
        self.result.origins.note(var, [a for axes in merged for a in axes], cause)
        placement.dims = merged
        self.wake(var)

    def wake(self, var: Var) -> None:
        """Queue the equations that read or produce a value."""
        for j in self.neighbours.get(var, ()):
            if not self.queued[j]:
                self.queued[j] = True
                self.queues[self.levels[j]].append(j)


def scanned(propagation: Propagation) -> list[tuple[int, Var, Var]]:
    """Places where a loop slices a value along a split dimension, by axes that do not split the slices.

    Each is the index of the equation that ties them, the value, and the slice.
    """
    places = []
    for i, eqn in enumerate(propagation.origins.eqns):
        one = is_tie(eqn) and isinstance(eqn.invars[0], Var) and len(eqn.invars) == 1
        if one and eqn.invars[0].aval.ndim == eqn.outvars[0].aval.ndim + 1:
            axes = propagation.layout(eqn.invars[0]).dims[0]
            if axes and not propagation.layout(eqn.outvars[0]).axes_used.intersection(axes):
                places.append((i, eqn.invars[0], eqn.outvars[0]))
    return places  # type: ignore[return-value]


def contests_at(
    eqn: JaxprEqn, rule: ShardingRule, propagation: Propagation
) -> Iterator[tuple[Part, Mapping[str, Mapping[int, Sequence[Var]]]]]:
    """For each part of an equation's rule, the axes that its values have on several factors, with these values."""
    for part in rule.parts:
        atoms = [*(eqn.invars[i] for i in part.operands), *(eqn.outvars[i] for i in part.results)]
        dims = tuple(propagation.layout(atom).dims for atom in atoms)
        found = contested_axes(dims, part.rule, propagation.mesh)
        if found:  # literals have no axes
            yield part, {a: {f: [atoms[i] for i in at] for f, at in by.items()} for a, by in found.items()}  # type: ignore[misc]


def clashes_at(eqn: JaxprEqn, rule: ShardingRule, propagation: Propagation) -> Iterator[Mapping[Axes, Sequence[Atom]]]:
    """For each factor that values of an equation split by axes that exclude each other, the values by these axes."""
    for part in rule.parts:
        atoms = [*(eqn.invars[i] for i in part.operands), *(eqn.outvars[i] for i in part.results)]
        dims = tuple(propagation.layout(atom).dims for atom in atoms)
        for by_axes in clashing_axes(dims, part.rule, propagation.mesh).values():
            yield {axes: [atoms[i] for i in at] for axes, at in by_axes.items()}


def _turned(propagation: Propagation, turn: Turn) -> dict[Var, Seed]:
    """The results to split otherwise for a turn, after propagation without it."""
    seeds = {}
    for eqn, rule in zip(propagation.origins.eqns, propagation.rules):
        contests = contests_at(eqn, rule, propagation) if rule == turn.rule and not turn.moves else ()
        reached = (turn.result in part.results and set(turn.axes) <= by_axis.keys() for part, by_axis in contests)
        if (turn.moves and rule == turn.rule) or any(reached):
            # Of what a loop carries, the result may have an annotation of its own.
            tied = eqn.invars[1:] if is_tie(eqn) else ()
            var = next((a for a in tied if isinstance(a, Var)), eqn.outvars[turn.result])
            dims = turn.of(propagation.layout(var).dims)
            cause = next(filter(None, (propagation.origins.of(a, turn.axes[0]) for a in eqn.invars)), None)
            if dims is not None and cause is not None:
                seeds[var] = dims, cause
    return seeds


def loop_axes(eqn: JaxprEqn, rule: ShardingRule, dims_of: Callable[[Atom], Dims]) -> set[str]:
    """The axes that split the loops of an equation: not what it finds by index, nor what it has to have whole."""
    operands = [(dims_of(a), factors) for a, factors in zip(eqn.invars, rule.operands)]
    return {
        axis
        for dims, factors in operands
        for axes, fs in zip(dims, factors)
        if any(rule.factors[f].kind != REPLICATED for f in fs) and not any(rule.factors[f].indexed for f in fs)
        for axis in axes
    }


def _used(dims: Dims) -> list[str]:
    return [axis for axes in dims for axis in axes]
