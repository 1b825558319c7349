"""Gathers a value once that is gathered as it is and transposed, or transposed in several ways.

Weights that an encoder and a decoder share are multiplied by in both orders. If devices hold parts of them, each order
would be gathered.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from meshwright.ir.jaxpr import Jaxpr, JaxprEqn, Var
from meshwright.ir.rewrite import producers_of, written_out
from meshwright.ir.value_numbers import ValueNumbers
from meshwright.ops.collective.tiles import AllGather
from meshwright.ops.shape.rearrange import Transpose
from meshwright.spmd.passes.cse import common_collectives
from meshwright.spmd.varying import Variance


class _Gather(NamedTuple):
    """A gather as one of ``x``, by the op ``gather``, with the transpositions of its result, in order."""

    x: Var
    gather: AllGather
    turned: tuple[Transpose, ...]


def gather_untransposed(jaxpr: Jaxpr, variance: Variance) -> Jaxpr:
    """Gather what is gathered in several orders of its dimensions before it is transposed."""
    makers = producers_of(jaxpr)
    found = {e: _untransposed(e, e.op, makers) for e in jaxpr.eqns if isinstance(e.op, AllGather)}
    if not any(g.turned for g in found.values()):
        return jaxpr
    numbers = ValueNumbers(jaxpr)
    orders: dict[Hashable, set[tuple[Transpose, ...]]] = {}
    for g in found.values():
        orders.setdefault((numbers.of(g.x), g.gather), set()).add(g.turned)
    before = {e: g for e, g in found.items() if g.turned and len(orders[numbers.of(g.x), g.gather]) > 1}
    if not before:
        return jaxpr
    eqns = [step for e in jaxpr.eqns for step in (_steps(e, before[e]) if e in before else [e])]
    return common_collectives(jaxpr.replace(eqns=eqns), variance)


def _untransposed(eqn: JaxprEqn, gather: AllGather, makers: Mapping[Var, JaxprEqn]) -> _Gather:
    x: Any = eqn.invars[0]
    turned: tuple[Transpose, ...] = ()
    while x in makers and isinstance(op := makers[x].op, Transpose):
        gather, turned = replace(gather, dimension=op.permutation[gather.dimension]), (op, *turned)
        x = makers[x].invars[0]
    return _Gather(x, gather, turned)


def _steps(eqn: JaxprEqn, g: _Gather) -> list[JaxprEqn]:
    """The equations that gather first, and then transpose."""

    def gathered(x: Any) -> Any:
        for op in (g.gather, *g.turned):
            x = op.bind(x)
        return [x]

    return written_out(eqn.replace(invars=[g.x]), gathered, dict(zip(g.gather.axes, g.gather.sizes)))
