"""Moves collectives of loop-invariant values, and slices of them, out of their loops.

A value that depends only on a loop's constants and unchanged carries is the same in every iteration. Collectives of
such values, and the slices that a device takes of those the loop is given, move in front of the loop together with what
they are computed from, and the loop gets their results as constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn, Literal, Var
from meshwright.ir.rewrite import rebuilt
from meshwright.ops.collective.base import Collective
from meshwright.ops.collective.inside import collectives_of
from meshwright.ops.control.bodies import Body
from meshwright.ops.control.flow import ControlOp
from meshwright.spmd.varying import Variance


def hoist_invariants(jaxpr: Jaxpr, variance: Variance) -> Jaxpr:
    """Move collectives of loop-invariant values out of the bodies of loops."""
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        op = eqn.op
        loop = op if isinstance(op, ControlOp) and not op.chooses and op.trips(eqn.invars) != 0 else None
        eqns += [eqn] if loop is None else _hoisted(eqn, loop)
    return rebuilt(jaxpr, eqns)


def _hoisted(eqn: JaxprEqn, op: ControlOp) -> list[JaxprEqn]:
    """The equations that are moved out, followed by the loop without them."""
    operands, bodies = op.parts(eqn.invars), list(op.bodies())
    ((number, step),) = op.working()
    body = step.jaxpr.jaxpr
    outside = _invariants(step, operands.consts[number], operands.carry)
    moving = _moving(body, outside)
    if not moving:
        return [eqn]
    names: dict[Var, Atom] = dict(outside)
    before = []
    for inner in moving:
        outs = [Var(v.aval) for v in inner.outvars]
        taken = [a if isinstance(a, Literal) else names[a] for a in inner.invars]
        names.update(zip(inner.outvars, outs))
        before.append(inner.replace(invars=taken, outvars=outs))
    gone = {id(e) for e in moving}
    kept = [e for e in body.eqns if id(e) not in gone]
    used = {a for e in kept for a in e.invars}.union(body.outvars)
    more = [v for e in moving for v in e.outvars if v in used]
    consts, carry, rows = step.split(body.invars)
    without = body.replace(invars=[*consts, *more, *carry, *rows], eqns=kept)
    bodies[number] = replace(step, jaxpr=step.jaxpr.replace(jaxpr=without), num_consts=len(consts) + len(more))
    operands.consts[number] += [names[v] for v in more]
    return [*before, eqn.replace(op=op.with_bodies(bodies), invars=operands.flat())]


def _invariants(step: Body, consts: Sequence[Atom], carry: Sequence[Atom]) -> dict[Var, Atom]:
    """The loop-invariant parameters of the body, with their values outside of the loop."""
    body = step.jaxpr.jaxpr
    fixed, carried, _ = step.split(body.invars)
    unchanged = ((v, a) for v, a, out in zip(carried, carry, body.outvars) if v is out)
    return {**dict(zip(fixed, consts)), **dict(unchanged)}


def _moving(body: Jaxpr, outside: Mapping[Var, Atom]) -> list[JaxprEqn]:
    """The collectives of invariant values, and the slices that devices take of the loop's own, with the equations that
    these depend on, in order."""
    invariant = set(outside)
    invariant_eqns: list[JaxprEqn] = []
    for eqn in body.eqns:
        if not eqn.op.has_effects and all(a in invariant for a in eqn.invars if isinstance(a, Var)):
            invariant.update(eqn.outvars)
            invariant_eqns.append(eqn)
    makers = {v: eqn for eqn in invariant_eqns for v in eqn.outvars}
    needed: set[Var] = set()
    moving = []
    for eqn in reversed(invariant_eqns):
        moves = any(each.kind for each in collectives_of(eqn.op)) or _is_sliced(eqn, outside, makers)
        if moves or any(v in needed for v in eqn.outvars):
            needed.update(a for a in eqn.invars if isinstance(a, Var))
            moving.append(eqn)
    return moving[::-1]


def _is_sliced(eqn: JaxprEqn, outside: Mapping[Var, Atom], makers: Mapping[Var, JaxprEqn]) -> bool:
    """Whether an equation takes a device's slice of what is made of one value that the loop is given, and not larger
    than that: less is held so."""
    x = eqn.invars[0] if isinstance(eqn.op, Collective) and eqn.invars else None
    while isinstance(x, Var) and (maker := makers.get(x)) is not None:
        operands = {a for a in maker.invars if isinstance(a, Var)}
        x = operands.pop() if len(operands) == 1 else None
    return isinstance(x, Var) and x in outside and eqn.outvars[0].aval.nbytes <= x.aval.nbytes
