"""Dead code elimination, including the bodies of control flow.

Unused results are removed from loops and branches, and so are carries that only their own update reads. What computed
them in the bodies is then dead code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.passes import dead_code
from meshwright.ir.rewrite import rebuilt
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.control.regions import arranged, pick

Flags = Sequence[bool]


def drop_dead(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Remove unused values, including those inside control flow."""
    jaxpr = dead_code(jaxpr)
    inner = jaxpr.jaxpr
    if not any(isinstance(e.op, ControlOp) for e in inner.eqns):
        return jaxpr
    live = {a for a in inner.outvars if isinstance(a, Var)}
    eqns: list[JaxprEqn] = []
    for eqn in reversed(inner.eqns):
        if not eqn.op.has_effects and not any(v in live for v in eqn.outvars):
            continue
        if isinstance(eqn.op, ControlOp):
            eqn = _prune(eqn, eqn.op, [v in live for v in eqn.outvars])
        eqns.append(eqn)
        live.update(a for a in eqn.invars if isinstance(a, Var))
    return dead_code(jaxpr.replace(jaxpr=rebuilt(inner, eqns[::-1])))


def _only(jaxpr: ClosedJaxpr, outs: Flags) -> ClosedJaxpr:
    """The jaxpr with only the flagged results and what they depend on."""
    if all(outs):
        return drop_dead(jaxpr)
    return drop_dead(arranged(jaxpr, jaxpr.jaxpr.invars, pick(jaxpr.jaxpr.outvars, outs)))


def _prune(eqn: JaxprEqn, op: ControlOp, live: Flags) -> JaxprEqn:
    """The equation with only its live results; a carry stays if a result, a step or a test needs it."""
    numbers, bodies = op.numbers(), op.bodies()
    k = len(numbers.carry)
    carry, outs = list(live[:k]), live[k:]
    while True:
        pruned = [b if b.tests else replace(b, jaxpr=_only(b.jaxpr, [*carry, *outs])) for b in bodies]
        used = {n for i, b in enumerate(pruned) for n in pick(numbers.of(i), b.used())}
        needed = [flag or n in used for flag, n in zip(carry, numbers.carry)]
        if needed == carry:
            break
        carry = needed
    kept = {*numbers.choice, *used, *pick(numbers.carry, carry)}
    if len(kept) == len(eqn.invars) and all(outs) and all(a.jaxpr is b.jaxpr for a, b in zip(pruned, bodies)):
        return eqn
    new = op.with_bodies([b.only([n in kept for n in numbers.of(i)]) for i, b in enumerate(pruned)])
    operands = [a for n, a in enumerate(eqn.invars) if n in kept]
    return eqn.replace(op=new, invars=operands, outvars=pick(eqn.outvars, [*carry, *outs]))
