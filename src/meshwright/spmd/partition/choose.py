"""The choice at one equation: which mesh axes split which factors. A pure, cached function of layouts.

Candidates come from what the operands have and what the result should become. Each is priced: resharding the operands,
bringing the result to the layout it should have (combining partial sums included), and the memory traffic and the
arithmetic that every device does, in bytes on the fastest links of the mesh's machine. The cheapest wins, the earlier
one on a tie.

Products are what bounds a step where the machine is well used, and nothing hides what devices repeat of them, while
communication overlaps with arithmetic. So for products the cheapest is sought among the assignments that leave a device
the least arithmetic, and another one wins only where it costs less than a quarter. That margin is policy: prices here
are those of one equation, and on small programs communication is always the larger.
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
from meshwright.spmd.reshard.plan import reshard_cost

#: what an assignment may cost, as a share of the most parallel one, for a product to be computed with less parallelism
LESS_PARALLEL = 0.25
#: in how many ways the axes of a product are dealt out to its loops at most, before they are tried one by one
DEALT = 64

Assignment = tuple[Axes, ...]


class Prices(NamedTuple):
    """What a byte of memory traffic, a point of a loop nest, and starting a collective cost, in bytes on the wire."""

    memory: float
    work: float
    latency: float


#: of an accelerator with about 100 GB/s of interconnect, 1 TB/s of memory and 100 TFLOP/s
DEFAULT = Prices(0.1, 1e-3, 256.0)


@lru_cache(maxsize=256)
def prices(mesh: AbstractMesh) -> Prices:
    """Those of the mesh's machine, computing in bfloat16."""
    if not mesh.fabric.is_given:
        return DEFAULT
    machine, wire = mesh.fabric.machine, mesh.fabric.fastest
    # Prices of reshards hold what starting their collectives takes.
    return Prices(wire / machine.memory_bandwidth, 2 * wire / machine.product_rate("bfloat16")[0], 0.0)


class Operand(NamedTuple):
    """An operand: its type, the layouts it is available in, how many equations use it, and what it should become.

    ``remade``: it is made of constants, so that every device can make any part of it. ``zero``: all of it is 0.
    """

    aval: ShapedArray
    versions: tuple[Layout, ...]
    uses: int = 1
    target: Layout | None = None
    remade: bool = False
    zero: bool = False


@dataclass(frozen=True)
class Choice:
    """Layouts to bring the operands to (and which version to start from), and those that the results then have."""

    in_layouts: tuple[Layout, ...]
    versions: tuple[int, ...]
    out_layouts: tuple[Layout, ...]
    cost: float
    #: points of the loop nest that a device computes
    work: float


class Question(NamedTuple):
    """All that a choice depends on. A tuple: there is one for every equation, to be looked up."""

    rule: ShardingRule
    operands: tuple[Operand, ...]
    results: tuple[ShapedArray, ...]
    targets: tuple[Layout | None, ...]
    #: for each result, how many partial sums will share the collective that completes it
    summands: tuple[int, ...]
    linear_in: tuple[tuple[int, ...], ...]
    #: those of them through which masked sums pass
    masked_in: tuple[tuple[int, ...], ...]
    #: each element of the result is a sum of one of each operand
    adds: bool
    moves_only: bool
    mesh: AbstractMesh
    exchanges: bool = False


@lru_cache(maxsize=65536)
def choose(question: Question) -> Choice:
    """The cheapest way to compute one equation; of a product, among those that share its work best.

    With ``exchanges``, also with axes on other loops of a product than those that operands and result are split by."""
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
    """What each assignment leads to, those that are none left out."""
    priced = (
        _price(question, assignment, kept, group, kind)
        for assignment in assignments
        for kept, group, kind in _partials(question, assignment)
    )
    return [choice for choice in priced if choice is not None]


