"""Lets values that control flow returns unchanged bypass it.

A value that all branches return unchanged, or that a loop only carries, would otherwise get the layout that the loop or
branches want, and wait for them. A loop with 0 trips returns all of its carries unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.rewrite import in_regions, rebuilt, renamed
from meshwright.ops.control.bodies import Body
from meshwright.ops.control.flow import ControlOp


def passed_on(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Read values that control flow returns unchanged from before it, also inside other control flow."""
    names: dict[Var, Atom] = {}
    eqns = [_renamed(eqn, names) for eqn in jaxpr.jaxpr.eqns]
    return jaxpr.replace(jaxpr=rebuilt(jaxpr.jaxpr, eqns, names))


def _renamed(eqn: JaxprEqn, names: dict[Var, Atom]) -> JaxprEqn:
    eqn = in_regions(renamed(eqn, names), passed_on)
    if isinstance(eqn.op, ControlOp) and not eqn.op.has_effects:
        names.update(_passed(eqn, eqn.op))
    return eqn


def _passed(eqn: JaxprEqn, op: ControlOp) -> Iterator[tuple[Var, Atom]]:
    """The results that equal operands, with these operands."""
    numbers, working = op.numbers(), op.working()
    never = not op.chooses and op.trips(eqn.invars) == 0
    for result, out in enumerate(eqn.outvars):
        if op.chooses:
            operands = {_operand(result, body, numbers.of(n)) for n, body in working}
        elif result < len(numbers.carry):
            number = numbers.carry[result]
            operands = {number if never or all(_carries(result, body) for _, body in working) else None}
        else:
            continue
        atoms = {None if n is None else eqn.invars[n] for n in operands}
        atom = atoms.pop()
        if atom is not None and not atoms and atom.aval == out.aval:
            yield out, atom


def _operand(result: int, body: Body, numbers: list[int]) -> int | None:
    """The number of the operand that a body returns as a result, or None."""
    inner = body.jaxpr.jaxpr
    return next((n for n, v in zip(numbers, inner.invars) if v is inner.outvars[result]), None)


def _carries(result: int, body: Body) -> bool:
    """Whether a body returns a carry unchanged."""
    inner = body.jaxpr.jaxpr
    return inner.outvars[result] is inner.invars[body.num_consts + result]
