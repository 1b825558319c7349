"""Arguments that no result depends on are no parameters of what is compiled."""

from __future__ import annotations

from dataclasses import replace

from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from meshwright.ir.passes import dead_code
from meshwright.ir.program import Program
from meshwright.ops.control.call import Jit


def pruned(program: Program) -> Program:
    """The program without arguments that neither results nor effects depend on, unless it is to keep them."""
    if program.keep_unused or program.given is not None:
        return program
    jaxpr = _needed(program.jaxpr)
    used = _used(jaxpr.jaxpr)
    kept = tuple(i for i, v in enumerate(jaxpr.jaxpr.invars) if v in used)
    if len(kept) == len(program.arguments):
        return program
    return replace(
        program,
        jaxpr=_taking(jaxpr, kept),
        arguments=tuple(program.arguments[i] for i in kept),
        given=program.arguments,
        kept=kept,
    )


def _used(jaxpr: Jaxpr) -> set[Var]:
    atoms = [*jaxpr.outvars, *(a for eqn in jaxpr.eqns for a in eqn.invars)]
    return {a for a in atoms if isinstance(a, Var)}


def _taking(jaxpr: ClosedJaxpr, kept: tuple[int, ...]) -> ClosedJaxpr:
    inner = jaxpr.jaxpr
    return jaxpr.replace(jaxpr=inner.replace(invars=[inner.invars[i] for i in kept]))


def _needed(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Without what nothing depends on: equations, and operands of jitted functions."""
    inner = jaxpr.jaxpr
    eqns = [_without_unused(e, e.op) if isinstance(e.op, Jit) else e for e in inner.eqns]
    same = all(a is b for a, b in zip(eqns, inner.eqns))
    return dead_code(jaxpr if same else jaxpr.replace(jaxpr=inner.replace(eqns=eqns)))


def _without_unused(eqn: JaxprEqn, op: Jit) -> JaxprEqn:
    body = _needed(op.jaxpr)
    used = _used(body.jaxpr)
    kept = tuple(i for i, v in enumerate(body.jaxpr.invars) if v in used)
    if len(kept) == len(eqn.invars):
        return eqn
    return eqn.replace(op=Jit(op.fun_name, _taking(body, kept), op.inline), invars=[eqn.invars[i] for i in kept])
