"""Choosing, for one equation, which mesh axes split which factors. A pure, cached function of layouts.

Candidates come from the layouts of the operands and the target layouts of the results. The price of a candidate is the
sum of resharding the operands, resharding the results to their targets (including the reduction of partial sums), and
the memory traffic and arithmetic of each device, all expressed in bytes on the fastest links of the mesh's machine. The
cheapest candidate wins; on a tie, the first.

If a machine is well utilized, matrix products dominate the step time. Communication can overlap with arithmetic, but
redundant arithmetic cannot be hidden. So for products the cheapest candidate is chosen among those with the least work
per device; any other candidate must cost less than a quarter of it to win. This margin is a policy decision: prices
cover a single equation, and in small programs communication always dominates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.sharding import AbstractMesh, Layout, joined_reduction
from meshwright.sharding.rule import PARALLEL, REDUCTION, REPLICATED, WINDOW, DimFactors, Part, ShardingRule
from meshwright.spmd.factors import Axes, factor_axes_of, join_axes
from meshwright.spmd.prices import prices
from meshwright.spmd.reshard.plan import reshard_cost

#: a less parallel assignment of a product is chosen only if its cost is below this fraction of the most parallel one's
LESS_PARALLEL = 0.25
#: up to this many assignments of a product's axes to its loops, all are tried; beyond it, axes are moved one at a time
DEALT = 64

Assignment = tuple[Axes, ...]


class Operand(NamedTuple):
    """An operand: its type, the layouts it is available in, its number of uses, and its target layout.

    ``remade``: it is computed from constants, so every device can compute any tile of it. ``zero``: all elements are 0.
    """

    aval: ShapedArray
    versions: tuple[Layout, ...]
    uses: int = 1
    target: Layout | None = None
    remade: bool = False
    zero: bool = False


@dataclass(frozen=True)
class Choice:
    """Layouts to reshard the operands to (with the version to start from), and the resulting layouts of the results."""

    in_layouts: tuple[Layout, ...]
    versions: tuple[int, ...]
    out_layouts: tuple[Layout, ...]
    cost: float
    #: points of the loop nest per device
    work: float


class Question(NamedTuple):
    """Everything a choice depends on: the cache key of :func:`choose`, one per equation."""

    rule: ShardingRule
    operands: tuple[Operand, ...]
    results: tuple[ShapedArray, ...]
    targets: tuple[Layout | None, ...]
    #: for each result, the number of partial sums that share the collective which reduces it
    summands: tuple[int, ...]
    linear_in: tuple[tuple[int, ...], ...]
    #: the groups of ``linear_in`` through which masked sums pass
    masked_in: tuple[tuple[int, ...], ...]
    #: the op is an elementwise addition or subtraction
    adds: bool
    moves_only: bool
    mesh: AbstractMesh
    exchanges: bool = False


@lru_cache(maxsize=65536)
def choose(question: Question) -> Choice:
    """The cheapest way to compute one equation; products prefer those with the least work per device.

    With ``exchanges``, the axes of a product are also tried on its other loops."""
    parts = question.rule.parts
    if len(parts) > 1:
        return _joined(question, [choose(_about(question, part)) for part in parts])
    assignments = list(_assignments(question))
    choices = _priced(question, assignments)
    best = _cheapest(choices)
    if not question.rule.is_product:
        return best
    least = min(choice.work for choice in choices)
    parallel = _cheapest([choice for choice in choices if choice.work == least])
    best = best if best.cost < LESS_PARALLEL * parallel.cost else parallel
    if not question.exchanges:
        return best
    others = dict.fromkeys(other for given in assignments for other in _on_other_loops(question, given))
    return _cheapest([best, *(c for c in _priced(question, others) if c.work <= best.work)])


def _priced(question: Question, assignments: Iterable[Assignment]) -> list[Choice]:
    """The choices of all assignments and partial sums to keep; invalid combinations are left out."""
    priced = (
        _price(question, assignment, kept, group, kind)
        for assignment in assignments
        for kept, group, kind in _partials(question, assignment)
    )
    return [choice for choice in priced if choice is not None]


def _about(q: Question, part: Part) -> Question:
    """The question restricted to one part of a rule."""
    number = {o: i for i, o in enumerate(part.operands)}

    def about(groups: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(number[o] for o in group) for group in groups if all(o in number for o in group))

    return q._replace(
        rule=part.rule,
        operands=tuple(q.operands[o] for o in part.operands),
        results=tuple(q.results[r] for r in part.results),
        targets=tuple(q.targets[r] for r in part.results),
        summands=tuple(q.summands[r] for r in part.results),
        linear_in=about(q.linear_in),
        masked_in=about(q.masked_in),
        moves_only=q.moves_only and 0 in number,
    )


def _joined(q: Question, choices: Sequence[Choice]) -> Choice:
    """The choices for all parts of a rule, combined into one."""
    ins: dict[int, tuple[Layout, int]] = {}
    outs: dict[int, Layout] = {}
    for part, choice in zip(q.rule.parts, choices):
        ins.update(zip(part.operands, zip(choice.in_layouts, choice.versions)))
        outs.update(zip(part.results, choice.out_layouts))
    layouts, versions = zip(*(ins[o] for o in range(len(q.operands))))
    out_layouts = tuple(outs[r] for r in range(len(q.results)))
    return Choice(layouts, versions, out_layouts, sum(c.cost for c in choices), sum(c.work for c in choices))


def _cheapest(choices: Sequence[Choice]) -> Choice:
    """The first choice of least cost, up to rounding errors."""
    best = choices[0]  # the empty assignment always exists
    for choice in choices[1:]:
        if choice.cost < best.cost * (1 - 1e-9):
            best = choice
    return best


# --- candidates ---------------------------------------------------------------------------------------------
def _assignments(q: Question) -> Iterator[Assignment]:
    """Candidate axes for every factor.

    Each source takes precedence in turn, completed by the others. Variants drop the axes of one factor, or move the
    axes of a factor that is expensive to split to another factor.
    """
    given: list[tuple[Layout, tuple[DimFactors, ...]]] = []
    remade: list[tuple[Layout, tuple[DimFactors, ...]]] = []
    for operand, factors in zip(q.operands, q.rule.operands):
        (remade if operand.remade else given).extend((version, factors) for version in operand.versions)
    given += [(layout, factors) for layout, factors in zip(q.targets, q.rule.results) if layout is not None]
    # Recomputable operands come last, so that they do not decide ties.
    sources = [factor_axes_of(layout.dims, factors, q.rule, q.mesh) for layout, factors in (*given, *remade)]
    sources = [s for i, s in enumerate(sources) if s and s not in sources[:i]]
    seen: set[Assignment] = set()
    for i in range(len(sources)):
        order = [sources[i], *sources[:i], *sources[i + 1 :]]
        full = _merge(q, order)
        more = [_merge(q, order, joins=True)] if q.rule.is_product else _moved(q, sources[i], full)
        for variant in (full, *_without_one(full), _merge(q, [sources[i]]), *more):
            # Once the axes of a major factor are dropped, those of a minor one may no longer form blocks.
            if variant not in seen and _fits(q, variant):
                seen.add(variant)
                yield variant
    empty: Assignment = ((),) * len(q.rule.factors)
    if empty not in seen:
        yield empty


def _without_one(assignment: Assignment) -> Iterator[Assignment]:
    for f, axes in enumerate(assignment):
        if axes:
            yield (*assignment[:f], (), *assignment[f + 1 :])


def _moved(q: Question, source: Mapping[int, Axes], full: Assignment) -> Iterator[Assignment]:
    """Assignments in which the axes of a factor that is impossible or expensive to split move to each free factor.

    The operand is then resharded by an all-to-all, which sends a fraction of what a gather would. Indexing rows of one
    operand by others along a split dimension is also expensive: it needs an all-reduce of results that are mostly zero.
    """
    indexed = len(q.operands) > 1 and not q.rule.is_product
    for f, axes in source.items():
        factor = q.rule.factors[f]
        picks = factor.kind == REDUCTION and indexed and len(q.rule.operand_dims(f)) == 1
        # The minor factor of merged dimensions, whose tiles would not be blocks of the merged dimension.
        merged = factor.kind == PARALLEL and not full[f]
        if factor.kind != REPLICATED and factor.passes is None and not picks and not merged:
            continue
        rest = tuple(() if i == f else other for i, other in enumerate(full))
        if any(a in other for other in rest for a in axes):
            continue
        mates = {g for dims in (*q.rule.operands, *q.rule.results) for fs in dims if f in fs for g in fs}
        # Factors merged with this one first, then unsplit ones.
        for g in sorted(range(len(rest)), key=lambda g: (not merged or g not in mates, bool(rest[g]))):
            other, both = q.rule.factors[g], (*rest[g], *axes)
            free = other.kind == PARALLEL or (other.kind == WINDOW and other.passes is None)
            if g != f and free and q.mesh.sizes(both) <= other.size:
                yield (*rest[:g], both, *rest[g + 1 :])


def _on_other_loops(q: Question, assignment: Assignment) -> Iterator[Assignment]:
    """Assignments with the axes of a product on any of its loops.

    All-to-alls of an operand and of the result can send less than a gather of the operand or a reduction of the result.
    """
    names = dict.fromkeys(q.mesh.axis_of(a) for axes in assignment for a in axes)
    used = [tuple(a for axes in assignment for a in axes if q.mesh.axis_of(a) == name) for name in names]
    loops = [f for f, factor in enumerate(q.rule.factors) if factor.kind in (PARALLEL, REDUCTION)]
    # The number of ways to distribute the axes over the loops, counting their order.
    if math.prod(range(len(loops), len(loops) + len(used))) > DEALT:
        yield from _one_on_another_loop(q, assignment, loops)
    else:
        for order in itertools.permutations(used):
            for places in itertools.product(loops, repeat=len(used)):
                yield from _dealt(q, order, places)
    yield from _in_two(q, assignment, loops)


def _dealt(q: Question, order: Sequence[Axes], places: Sequence[int]) -> Iterator[Assignment]:
    """The assignment of these axes, in this order, to these factors, if it fits."""
    rest: list[Axes] = [()] * len(q.rule.factors)
    for axes, f in zip(order, places):
        rest[f] = (*rest[f], *axes)
    if all(q.mesh.sizes(rest[f]) <= q.rule.factors[f].size for f in places) and _fits(q, rest):
        yield tuple(rest)


def _in_two(q: Question, assignment: Assignment, loops: Sequence[int]) -> Iterator[Assignment]:
    """Assignments that distribute the axes of a reduction over two other loops: major axes to one, minor to the other.

    Tiles of the result that are closer to square need smaller parts of the operands.
    """
    for f, axes in enumerate(assignment):
        if q.rule.factors[f].kind == REDUCTION:
            for cut, (g, h) in itertools.product(range(1, len(axes)), itertools.permutations(loops, 2)):
                if f not in (g, h):
                    rest = list(assignment)
                    rest[f], rest[g], rest[h] = (), (*rest[g], *axes[:cut]), (*rest[h], *axes[cut:])
                    if all(q.mesh.sizes(rest[i]) <= q.rule.factors[i].size for i in (g, h)) and _fits(q, rest):
                        yield tuple(rest)


def _one_on_another_loop(q: Question, assignment: Assignment, loops: Sequence[int]) -> Iterator[Assignment]:
    """Assignments that move all axes of one loop, or one mesh axis of them, to another loop."""
    for f, axes in enumerate(assignment):
        names = list(dict.fromkeys(q.mesh.axis_of(a) for a in axes))
        parts = [axes, *(tuple(a for a in axes if q.mesh.axis_of(a) == n) for n in names if len(names) > 1)]
        for part, g in itertools.product(parts, loops):
            if part and g != f:
                rest = list(assignment)
                rest[f] = tuple(a for a in axes if a not in part)
                rest[g] = (*rest[g], *part)
                if q.mesh.sizes(rest[g]) <= q.rule.factors[g].size and _fits(q, rest):
                    yield tuple(rest)


def _merge(q: Question, sources: Sequence[Mapping[int, Axes]], joins: bool = False) -> Assignment:
    """Each factor's axes, from the first source that has any or with ``joins`` from all sources, as far as they fit."""
    assigned: list[Axes] = [()] * len(q.rule.factors)
    taken: set[str] = set()
    for source in sources:
        for f, axes in source.items():
            factor, before = q.rule.factors[f], assigned[f]
            if (before and not joins) or factor.kind == REPLICATED or factor.size == 1:
                continue
            left = [axis for axis in axes if axis not in taken]
            free = left if joins else list(itertools.takewhile(lambda axis: axis not in taken, axes))
            while free and q.mesh.sizes((*before, *free)) > factor.size:
                free.pop()
            if free:
                assigned[f] = (*before, *free)
                if _fits(q, assigned):
                    taken.update(free)
                else:
                    assigned[f] = before
    return tuple(assigned)


