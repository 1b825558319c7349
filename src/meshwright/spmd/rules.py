"""The sharding rules of equations, with a factor for every dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import JaxprEqn
from meshwright.ir.op import Op
from meshwright.sharding.rule import REPLICATED, DimFactors, Factor, ShardingRule


@lru_cache(maxsize=65536)
def rule_of(op: Op, avals: tuple[ShapedArray, ...]) -> ShardingRule:
    """The op's sharding rule, with a factor for every dimension; cached."""
    rule = op.sharding_rule(*avals)
    outs = op.infer(*avals)
    return with_core(rule, avals, outs if op.multiple_results else (outs,))


def with_core(rule: ShardingRule, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray]) -> ShardingRule:
    """Give factors of kind ``REPLICATED`` to the dimensions of a rule that have none, as they cannot be split.

    An axis on such a factor may then move to a free dimension instead of being dropped. Dimensions of equal position
    and size share one factor, so that an axis that moved away from an operand's dimension moves back to the result's.
    """
    factors = list(rule.factors)
    places: dict[tuple[int, int], int] = {}

    def factor_of(dim: int, size: int) -> DimFactors:
        if (dim, size) not in places:
            same = sum(place == dim for place, _ in places)
            places[dim, size] = len(factors)
            factors.append(Factor(f"whole{dim}" + "'" * same, size, REPLICATED))
        return (places[dim, size],)

    def filled(values: Sequence[tuple[DimFactors, ...]], avals: Sequence[ShapedArray]) -> tuple[Any, ...]:
        return tuple(
            tuple(fs if fs or size < 2 else factor_of(d, size) for d, (fs, size) in enumerate(zip(dims, aval.shape)))
            for dims, aval in zip(values, avals)
        )

    operands, results = filled(rule.operands, avals), filled(rule.results, outs)
    return replace(rule, factors=tuple(factors), operands=operands, results=results) if places else rule


def eqn_rule(eqn: JaxprEqn) -> ShardingRule:
    """The sharding rule of an equation, cached unless the op holds jaxprs."""
    avals = tuple(a.aval for a in eqn.invars)
    return eqn.op.sharding_rule(*avals) if eqn.op.holds_jaxprs else rule_of(eqn.op, avals)
