"""Equations that an axis reaches along several dimensions because of one annotation, and the other ways to split them.

In ``x[None] - x[:, None]``, the axis that splits the rows of ``x`` reaches both dimensions of the result, which it can
split along one of them only. Propagation takes the first, so that what follows (a sum over one of the dimensions) may
have to be reduced between the devices, although the other would need no communication. No annotation decides that, and
none has to be overridden.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from meshwright.ir.jaxpr import JaxprEqn, Var
from meshwright.sharding.rule import PARALLEL, ShardingRule
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.propagate import Propagation, reached
from meshwright.spmd.report import sent_for_equations
from meshwright.spmd.strategy import Turn

#: the least share of all bytes that must be sent at equations of a kind for an attempt to split them otherwise
SENT = 0.02


def turns(part: Partition) -> Iterator[Turn]:
    """Other ways to split results that axes reach along several dimensions; those with the most bytes sent there first,
    and of these the ones with the most axes."""
    sent = sent_for_equations(part.jaxpr.jaxpr)
    ways: Counter[Turn] = Counter()
    for eqn, rule in zip(part.propagation.origins.eqns, part.propagation.rules):
        for turn in _ways(eqn, rule, part.propagation) if sent[id(eqn)] else ():
            ways[turn] += sent[id(eqn)]
    least = SENT * sum(sent.values())
    return (turn for turn in sorted(ways, key=lambda t: (-ways[t], -len(t.axes))) if ways[turn] > least)


def _ways(eqn: JaxprEqn, rule: ShardingRule, propagation: Propagation) -> Iterator[Turn]:
    """For each result and dimension, the axes that also reach it along another dimension, by which it is not split."""
    by_axis = reached(eqn, rule, propagation)
    for result, var in enumerate(eqn.outvars) if by_axis else ():
        dims = propagation.layout(var).dims
        for dim, factors in enumerate(rule.results[result]):
            if len(factors) != 1 or rule.factors[factors[0]].kind != PARALLEL:
                continue
            for axes in dims[:dim] + dims[dim + 1 :]:
                for count in range(len(axes), 0, -1):
                    last = axes[-count:]
                    if all(
                        factors[0] in by_axis.get(a, ()) and _is_of_one_sort(by_axis[a], a, propagation) for a in last
                    ):
                        yield Turn(rule, last, result, dim)


def _is_of_one_sort(by_factor: Mapping[int, Sequence[Var]], axis: str, propagation: Propagation) -> bool:
    """Whether an axis reaches all factors from annotations of one sort. Between several, the search decides before."""
    causes = (propagation.origins.of(v, axis) for values in by_factor.values() for v in values)
    return len({cause.sort for cause in causes if cause is not None}) == 1
