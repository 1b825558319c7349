"""Counts the partial sums that are added up before one collective reduces them.

A choice at one equation does not see that its partial result will be added to others: the input gradients of the query,
key and value projections are three partial sums, but their sum needs only one all-reduce. For every value, this module
counts the contractions that flow into the same reduced sum, so that each is charged its share of the cost. A
conditional counts as one contraction. Contractions whose results turn out not to be partial are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, JaxprEqn, Var
from meshwright.ir.rewrite import use_counts
from meshwright.ops.control.regions import RegionOp
from meshwright.sharding.rule import REDUCTION, ShardingRule
from meshwright.spmd.rules import eqn_rule


def summands(
    eqns: Sequence[JaxprEqn],
    rules: Sequence[ShardingRule],
    outvars: Sequence[Atom],
    repeats: Mapping[Atom, int],
) -> Summands:
    """For each value, the number of contractions in the sum that it becomes part of before that is reduced.

    ``repeats`` maps outputs that are accumulated outside of the region to the number of times.
    """
    uses = use_counts(eqns, outvars)
    leaves, flows = _sums(eqns, rules, uses)
    ends: dict[Var, Var] = {}
    for eqn in reversed(eqns):
        for out in eqn.outvars:
            if out in leaves:
                ends[out] = ends[flows[out]] if out in flows else out
    contractions = frozenset(leaves).difference(flows.values())
    return Summands(ends, contractions, {end: leaves[end] for end in ends.values()}, repeats)


@dataclass(frozen=True)
class Summands:
    """``ends``: the sum that each value becomes part of; ``left``: for each such sum, the number of ``contractions`` in
    it that may be partial; ``repeats``: how often an output is accumulated outside of the region."""

    ends: Mapping[Var, Var]
    contractions: frozenset[Var]
    left: dict[Var, int]
    repeats: Mapping[Atom, int]

    def of(self, var: Var) -> int:
        """The number of contractions that share the reduction of the sum that ``var`` becomes part of."""
        end = self.ends.get(var)
        return 1 if end is None else max(1, self.left[end]) * self.repeats.get(end, 1)

    def whole(self, var: Var) -> None:
        """Record that ``var`` is not partial; if it is a contraction, it no longer counts."""
        if var in self.contractions:
            self.left[self.ends[var]] -= 1


def _sums(
    eqns: Sequence[JaxprEqn], rules: Sequence[ShardingRule], uses: Mapping[Var, int]
) -> tuple[dict[Var, int], dict[Var, Var]]:
    """The sums of contractions with the number of contractions in each, and for those that are only used as a term of
    another sum, that sum."""
    leaves: dict[Var, int] = {}
    flows: dict[Var, Var] = {}
    for eqn, rule in zip(eqns, rules):
        if eqn.op.holds_jaxprs:
            leaves.update((out, 1) for out, is_sum in zip(eqn.outvars, _chosen_sums(eqn)) if is_sum)
            continue
        if len(eqn.outvars) != 1:
            continue
        out = eqn.outvars[0]
        if any(f.kind == REDUCTION for f in rule.factors) and rule.reduction in ("sum", "masked"):
            leaves[out] = 1
            continue
        group = _group(eqn, leaves)
        terms = [a for i in group if isinstance(a := eqn.invars[i], Var) and a in leaves and uses[a] == 1]
        if terms:
            leaves[out] = sum(leaves[a] for a in terms)
            flows.update(dict.fromkeys(terms, out))
    return leaves, flows


def _chosen_sums(eqn: JaxprEqn) -> Iterator[bool]:
    """For each result of a conditional, whether it is a sum of contractions in some branch."""
    if not isinstance(eqn.op, RegionOp) or not eqn.op.chooses:
        return
    branches = [region.jaxpr for region in eqn.op.regions()]
    sums = [_sums(b.eqns, [*map(eqn_rule, b.eqns)], use_counts(b.eqns, b.outvars))[0] for b in branches]
    for ways in zip(*(b.outvars for b in branches)):
        yield any(way in inside for way, inside in zip(ways, sums))


def _group(eqn: JaxprEqn, leaves: dict[Var, int]) -> tuple[int, ...]:
    """The first group of operands through which partial sums pass that includes a sum of contractions."""
    groups = eqn.op.linear_groups(*(a.aval for a in eqn.invars)) or (((0,),) if eqn.op.moves_only else ())
    for group in groups:
        if any(atom in leaves for i in group if isinstance(atom := eqn.invars[i], Var)):
            return group
    return ()
