"""Collectives that a loop repeats for nothing, done once before it.

What depends only on a loop's constants (and on what it carries unchanged) is the same in every step. Collectives of
such values move in front of the loop, with what they are computed from; the loop gets their results as constants.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, all_eqns, sub_jaxprs
from meshwright.ir.op import Op
from meshwright.ops.collective.collectives import Collective
from meshwright.ops.control.regions import split
from meshwright.ops.control.scan import Scan
from meshwright.ops.control.while_loop import While
from meshwright.spmd.varying import Variance


def hoist_invariants(jaxpr: Jaxpr, variance: Variance) -> Jaxpr:
    """Without collectives of loop-invariant values in the bodies of loops."""
    if not any(isinstance(e.op, (Scan, While)) for e in jaxpr.eqns):
        return jaxpr
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        loop = _loop(eqn)
        found = None if loop is None or eqn.op.trips(eqn.invars) == 0 else _hoisted(eqn, loop)  # type: ignore[attr-defined]
        eqns += [eqn] if found is None else found
    return jaxpr if len(eqns) == len(jaxpr.eqns) else jaxpr.replace(eqns=eqns)


@dataclass(frozen=True)
class _Loop:
    """A loop by its parts: the body takes ``consts``, ``carry`` and what is different in every step."""

    body: ClosedJaxpr
    before: list[Atom]  # operands that are not the body's
    consts: list[Atom]
    carry: list[Atom]
    rest: list[Atom]

    def with_consts(self, op: Op, body: Jaxpr, more: Sequence[Atom]) -> tuple[Op, list[Atom]]:
        """The loop's op and operands with another body, which has ``more`` constants."""
        closed = self.body.replace(jaxpr=body)
        count = len(self.consts) + len(more)
        if isinstance(op, Scan):
            op = op.with_body(closed, count, len(self.carry))
        else:
            op = dataclasses.replace(op, body_jaxpr=closed, body_nconsts=count)  # type: ignore[call-arg]
        return op, [*self.before, *self.consts, *more, *self.carry, *self.rest]


def _loop(eqn: JaxprEqn) -> _Loop | None:
    op = eqn.op
    if isinstance(op, Scan):
        return _Loop(op.jaxpr, [], *split(eqn.invars, op.num_consts, op.num_carry))
    if isinstance(op, While):
        before, consts, carry = split(eqn.invars, op.cond_nconsts, op.body_nconsts)
        return _Loop(op.body_jaxpr, before, consts, carry, [])
    return None


def _hoisted(eqn: JaxprEqn, loop: _Loop) -> list[JaxprEqn] | None:
    """The equations that move, and the loop without them."""
    body = loop.body.jaxpr
    outside = _invariants(loop)
    moving = _moving(body, outside)
    if not moving:
        return None
    names: dict[Var, Atom] = dict(outside)
    before = []
    for inner in moving:
        outs = [Var(v.aval) for v in inner.outvars]
        operands = [a if isinstance(a, Literal) else names[a] for a in inner.invars]
        names.update(zip(inner.outvars, outs))
        before.append(inner.replace(invars=operands, outvars=outs))
    gone = {id(e) for e in moving}
    kept = [e for e in body.eqns if id(e) not in gone]
    used = {a for e in kept for a in e.invars}.union(body.outvars)
    more = [v for e in moving for v in e.outvars if v in used]
    count = len(loop.consts)
    params = [*body.invars[:count], *more, *body.invars[count:]]
    op, operands = loop.with_consts(eqn.op, body.replace(invars=params, eqns=kept), [names[v] for v in more])
    return [*before, eqn.replace(op=op, invars=operands)]


def _invariants(loop: _Loop) -> dict[Var, Atom]:
    """Parameters of the body that are the same in every step, and what they are outside."""
    body = loop.body.jaxpr
    consts, carry, _ = split(body.invars, len(loop.consts), len(loop.carry))
    unchanged = ((v, a) for v, a, out in zip(carry, loop.carry, body.outvars) if v is out)
    return {**dict(zip(consts, loop.consts)), **dict(unchanged)}


def _moving(body: Jaxpr, outside: Mapping[Var, Atom]) -> list[JaxprEqn]:
    """The collectives of invariant values, with what they are computed from, in order."""
    invariant = set(outside)
    found: list[JaxprEqn] = []
    for eqn in body.eqns:
        if not eqn.op.has_effects and all(a in invariant for a in eqn.invars if isinstance(a, Var)):
            invariant.update(eqn.outvars)
            found.append(eqn)
    wanted: set[Var] = set()
    moving = []
    for eqn in reversed(found):
        if _communicates(eqn) or any(v in wanted for v in eqn.outvars):
            wanted.update(a for a in eqn.invars if isinstance(a, Var))
            moving.append(eqn)
    return moving[::-1]


def _communicates(eqn: JaxprEqn) -> bool:
    inner = (e.op for j in sub_jaxprs(eqn.op) for e in all_eqns(j))
    return any(isinstance(op, Collective) and bool(op.kind) for op in (eqn.op, *inner))
