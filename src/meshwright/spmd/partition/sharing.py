"""Which partial sums will be added before they are completed.

A choice at one equation cannot see that its partial result will meet others: the input gradients of the query, key and
value projections are three partial sums, and their sum needs one all-reduce. For every value this counts how many
contractions flow into the same completed sum, so that each can be charged its part; a choice of branches is one. Those
that turn out to be whole on every device share nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, JaxprEqn, Var
from meshwright.ir.rewrite import use_counts
from meshwright.ops.control.regions import RegionOp
from meshwright.sharding.rule import REDUCTION, ShardingRule
from meshwright.spmd.flatten import eqn_rule


def summands(
    eqns: Sequence[JaxprEqn],
    rules: Sequence[ShardingRule],
    outvars: Sequence[Atom],
    repeats: Mapping[Atom, int],
) -> Summands:
    """For each value, the number of contractions in the sum that it becomes part of before something needs it whole.

    ``repeats`` are the outputs that are added up further outside, so many times.
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
    """``ends``: the sum that each value becomes part of; ``left``: of how many ``contractions`` it is that may be
    partial; ``repeats``: how often one is added up further outside."""

    ends: Mapping[Var, Var]
    contractions: frozenset[Var]
    left: dict[Var, int]
    repeats: Mapping[Atom, int]

    def of(self, var: Var) -> int:
        """How many share the completion of the sum that a value becomes part of."""
        end = self.ends.get(var)
        return 1 if end is None else max(1, self.left[end]) * self.repeats.get(end, 1)

    def whole(self, var: Var) -> None:
        """Note that a value is not partial; if it is a contraction, it shares nothing."""
        if var in self.contractions:
            self.left[self.ends[var]] -= 1


def _sums(
    eqns: Sequence[JaxprEqn], rules: Sequence[ShardingRule], uses: Mapping[Var, int]
) -> tuple[dict[Var, int], dict[Var, Var]]:
    """The sums of contractions, of how many each is, and the sums that they are terms of alone."""
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
    """For the results of a choice of branches, whether they are such sums in one of these."""
    if not isinstance(eqn.op, RegionOp) or not eqn.op.chooses:
        return
    branches = [region.jaxpr for region in eqn.op.regions()]
    sums = [_sums(b.eqns, [*map(eqn_rule, b.eqns)], use_counts(b.eqns, b.outvars))[0] for b in branches]
    for ways in zip(*(b.outvars for b in branches)):
        yield any(way in inside for way, inside in zip(ways, sums))


def _group(eqn: JaxprEqn, leaves: dict[Var, int]) -> tuple[int, ...]:
    """The operands through which partial sums pass, of those that may be partial."""
    groups = eqn.op.linear_groups(*(a.aval for a in eqn.invars)) or (((0,),) if eqn.op.moves_only else ())
    for group in groups:
        if any(atom in leaves for i in group if isinstance(atom := eqn.invars[i], Var)):
            return group
    return ()
