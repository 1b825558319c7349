"""Equations that a mesh axis does not split, so that devices repeat them, and ways to split them.

Propagation brings an axis to an equation only along dimensions that it shares with annotated values. If it reaches none
(the first convolution of a network whose later weights are split; a sort of what is whole), all devices along the axis
repeat the computation. Splitting the result may cost almost nothing: slicing a replicated operand sends nothing, and if
the next product needs the whole result, an all-gather of it and a reduce-scatter of its gradient replace one
all-reduce. A dimension that is already split (experts over an axis that they share with the batch) may be split
further. Loops that look up rows of a split table (binary searches) may do so each for its part of what is looked up:
then all that the loop carries is split. Whether this pays only shows in the whole program
(:mod:`meshwright.spmd.partition.lookahead`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn
from meshwright.ops.linalg.batched import Batched
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.evenness import well_divided
from meshwright.sharding.rule import ShardingRule
from meshwright.spmd.factors import Axes
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.propagate import Propagation, loop_axes
from meshwright.spmd.steptime.schedule import Schedule, step_time
from meshwright.spmd.strategy import Share

#: the least redundant share of a step that equations of one kind take, for an attempt to split them
REPEATED = 0.02
#: that of products, decompositions and lookups in loops, with which much of what is around them is split
WITH_OTHERS = 0.0005


def seconds_alone(jaxpr: ClosedJaxpr, mesh: AbstractMesh) -> dict[int, float]:
    """The seconds of arithmetic or memory traffic that one device takes for all runs of each equation of a program, by
    the ids of these."""
    return dict(_alone(step_time(jaxpr.jaxpr, mesh)))


def shares(part: Partition, seconds: float, alone: Mapping[int, float], leading: bool) -> Iterator[Share]:
    """Ways to split what is computed redundantly in a step of so many seconds, those with the most redundant time
    first: products, decompositions and lookups in loops (``leading``), with which much is split, or all else.

    ``alone``: see :func:`seconds_alone`."""
    propagation = part.propagation
    if any(eqn.op.is_manual for eqn in propagation.origins.eqns):
        return  # an axis that is idle outside of a manual region may be in use inside
    outside = set(map(id, part.source.jaxpr.eqns))
    computed: dict[Atom, Layout] = {}
    for whole, layout in part.stands_for.values():
        computed.setdefault(whole, layout)
    found: dict[tuple[ShardingRule, Axes], JaxprEqn] = {}
    repeated = defaultdict[tuple[ShardingRule, Axes], float](float)
    for eqn, rule in zip(propagation.origins.eqns, propagation.rules):
        layouts = [computed[v] for v in eqn.outvars if v in computed]
        # What is not found among these is computed in another form: transforms a dimension at a time, others as split.
        computes = id(eqn) in alone and (layouts or isinstance(eqn.op, Batched))
        if computes and _leads(eqn, rule, id(eqn) not in outside) == leading:
            idle = _idle(eqn, rule, propagation, layouts)
            found.setdefault((rule, idle), eqn)
            tiles = part.mesh.sizes(loop_axes(eqn, rule, lambda a: propagation.layout(a).dims))
            repeated[rule, idle] += alone[id(eqn)] / tiles * (1 - 1 / part.mesh.sizes(idle))
    least = seconds * (WITH_OTHERS if leading else REPEATED)
    for (rule, idle), more in sorted(repeated.items(), key=lambda item: -item[1]):
        if more > least:
            yield from _along(found[rule, idle], rule, idle, propagation)


def _leads(eqn: JaxprEqn, rule: ShardingRule, in_region: bool) -> bool:
    return rule.is_product or isinstance(eqn.op, Batched) or (in_region and _looks_up(rule))


def _looks_up(rule: ShardingRule) -> bool:
    return any(factor.indexed for factor in rule.factors)


def _alone(schedule: Schedule, times: int = 1) -> Iterator[tuple[int, float]]:
    """The equations of a program, by their ids, and the seconds of arithmetic or memory traffic of all their runs."""
    for step in schedule.steps:
        yield id(step.eqn), times * max(step.alone.arithmetic, step.alone.memory)
        for inside in step.inside:
            yield from _alone(inside, times * step.trips)


def _idle(eqn: JaxprEqn, rule: ShardingRule, propagation: Propagation, computed: Sequence[Layout]) -> Axes:
    """The axes that split no result of an equation and none of its loops: what they split of an operand has to be whole
    for it (a dimension that is transformed). Nor are its results, ``computed`` in these layouts, parts of sums over
    them, unless devices look up all rows, each in its part of a table."""
    busy = loop_axes(eqn, rule, lambda a: propagation.layout(a).dims)
    busy = busy.union(*(propagation.layout(v).axes_used for v in eqn.outvars))
    if not _looks_up(rule):
        busy = busy.union(*(layout.partial for layout in computed))
    return tuple(a for a in propagation.mesh.atoms if a not in busy)


def _along(eqn: JaxprEqn, rule: ShardingRule, idle: Axes, propagation: Propagation) -> Iterator[Share]:
    """A share for each dimension of the result that divides well: unsplit ones first, then by decreasing size."""
    shape, layout, mesh = eqn.outvars[0].aval.shape, propagation.layout(eqn.outvars[0]), propagation.mesh
    free = [d for d, factors in enumerate(rule.results[0]) if rule.is_parallel(factors)]
    free.sort(key=lambda d: (bool(layout.dims[d]), -shape[d]))
    for d in well_divided({d: (shape[d], mesh.sizes((*layout.dims[d], *idle))) for d in free}):
        yield Share(rule, d, idle)