def _about(q: Question, part: Part) -> Question:
    """What is asked of a part of a rule."""
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
    """The choices for all parts of a rule as one."""
    ins: dict[int, tuple[Layout, int]] = {}
    outs: dict[int, Layout] = {}
    for part, choice in zip(q.rule.parts, choices):
        ins.update(zip(part.operands, zip(choice.in_layouts, choice.versions)))
        outs.update(zip(part.results, choice.out_layouts))
    layouts, versions = zip(*(ins[o] for o in range(len(q.operands))))
    out_layouts = tuple(outs[r] for r in range(len(q.results)))
    return Choice(layouts, versions, out_layouts, sum(c.cost for c in choices), sum(c.work for c in choices))


def _cheapest(choices: Sequence[Choice]) -> Choice:
    """The first of those that cost least, but for what rounding makes of sums."""
    best = choices[0]  # the empty assignment always exists
    for choice in choices[1:]:
        if choice.cost < best.cost * (1 - 1e-9):
            best = choice
    return best


# --- candidates ---------------------------------------------------------------------------------------------
def _assignments(q: Question) -> Iterator[Assignment]:
    """Axes for every factor: each source first, completed by the others; each of these with one factor undone; and with
    the axes of a factor that it is dear to split on another one."""
    given: list[tuple[Layout, tuple[DimFactors, ...]]] = []
    remade: list[tuple[Layout, tuple[DimFactors, ...]]] = []
    for operand, factors in zip(q.operands, q.rule.operands):
        (remade if operand.remade else given).extend((version, factors) for version in operand.versions)
    given += [(layout, factors) for layout, factors in zip(q.targets, q.rule.results) if layout is not None]
    # On a tie what is made anew wherever it is wanted has no say.
    sources = [factor_axes_of(layout.dims, factors, q.rule, q.mesh) for layout, factors in (*given, *remade)]
    sources = [s for i, s in enumerate(sources) if s and s not in sources[:i]]
    seen: set[Assignment] = set()
    for i in range(len(sources)):
        order = [sources[i], *sources[:i], *sources[i + 1 :]]
        full = _merge(q, order)
        more = [_merge(q, order, joins=True)] if q.rule.is_product else _moved(q, sources[i], full)
        for variant in (full, *_without_one(full), _merge(q, [sources[i]]), *more):
            # Without the axes of a major factor, those of a minor one may not make blocks any more.
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
    """Where a source splits a factor that cannot be split, or not there, or at a price: its axes on each free factor
    instead.

    An all-to-all brings an operand there, at a fraction of what gathering it would send. What picks rows of one operand
    by others (indices) has its price too: the sum of results that are mostly zeros.
    """
    indexed = len(q.operands) > 1 and not q.rule.is_product
    for f, axes in source.items():
        factor = q.rule.factors[f]
        picks = factor.kind == REDUCTION and indexed and len(q.rule.operand_dims(f)) == 1
        # The minor one of merged dimensions, where tiles would be no blocks of both together.
        merged = factor.kind == PARALLEL and not full[f]
        if factor.kind != REPLICATED and factor.passes is None and not picks and not merged:
            continue
        rest = tuple(() if i == f else other for i, other in enumerate(full))
        if any(a in other for other in rest for a in axes):
            continue
        mates = {g for dims in (*q.rule.operands, *q.rule.results) for fs in dims if f in fs for g in fs}
        # Those that it is merged with first, then whole ones.
        for g in sorted(range(len(rest)), key=lambda g: (not merged or g not in mates, bool(rest[g]))):
            other, both = q.rule.factors[g], (*rest[g], *axes)
            free = other.kind == PARALLEL or (other.kind == WINDOW and other.passes is None)
            if g != f and free and q.mesh.sizes(both) <= other.size:
                yield (*rest[:g], both, *rest[g + 1 :])


def _on_other_loops(q: Question, assignment: Assignment) -> Iterator[Assignment]:
    """The axes of a product on any of its loops: an all-to-all of an operand and one of the result can send less than
    gathering the operand, or than adding up the result."""
    names = dict.fromkeys(q.mesh.axis_of(a) for axes in assignment for a in axes)
    used = [tuple(a for axes in assignment for a in axes if q.mesh.axis_of(a) == name) for name in names]
    loops = [f for f, factor in enumerate(q.rule.factors) if factor.kind in (PARALLEL, REDUCTION)]
    # As many as there are ways to deal the axes out, in order.
    if math.prod(range(len(loops), len(loops) + len(used))) > DEALT:
        yield from _one_on_another_loop(q, assignment, loops)
    else:
        for order in itertools.permutations(used):
            for places in itertools.product(loops, repeat=len(used)):
                yield from _dealt(q, order, places)
    yield from _in_two(q, assignment, loops)


