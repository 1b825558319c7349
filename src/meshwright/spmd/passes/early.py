"""Starts all-reduces before arithmetic that commutes with them, if no more bytes are sent.

The partitioner completes a partial sum where it is needed whole, that is, after any scaling. Started before it, the sum
arrives earlier, and the scaling is fused with the reader of the sum, not a kernel of its own between a product and the
sum; XLA's compiler for TPUs also gives a lone subtraction a worse tiling (1.36 times the cycles) than one that contains
a product. Ops that only move elements are not crossed, as compilers make them part of the product before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from meshwright.ir.jaxpr import Jaxpr, JaxprEqn, Var
from meshwright.ir.rewrite import producers_of, use_counts
from meshwright.ops.collective.all_reduce import AllReduce
from meshwright.spmd.passes.partial_sums import commutes, meets
from meshwright.spmd.varying import Variance


class _Step(NamedTuple):
    """An equation that an all-reduce moves before, and the operand that is reduced instead of the result."""

    eqn: JaxprEqn
    operand: int


def start_early(jaxpr: Jaxpr, variance: Variance) -> Jaxpr:
    """Move all-reduces before the arithmetic that they commute with."""
    uses, producers = use_counts(jaxpr.eqns, jaxpr.outvars), producers_of(jaxpr)
    replaced: dict[int, list[JaxprEqn]] = {}
    for eqn in jaxpr.eqns:
        if isinstance(eqn.op, AllReduce) and (steps := _steps(eqn, eqn.op, uses, producers, variance)):
            replaced.update(_before(eqn, steps))
    if not replaced:
        return jaxpr
    return jaxpr.replace(eqns=[new for eqn in jaxpr.eqns for new in replaced.get(id(eqn), [eqn])])


def _steps(
    eqn: JaxprEqn, op: AllReduce, uses: Mapping[Var, int], producers: Mapping[Var, JaxprEqn], variance: Variance
) -> list[_Step]:
    """The equations that an all-reduce can move before, nearest first."""
    steps: list[_Step] = []
    value = eqn.invars[0]
    while isinstance(value, Var) and uses[value] == 1 and value in producers:
        step = _step(producers[value], op, variance)
        if step is None:
            break
        steps.append(step)
        value = step.eqn.invars[step.operand]
    return steps


def _step(maker: JaxprEqn, collective: AllReduce, variance: Variance) -> _Step | None:
    """The step over an equation with one partial operand, which is no larger than its result."""
    op = maker.op
    if len(maker.outvars) != 1 or op.has_effects or op.holds_jaxprs or op.moves_only or not op.computes:
        return None
    if meets(op, collective, variance):
        return None
    partial = [i for i, a in enumerate(maker.invars) if not variance.same(a, collective.axes)]
    if len(partial) != 1 or not commutes(maker, frozenset(partial), collective):
        return None
    before, after = maker.invars[partial[0]].aval, maker.outvars[0].aval
    return _Step(maker, partial[0]) if before.dtype == after.dtype and before.size <= after.size else None


def _before(eqn: JaxprEqn, steps: list[_Step]) -> dict[int, list[JaxprEqn]]:
    """The equations that replace the all-reduce and the equations that it moves before, by ``id``."""
    first = steps[-1]
    whole = Var(first.eqn.invars[first.operand].aval)
    replaced = {id(eqn): list[JaxprEqn]()}
    start = eqn.replace(invars=[first.eqn.invars[first.operand]], outvars=[whole])
    for step in reversed(steps):
        result = eqn.outvars[0] if step is steps[0] else Var(step.eqn.outvars[0].aval)
        invars = [whole if i == step.operand else a for i, a in enumerate(step.eqn.invars)]
        replaced[id(step.eqn)] = [step.eqn.replace(invars=invars, outvars=[result])]
        whole = result
    replaced[id(first.eqn)].insert(0, start)
    return replaced
