"""Products that devices repeat because an axis of the mesh splits nothing of them, and how it could share them.

An axis reaches a product along dimensions that its operands or its result have in common with annotated values. Where
none does (the first convolution of a network whose later weights are split), every device along the axis computes the
same, though a split of the result may cost next to nothing: what is cut out of a replicated operand is not sent, and
where the next product needs the whole, a gather of the result and the scattered sum of its gradient take the place of
one sum. A dimension that is split already (experts over an axis that they share with the batch) may be split further.
Whether that pays shows in the whole program only (:mod:`meshwright.spmd.partition.lookahead`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from meshwright.ir.jaxpr import JaxprEqn, Var
from meshwright.sharding.rule import PARALLEL, ShardingRule
from meshwright.spmd.partition.record import Partition
from meshwright.spmd.propagate import Propagation
from meshwright.spmd.strategy import Share
from meshwright.spmd.work import Work, work_of

#: regions that have axes of their own: what is idle outside of them is not so inside
HELD = frozenset({"shard_map", "custom_partitioning"})
#: what products must be repeated altogether, and those of one kind, before it is tried to share them
REPEATED, SHARED = 1.02, 0.01


def shares(part: Partition) -> Iterator[Share]:
    """Ways to share what is repeated of products, those first that are repeated most."""
    propagation = part.propagation
    if any(eqn.op.name in HELD for eqn in propagation.origins.eqns):
        return
    work: Work = work_of(part.jaxpr.jaxpr, part.source.jaxpr, part.mesh)
    if work.product_redundancy <= REPEATED:
        return
    found: dict[tuple[ShardingRule, tuple[str, ...]], JaxprEqn] = {}
    excess: Counter[tuple[ShardingRule, tuple[str, ...]]] = Counter()
    total = 0
    for eqn, rule in zip(propagation.origins.eqns, propagation.rules):
        if rule.is_product:
            idle = _idle(eqn, propagation)
            found.setdefault((rule, idle), eqn)
            excess[rule, idle] += rule.work * (propagation.mesh.sizes(idle) - 1)
            total += rule.work
    for (rule, idle), more in excess.most_common():
        if more > SHARED * total:
            yield from _along(found[rule, idle], rule, idle, propagation)


def _idle(eqn: JaxprEqn, propagation: Propagation) -> tuple[str, ...]:
    """The axes that split nothing of an equation."""
    values = [a for a in (*eqn.invars, *eqn.outvars) if isinstance(a, Var)]
    used = {axis for v in values for axis in propagation.layout(v).axes_used}
    return tuple(a for a in propagation.mesh.atoms if a not in used)


def _along(eqn: JaxprEqn, rule: ShardingRule, idle: tuple[str, ...], propagation: Propagation) -> Iterator[Share]:
    """Along each dimension of the result that divides evenly: those that nothing splits, the largest first, then the
    others."""
    (out,) = eqn.outvars
    layout, mesh = propagation.layout(out), propagation.mesh
    for d in sorted(range(len(layout.dims)), key=lambda d: (bool(layout.dims[d]), -out.aval.shape[d])):
        factors, tiles = rule.results[0][d], mesh.sizes((*layout.dims[d], *idle))
        if out.aval.shape[d] % tiles == 0 and len(factors) == 1 and rule.factors[factors[0]].kind == PARALLEL:
            yield Share(rule, d, idle)
