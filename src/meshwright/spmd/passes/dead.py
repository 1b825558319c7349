"""Dead collectives dropped, those in the bodies of control flow too.

A result that nobody uses is taken out of its loop or branches, and so is what a loop carries only for itself; then what
made it there is dead code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, Var, all_eqns
from meshwright.ir.op import Op
from meshwright.ir.passes import dead_code
from meshwright.ops.collective.collectives import Collective
from meshwright.ops.control.cond import Cond
from meshwright.ops.control.regions import arranged, pick, split
from meshwright.ops.control.scan import Scan
from meshwright.ops.control.while_loop import While

Flags = Sequence[bool]


def drop_dead(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Without what nobody needs, inside of control flow only where there are collectives."""
    jaxpr = dead_code(jaxpr)
    inner = jaxpr.jaxpr
    if not any(type(e.op) in _PRUNERS for e in inner.eqns):
        return jaxpr
    live = {a for a in inner.outvars if isinstance(a, Var)}
    eqns: list[JaxprEqn] = []
    for eqn in reversed(inner.eqns):
        if not eqn.op.has_effects and not any(v in live for v in eqn.outvars):
            continue
        prune = _PRUNERS.get(type(eqn.op))
        if prune is not None and _communicates(eqn.op):
            eqn = prune(eqn, eqn.op, [v in live for v in eqn.outvars])
        eqns.append(eqn)
        live.update(a for a in eqn.invars if isinstance(a, Var))
    if all(new is old for new, old in zip(reversed(eqns), inner.eqns)) and len(eqns) == len(inner.eqns):
        return jaxpr
    return dead_code(jaxpr.replace(jaxpr=inner.replace(eqns=eqns[::-1])))


def _communicates(op: Op) -> bool:
    return any(isinstance(e.op, Collective) for r in op.regions() for e in all_eqns(r.jaxpr))


def _used(jaxpr: Jaxpr) -> list[bool]:
    """Which parameters anything uses."""
    used = {a for e in jaxpr.eqns for a in e.invars}.union(jaxpr.outvars)
    return [v in used for v in jaxpr.invars]


def _only(jaxpr: ClosedJaxpr, outs: Flags) -> ClosedJaxpr:
    """The jaxpr with the flagged results only, and what they need."""
    if all(outs):
        return drop_dead(jaxpr)
    return drop_dead(arranged(jaxpr, jaxpr.jaxpr.invars, pick(jaxpr.jaxpr.outvars, outs)))


def _params(jaxpr: ClosedJaxpr, flags: Flags) -> ClosedJaxpr:
    return arranged(jaxpr, pick(jaxpr.jaxpr.invars, flags))


def _carried(body: ClosedJaxpr, first: int, live: Flags, outs: Flags) -> tuple[list[bool], ClosedJaxpr]:
    """Which carries are needed, by themselves or by results ``outs``, and the body with only these results."""
    carry = list(live)
    while True:
        pruned = _only(body, [*carry, *outs])
        needed = [a or b for a, b in zip(carry, _used(pruned.jaxpr)[first : first + len(carry)])]
        if needed == carry:
            return carry, pruned
        carry = needed


def _scan(eqn: JaxprEqn, op: Scan, live: Flags) -> JaxprEqn:
    c, k = op.num_consts, op.num_carry
    carry, body = _carried(op.jaxpr, c, live[:k], live[k:])
    used = _used(body.jaxpr)
    flags = [*used[:c], *carry, *used[c + k :]]
    if all(flags) and all(live[k:]) and body is op.jaxpr:
        return eqn
    new = op.with_body(_params(body, flags), sum(flags[:c]), sum(carry))
    return eqn.replace(op=new, invars=pick(eqn.invars, flags), outvars=pick(eqn.outvars, [*carry, *live[k:]]))


def _while(eqn: JaxprEqn, op: While, live: Flags) -> JaxprEqn:
    n, m = op.cond_nconsts, op.body_nconsts
    read = _used(op.cond_jaxpr.jaxpr)[n:]
    carry, body = _carried(op.body_jaxpr, m, [a or b for a, b in zip(live, read)], [])
    used = _used(body.jaxpr)[:m]
    if all(carry) and all(used) and body is op.body_jaxpr:
        return eqn
    cond = _params(op.cond_jaxpr, [*[True] * n, *carry])
    new = While(_params(body, [*used, *carry]), sum(used), cond, n)
    before, consts, init = split(eqn.invars, n, m)
    operands = [*before, *pick(consts, used), *pick(init, carry)]
    return eqn.replace(op=new, invars=operands, outvars=pick(eqn.outvars, carry))


def _cond(eqn: JaxprEqn, op: Cond, live: Flags) -> JaxprEqn:
    branches = [_only(b, live) for b in op.branches]
    used = [any(flags) for flags in zip(*(_used(b.jaxpr) for b in branches))]
    if all(live) and all(used) and all(a is b for a, b in zip(branches, op.branches)):
        return eqn
    new = Cond(tuple(_params(b, used) for b in branches))
    return eqn.replace(op=new, invars=pick(eqn.invars, [True, *used]), outvars=pick(eqn.outvars, live))


_PRUNERS: dict[type[Op], Callable[[JaxprEqn, Any, Flags], JaxprEqn]] = {Scan: _scan, While: _while, Cond: _cond}