def _fits(q: Question, assigned: Sequence[Axes]) -> bool:
    sizes = [f.size for f in q.rule.factors]
    return all(
        join_axes(fs, sizes, assigned, q.mesh)[1] for dims in (*q.rule.operands, *q.rule.results) for fs in dims if fs
    )


def _partials(q: Question, assignment: Assignment) -> Iterator[tuple[Axes, tuple[int, ...], str]]:
    """The partial sums that may pass through the equation: (axes, operands that carry them, kind).

    The order decides ties: the collective is deferred if every operand of a group is already partial, and done before
    the equation if some operand would have to be made partial.
    """
    used = {a for axes in assignment for a in axes}
    ready: list[tuple[Axes, tuple[int, ...], str]] = []
    mixed: list[tuple[Axes, tuple[int, ...], str]] = []
    for group in q.linear_in or (((0,),) if q.moves_only else ()):
        for version in {v: None for o in group for v in q.operands[o].versions if v.partial}:
            free, kind = tuple(a for a in version.partial if a not in used), version.reduction
            if free and (q.moves_only or kind == "sum" or (kind == "masked" and group in q.masked_in)):
                everywhere = all(any(_is_terms_of(v, version) for v in q.operands[o].versions) for o in group)
                (ready if everywhere else mixed).append((free, group, kind))
    yield from ready
    yield (), (), ""
    yield from mixed


