"""Products and decompositions that a mesh axis does not split, so that devices repeat them, and ways to split them.

Propagation brings an axis to a product only along dimensions that the product shares with annotated values. If it
reaches none (the first convolution of a network whose later weights are split), all devices along the axis repeat the
computation. Splitting the result may cost almost nothing: slicing a replicated operand sends nothing, and if the next
product needs the whole result, an all-gather of it and a reduce-scatter of its gradient replace one all-reduce. A
dimension that is already split (experts over an axis that they share with the batch) may be split further. The same
goes for Fourier transforms and decompositions of many matrices, along the dimensions that number these. Whether this
pays only shows in the whole program (:mod:`meshwright.spmd.partition.lookahead`).

Loops that look up rows of a split table (binary searches) may do so on all devices, too, each for its part of what is
looked up: then all that the loop carries is split.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from meshwright.ir.jaxpr import JaxprEqn
from meshwright.ops.linalg.batched import Batched
from meshwright.sharding.evenness import well_divided
from meshwright.sharding.rule import ShardingRule
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.propagate import Propagation, loop_axes
from meshwright.spmd.report import totals
from meshwright.spmd.strategy import Share
from meshwright.spmd.work import Work, work_of

#: the least redundancy of all products, and the least share of redundant work of one kind, for an attempt to split them
REPEATED, SHARED = 1.02, 0.01


def shares(part: Partition) -> Iterator[Share]:
    """Ways to split redundantly computed products, those with the most redundant work first, then lookups in loops."""
    propagation = part.propagation
    if any(eqn.op.is_manual for eqn in propagation.origins.eqns):
        return  # an axis that is idle outside of a manual region may be in use inside
    yield from _of_products(part, propagation)
    yield from _of_lookups(part, propagation)


def _of_products(part: Partition, propagation: Propagation) -> Iterator[Share]:
    batched = any(isinstance(eqn.op, Batched) for eqn in propagation.origins.eqns)
    work: Work = work_of(part.jaxpr.jaxpr, part.source.jaxpr, part.mesh)
    if work.product_redundancy <= REPEATED and not batched:
        return
    least = SHARED * totals(part.jaxpr.jaxpr)[1]
    found: dict[tuple[ShardingRule, tuple[str, ...]], JaxprEqn] = {}
    excess: Counter[tuple[ShardingRule, tuple[str, ...]]] = Counter()
    total = 0
    for eqn, rule in zip(propagation.origins.eqns, propagation.rules):
        if _is_large(eqn, rule):
            idle = _idle(eqn, rule, propagation)
            found.setdefault((rule, idle), eqn)
            excess[rule, idle] += rule.work * (propagation.mesh.sizes(idle) - 1)
            total += rule.work
    for (rule, idle), more in excess.most_common():
        # What is decomposed has often just been summed over these axes: less is sent too, if it is large.
        summed = not rule.is_product and _held(found[rule, idle], propagation) > least
        if more > SHARED * total or (idle and summed):
            yield from _along(found[rule, idle], rule, idle, propagation)


def _of_lookups(part: Partition, propagation: Propagation) -> Iterator[Share]:
    """Ways to split what loops look up in tables, by the axes that split the tables and nothing else there."""
    outside = set(map(id, part.source.jaxpr.eqns))
    for eqn, rule in zip(propagation.origins.eqns, propagation.rules):
        if not any(factor.indexed for factor in rule.factors) or len(eqn.invars) != 2 or id(eqn) in outside:
            continue
        table, result = propagation.layout(eqn.invars[0]), propagation.layout(eqn.outvars[0])
        busy = loop_axes(eqn, rule, lambda a: propagation.layout(a).dims) | set(result.axes_used)
        axes = tuple(a for a in propagation.mesh.atoms if a in table.axes_used and a not in busy)
        if axes:
            yield from _along(eqn, rule, axes, propagation)


def _is_large(eqn: JaxprEqn, rule: ShardingRule) -> bool:
    """Whether an equation is worth splitting for its work alone: a product, or a decomposition of many matrices."""
    return rule.is_product or isinstance(eqn.op, Batched)


def _held(eqn: JaxprEqn, propagation: Propagation) -> float:
    """The bytes of an equation's first operand on a device."""
    x, layout = eqn.invars[0], propagation.layout(eqn.invars[0])
    return x.aval.nbytes / math.prod(layout.num_tiles(d, propagation.mesh) for d in range(x.aval.ndim))


def _idle(eqn: JaxprEqn, rule: ShardingRule, propagation: Propagation) -> tuple[str, ...]:
    """The axes that split no result of an equation and none of its loops: what they split of an operand has to be whole
    for it (a dimension that is transformed)."""
    busy = loop_axes(eqn, rule, lambda a: propagation.layout(a).dims)
    busy = busy.union(*(propagation.layout(v).axes_used for v in eqn.outvars))
    return tuple(a for a in propagation.mesh.atoms if a not in busy)


def _along(eqn: JaxprEqn, rule: ShardingRule, idle: tuple[str, ...], propagation: Propagation) -> Iterator[Share]:
    """A share for each dimension of the result that divides well: unsplit ones first, then by decreasing size."""
    shape, layout, mesh = eqn.outvars[0].aval.shape, propagation.layout(eqn.outvars[0]), propagation.mesh
    free = [d for d, factors in enumerate(rule.results[0]) if rule.is_parallel(factors)]
    free.sort(key=lambda d: (bool(layout.dims[d]), -shape[d]))
    for d in well_divided({d: (shape[d], mesh.sizes((*layout.dims[d], *idle))) for d in free}):
        yield Share(rule, d, idle)
