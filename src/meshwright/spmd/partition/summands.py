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
    repeats: Mapping[Atom, float],
) -> Summands:
    """For each value, the number of contractions in the sum that it becomes part of before that is reduced.

    ``repeats`` maps outputs that are accumulated outside of the region to the number of times.
    """
    uses = use_counts(eqns, outvars)
    leaves, flows, contractions = _sums(eqns, rules, uses)
    ends: dict[Var, Var] = {}
    for eqn in reversed(eqns):
        for out in eqn.outvars:
            if out in leaves:
                ends[out] = ends[flows[out]] if out in flows else out
    return Summands(ends, frozenset(contractions), {end: leaves[end] for end in ends.values()}, leaves, repeats, {})


@dataclass(frozen=True)
class Summands:
    """``ends``: the sum that each value becomes part of; ``left``: for each such sum, the number of ``contractions`` in
    it that may be partial; ``sizes``: the number of contractions in each value; ``repeats``: how often an output is
    accumulated outside of the region; ``partial``: the axes over which the contractions of a sum that are computed
    already are partial."""

    ends: Mapping[Var, Var]
    contractions: frozenset[Var]
    left: dict[Var, int]
    sizes: Mapping[Var, int]
    repeats: Mapping[Atom, float]
    partial: dict[Var, set[str]]

    def of(self, var: Var) -> float:
        """The number of values like ``var`` that share the reduction of the sum that it becomes part of: by the number
        of contractions in them."""
        end = self.ends.get(var)
        return 1 if end is None else max(1, self.left[end] / self.sizes[var]) * self.repeats.get(end, 1)

    def reduced_with(self, var: Var) -> tuple[str, ...]:
        """The axes over which a contraction may be partial for nothing: others of its sum are reduced over them."""
        return tuple(sorted(self.partial.get(self.ends[var], ()))) if var in self.contractions else ()

    def computed(self, var: Var, axes: Sequence[str]) -> None:
        """Record that ``var`` is partial over ``axes``; if it is a contraction and there are none, it no longer
        counts."""
        if var not in self.contractions:
            return
        if axes:
            self.partial.setdefault(self.ends[var], set()).update(axes)
        else:
            self.left[self.ends[var]] -= 1


def _sums(
    eqns: Sequence[JaxprEqn], rules: Sequence[ShardingRule], uses: Mapping[Var, int]
) -> tuple[dict[Var, int], dict[Var, Var], set[Var]]:
    """The sums of contractions with the number of contractions in each; for those that are only used as a term of
    another sum, that sum; and the contractions."""
    leaves: dict[Var, int] = {}
    flows: dict[Var, Var] = {}
    contractions: set[Var] = set()
    for eqn, rule in zip(eqns, rules):
        if eqn.op.holds_jaxprs:
            chosen = [out for out, is_sum in zip(eqn.outvars, _chosen_sums(eqn)) if is_sum]
            leaves.update(dict.fromkeys(chosen, 1))
            contractions.update(chosen)
            continue
        if len(eqn.outvars) != 1:
            continue
        out = eqn.outvars[0]
        reduces = any(f.kind == REDUCTION for f in rule.factors) and rule.reduction in ("sum", "masked")
        group = rule.joins if reduces else _group(eqn, leaves)
        terms = [a for i in group if isinstance(a := eqn.invars[i], Var) and a in leaves and uses[a] == 1]
        if len(eqn.invars) == 1 and any(a.aval.size < out.aval.size for a in terms):
            terms = []  # what is broadcast is summed before, for its own price
        if reduces:
            contractions.add(out)
        if reduces or terms:
            leaves[out] = sum(leaves[a] for a in terms) + reduces
            flows.update(dict.fromkeys(terms, out))
    return leaves, flows, contractions


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
    groups = eqn.op.linear_groups(*(a.aval for a in eqn.invars))
    for group in groups:
        if any(atom in leaves for i in group if isinstance(atom := eqn.invars[i], Var)):
            return group
    return ()