def _is_terms_of(layout: Layout, like: Layout) -> bool:
    """Whether ``layout`` is partial over the axes of ``like``, and its reduction can be treated as that of ``like``."""
    return layout.partial == like.partial and joined_reduction(layout.reduction, like.reduction) == like.reduction


def _reduction(q: Question, assignment: Assignment) -> str:
    """The kind of partial result that an assignment leaves: sums are masked if some device has no rows to add up."""
    split = zip(q.rule.factors, assignment)
    over = [(f.size, q.mesh.sizes(axes)) for f, axes in split if f.kind == REDUCTION and axes]
    idle = any((tiles - 1) * -(-size // tiles) >= size for size, tiles in over)
    return "masked" if idle and q.rule.reduction == "sum" else q.rule.reduction


def _kept_kind(q: Question, kept: Axes, group: tuple[int, ...], kind: str) -> str:
    """The kind of sums that pass: masked if an operand has to be made partial, i.e. zeros on most devices."""
    if kind != "sum" or q.adds:
        return kind
    made = any(
        not q.operands[o].zero and not any(set(kept) <= set(v.partial) for v in q.operands[o].versions) for o in group
    )
    return "masked" if made else kind


# --- prices -------------------------------------------------------------------------------------------------
def _price(q: Question, assignment: Assignment, kept: Axes, group: tuple[int, ...], kind: str) -> Choice | None:
    rule, mesh = q.rule, q.mesh
    unit = prices(mesh)
    reduced = tuple(a for f, axes in zip(rule.factors, assignment) if f.kind == REDUCTION for a in axes)
    combined = _reduction(q, assignment) if reduced else ""
    if kept:
        kind = _kept_kind(q, kept, group, kind)
        joined = joined_reduction(kind, combined or kind)
        if joined is None:
            return None
        combined = joined
    sizes = [f.size for f in rule.factors]
    work = _work(q, assignment)
    cost, memory = unit.work * work, unit.memory * rule.sweeps * _repeats(q, assignment)
    in_layouts, versions = [], []
    for o, (operand, factors) in enumerate(zip(q.operands, rule.operands)):
        layout = _layout(factors, sizes, assignment, mesh)
        if kept and o in group:
            layout = layout.with_partial(kept, kind, mesh)
        version, price = _bring(operand, layout, mesh)
        cost += price + memory * _local_bytes(operand.aval, layout, mesh)
        in_layouts.append(layout)
        versions.append(version)
    cost += _exchanged(q, assignment, in_layouts)
    out_layouts = []
    for aval, factors, required, shared in zip(q.results, rule.results, q.targets, q.summands):
        layout = _layout(factors, sizes, assignment, mesh)
        partial = reduced + kept
        if partial:
            layout = layout.with_partial(partial, combined, mesh)
        target = layout.drop_partial() if required is None else required
        price = reshard_cost(aval.shape, aval.dtype.itemsize, layout, target, mesh)
        cost += (price + (unit.latency if price else 0)) / (shared if layout.partial else 1)
        cost += memory * _local_bytes(aval, layout, mesh)
        out_layouts.append(layout)
    return Choice(tuple(in_layouts), tuple(versions), tuple(out_layouts), cost, work)


def _work(q: Question, assignment: Assignment) -> float:
    """Points of the loop nest on the device with the largest tiles."""
    work = q.rule.work * _repeats(q, assignment)
    for factor, axes in zip(q.rule.factors, assignment):
        if axes:
            work *= -(-factor.size // q.mesh.sizes(axes)) / factor.size
    return work


def _repeats(q: Question, assignment: Assignment) -> float:
    """How many times a device runs the op on its tiles."""
    split = ((f.repeats, q.mesh.sizes(axes)) for f, axes in zip(q.rule.factors, assignment) if axes)
    return float(math.prod(repeats(tiles) for repeats, tiles in split if repeats is not None))


def _exchanged(q: Question, assignment: Assignment, layouts: Sequence[Layout]) -> float:
    """Bytes that the localized op itself sends per device. Windows count as 1 byte, which only decides ties."""
    cost = 0.0
    for f, (factor, axes) in enumerate(zip(q.rule.factors, assignment)):
        if axes and factor.passes is not None:
            operands = {o for o, _ in q.rule.operand_dims(f)}
            tiles = sum(_local_bytes(q.operands[o].aval, layouts[o], q.mesh) for o in operands)
            cost += _passed(factor.passes(q.mesh.sizes(axes)), tiles, axes, q.mesh)
        elif axes and factor.kind == WINDOW:
            cost += 1.0
    return cost


def _passed(times: float, tiles: float, axes: Axes, mesh: AbstractMesh) -> float:
    """The price of sending tiles along axes ``times`` times; if a machine is given, in one collective each time."""
    if not mesh.fabric.is_given:
        return prices(mesh).latency + times * tiles
    collectives = max(1, math.ceil(times))
    each = times * tiles / collectives
    return collectives * mesh.wire_price("collective_permute", mesh.coalesce(axes), each, each)


def _layout(
    factors: Sequence[tuple[int, ...]], sizes: Sequence[int], assignment: Assignment, mesh: AbstractMesh
) -> Layout:
    return Layout.tiled(tuple(join_axes(fs, sizes, assignment, mesh)[0] if fs else () for fs in factors))


def _bring(operand: Operand, layout: Layout, mesh: AbstractMesh) -> tuple[int, float]:
    """The version to start from, and the price of resharding it to ``layout``.

    The price of reducing a partial sum, or of resharding to the operand's target layout, is divided among all equations
    that use the operand.
    """
    if operand.remade:
        return 0, 0.0
    best, price = 0, math.inf
    for i, version in enumerate(operand.versions):
        cost: float = reshard_cost(operand.aval.shape, operand.aval.dtype.itemsize, version, layout, mesh)
        if cost:
            cost += prices(mesh).latency
            if (version.partial and not layout.partial) or layout == operand.target:
                cost /= operand.uses
        if cost < price:
            best, price = i, cost
    return best, price


def _local_bytes(aval: ShapedArray, layout: Layout, mesh: AbstractMesh) -> int:
    return aval.dtype.itemsize * math.prod(layout.local_shape(aval.shape, mesh))
