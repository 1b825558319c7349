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

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from meshwright.core.avals import ShapedArray
from meshwright.sharding import AbstractMesh, Layout, joined_reduction
from meshwright.sharding.rule import REDUCTION, WINDOW
from meshwright.spmd.factors import Axes, join_axes
from meshwright.spmd.partition.candidates import Assignment, Passing, assignments, on_other_loops, passing, reduced_axes
from meshwright.spmd.partition.question import Choice, Operand, Question
from meshwright.spmd.prices import prices
from meshwright.spmd.reshard.plan import least_reshard_cost, reshard_cost

#: the cost of resharding an array of this shape and item size from one layout to another, or a bound of it
ReshardCost = Callable[[tuple[int, ...], int, Layout, Layout, AbstractMesh], int]
#: a less parallel assignment of a product is chosen only if its cost is below this fraction of the most parallel one's
LESS_PARALLEL = 0.25
#: assignments whose work differs by no more than this are equally parallel: tiles of some are less even, which the
#: price of the largest one accounts for
UNEVEN = 1.25
#: how many times the bytes of a value computed again go through memory: it is read where it comes from, and written
_MADE = 2
#: costs that differ by a smaller fraction are equal
ROUNDING = 1e-9


@lru_cache(maxsize=65536)
def choose(question: Question) -> Choice:
    """The cheapest way to compute one equation; products prefer those with the least work per device.

    With ``exchanges``, the axes of a product are also tried on its other loops."""
    parts = question.rule.parts
    if len(parts) > 1:
        return _joined(question, [choose(question.restricted(part)) for part in parts])
    given = list(assignments(question))
    candidates = _candidates(question, given)
    if not question.rule.is_product:
        return _cheapest(question, candidates)
    least = min(c.least.work for c in candidates)
    parallel = _cheapest(question, [c for c in candidates if c.least.work <= UNEVEN * least])
    best = _cheaper(question, candidates, LESS_PARALLEL * parallel.cost) or parallel
    if not question.exchanges:
        return best
    others = _candidates(question, dict.fromkeys(o for a in given for o in on_other_loops(question, a)))
    return _cheaper(question, [c for c in others if c.least.work <= best.work], best.cost * (1 - ROUNDING)) or best


class _Candidate(NamedTuple):
    """An assignment, the partial sums to keep, and the choice that this is, with a lower bound of its cost."""

    assignment: Assignment
    kept: Passing
    least: Choice


def _candidates(question: Question, among: Iterable[Assignment]) -> list[_Candidate]:
    """The candidates of all assignments and partial sums to keep; invalid combinations are left out."""
    bounds = (
        (assignment, kept, _price(question, assignment, kept, least_reshard_cost))
        for assignment in among
        for kept in passing(question, assignment)
    )
    return [_Candidate(assignment, kept, least) for assignment, kept, least in bounds if least is not None]


def _cheapest(question: Question, candidates: Sequence[_Candidate]) -> Choice:
    """The first choice of least cost, up to rounding errors."""
    best = _cheaper(question, candidates, math.inf)
    assert best is not None  # the empty assignment always exists
    return best


def _cheaper(question: Question, candidates: Sequence[_Candidate], limit: float) -> Choice | None:
    """The first choice of least cost below ``limit``, up to rounding errors.

    Those with the lowest bounds are priced first, and those whose bound is too high not at all: to plan a reshard takes
    much longer than to bound it.
    """
    best, first = None, 0
    for number, candidate in sorted(enumerate(candidates), key=lambda c: c[1].least.cost):
        if candidate.least.cost >= limit:
            break
        choice = _price(question, candidate.assignment, candidate.kept)
        if choice is None or choice.cost >= limit:
            continue
        if best is None or choice.cost < best.cost * (1 - ROUNDING) or number < first:
            best, first = choice, number
            limit = best.cost * (1 + ROUNDING)
    return best


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