def _dealt(q: Question, order: Sequence[Axes], places: Sequence[int]) -> Iterator[Assignment]:
    """These axes in this order on these factors, where they fit."""
    rest: list[Axes] = [()] * len(q.rule.factors)
    for axes, f in zip(order, places):
        rest[f] = (*rest[f], *axes)
    if all(q.mesh.sizes(rest[f]) <= q.rule.factors[f].size for f in places) and _fits(q, rest):
        yield tuple(rest)


def _in_two(q: Question, assignment: Assignment, loops: Sequence[int]) -> Iterator[Assignment]:
    """The axes of a sum on two other loops, the major ones on one and the minor ones on the other: tiles of the result
    that are nearer to squares need less of the operands."""
    for f, axes in enumerate(assignment):
        if q.rule.factors[f].kind == REDUCTION:
            for cut, (g, h) in itertools.product(range(1, len(axes)), itertools.permutations(loops, 2)):
                if f not in (g, h):
                    rest = list(assignment)
                    rest[f], rest[g], rest[h] = (), (*rest[g], *axes[:cut]), (*rest[h], *axes[cut:])
                    if all(q.mesh.sizes(rest[i]) <= q.rule.factors[i].size for i in (g, h)) and _fits(q, rest):
                        yield tuple(rest)


def _one_on_another_loop(q: Question, assignment: Assignment, loops: Sequence[int]) -> Iterator[Assignment]:
    """The axes of one loop, or one mesh axis of them, on another one."""
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
    """Each factor's axes by the first source that has some, or with ``joins`` by all that do, as far as they fit."""
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
    """Which partial sums may pass through: (axes, operands that carry them, kind).

    On a tie the collective is put off if every operand of a group is partial already, and done at once if some would
    have to be made partial for it.
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
    """Whether a value in this layout is partial as another is, or can be taken to be."""
    return layout.partial == like.partial and joined_reduction(layout.reduction, like.reduction) == like.reduction


def _reduction(q: Question, assignment: Assignment) -> str:
    """The kind of partial result that an assignment leaves: of no rows at all, a device has nothing."""
    split = zip(q.rule.factors, assignment)
    over = [(f.size, q.mesh.sizes(axes)) for f, axes in split if f.kind == REDUCTION and axes]
    idle = any((tiles - 1) * -(-size // tiles) >= size for size, tiles in over)
    return "masked" if idle and q.rule.reduction == "sum" else q.rule.reduction


def _kept_kind(q: Question, kept: Axes, group: tuple[int, ...], kind: str) -> str:
    """The kind of sums that pass: masked, where on most devices nothing but zeros stands for elements of operands."""
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
    """Points of the loop nest that the device with the largest tiles computes."""
    work = q.rule.work * _repeats(q, assignment)
    for factor, axes in zip(q.rule.factors, assignment):
        if axes:
            work *= -(-factor.size // q.mesh.sizes(axes)) / factor.size
    return work


def _repeats(q: Question, assignment: Assignment) -> float:
    """How many times a device does the op on its tiles."""
    split = ((f.repeats, q.mesh.sizes(axes)) for f, axes in zip(q.rule.factors, assignment) if axes)
    return float(math.prod(repeats(tiles) for repeats, tiles in split if repeats is not None))


def _exchanged(q: Question, assignment: Assignment, layouts: Sequence[Layout]) -> float:
    """Bytes that the op itself makes every device send; next to none for windows, so that they have no say but on a
    tie."""
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
    """The price of sending tiles along axes so many times, on a machine in a collective each time."""
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
    """The version to start from, and the price of bringing it to ``layout``.

    Completing a partial sum, and bringing a value to the layout that it should have, is shared by all equations that
    use it.
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