# --- prices -------------------------------------------------------------------------------------------------
def _price(q: Question, assignment: Assignment, kept: Passing, cost_of: ReshardCost = reshard_cost) -> Choice | None:
    """The choice with its cost; None if sums that pass and those that arise cannot be completed together."""
    rule, mesh = q.rule, q.mesh
    unit = prices(mesh)
    reduced = reduced_axes(q, assignment)
    combined = _reduction(q, assignment) if reduced else ""
    kind = _kind(q, kept)
    if kept.axes:
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
        if o in kept.operands:
            layout = layout.with_partial(kept.axes, kind, mesh)
        version, price = _bring(operand, layout, mesh, cost_of, q.together)
        price = price / operand.runs if q.once else price
        read = _local_bytes(operand.aval, layout, mesh)
        if any(rule.factors[f].indexed for fs in factors for f in fs):
            made = zip(q.results, (_layout(fs, sizes, assignment, mesh) for fs in rule.results))
            read = min(read, sum(_local_bytes(r, lo, mesh) for r, lo in made))  # of a table, rows that are looked up
        cost += price + memory * read
        in_layouts.append(layout)
        versions.append(version)
    cost += _exchanged(q, assignment, in_layouts)
    own = () if q.own is None else assignment[q.own]
    out_layouts = []
    results = zip(q.results, rule.results, q.targets, q.summands, q.reduced_with)
    for aval, factors, required, shared, together in results:
        layout = _layout(factors, sizes, assignment, mesh)
        partial = reduced if kept.joins else reduced + kept.axes
        if partial:
            layout = layout.with_partial(partial, combined, mesh)
        target = layout.drop_partial() if required is None else required.without(own)
        free = bool(partial) and set(partial) <= {*together, *own}
        start = layout.drop_partial() if free else layout
        price = cost_of(aval.shape, aval.dtype.itemsize, start, target, mesh)
        cost += (price + (unit.latency if price else 0)) / (shared if layout.partial else 1)
        cost += memory * _local_bytes(aval, layout, mesh)
        out_layouts.append(layout)
    return Choice(tuple(in_layouts), tuple(versions), tuple(out_layouts), cost, work)


def _reduction(q: Question, assignment: Assignment) -> str:
    """The kind of partial result that an assignment leaves: sums are masked if some device has no rows to add up."""
    split = zip(q.rule.factors, assignment)
    over = [(f.size, q.mesh.sizes(axes)) for f, axes in split if f.kind == REDUCTION and axes]
    idle = any((tiles - 1) * -(-size // tiles) >= size for size, tiles in over)
    return "masked" if idle and q.rule.reduction == "sum" else q.rule.reduction


def _kind(q: Question, kept: Passing) -> str:
    """The kind of sums that pass: masked if an operand has to be made partial, i.e. zeros on most devices."""
    if kept.kind != "sum" or q.adds:
        return kept.kind
    operands = (q.operands[o] for o in kept.operands)
    made = any(not o.zero and not any(set(kept.axes) <= set(v.partial) for v in o.versions) for o in operands)
    return "masked" if made else kept.kind


def _work(q: Question, assignment: Assignment) -> float:
    """Points of the loop nest on the device with the largest tiles."""
    work = q.rule.work * _repeats(q, assignment)
    for factor, axes in zip(q.rule.factors, assignment):
        if axes and not factor.indexed:
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
            tiles = [_local_bytes(q.operands[o].aval, layouts[o], q.mesh) for o in operands]
            cost += _passed(factor.passes(q.mesh.sizes(axes)), tiles, axes, q.mesh)
        elif axes and factor.kind == WINDOW:
            cost += 1.0
    return cost


def _passed(times: float, tiles: Sequence[int], axes: Axes, mesh: AbstractMesh) -> float:
    """The price of sending tiles of several arrays along axes ``times`` times; if a machine is given, in one collective
    for each array each time."""
    if not mesh.fabric.is_given:
        return prices(mesh).latency + times * sum(tiles)
    collectives, along = max(1, math.ceil(times)), mesh.coalesce(axes)
    each = (times * tile / collectives for tile in tiles)
    return collectives * sum(mesh.wire_price("collective_permute", along, sent, sent) for sent in each)


def _layout(
    factors: Sequence[tuple[int, ...]], sizes: Sequence[int], assignment: Assignment, mesh: AbstractMesh
) -> Layout:
    return Layout.tiled(tuple(join_axes(fs, sizes, assignment, mesh)[0] if fs else () for fs in factors))


def _bring(
    operand: Operand, layout: Layout, mesh: AbstractMesh, cost_of: ReshardCost, together: bool
) -> tuple[int, float]:
    """The version to start from, and the price of resharding it to ``layout``.

    The price of reducing a partial sum, or of resharding to the operand's target layout, is divided among all equations
    that use the operand; with ``together``, that of another reshard among those of the same form.
    """
    if operand.remade:
        again = operand.of_arrays and layout not in operand.versions
        return 0, _MADE * prices(mesh).memory * _local_bytes(operand.aval, layout, mesh) if again else 0.0
    best, price = 0, math.inf
    for i, version in enumerate(operand.versions):
        if version.partial and set(version.partial) <= set(operand.own) and not layout.axes_used & set(operand.own):
            version = version.drop_partial()
        cost: float = cost_of(operand.aval.shape, operand.aval.dtype.itemsize, version, layout, mesh)
        if cost:
            cost += prices(mesh).latency
            if (version.partial and not layout.partial) or layout == operand.target:
                cost /= operand.uses
            elif together:
                cost /= operand.alike
        if cost < price:
            best, price = i, cost
    return best, price


def _local_bytes(aval: ShapedArray, layout: Layout, mesh: AbstractMesh) -> int:
    return aval.dtype.itemsize * math.prod(layout.local_shape(aval.shape, mesh))
