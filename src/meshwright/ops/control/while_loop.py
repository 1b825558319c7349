"""``while``: repeats a body while a predicate of its carry holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core.dtypes import is_integer, max_value
from meshwright.core.records import dataclass
from meshwright.errors import LoopDerivativeError
from meshwright.ir.contract import Emitted
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Literal, Var
from meshwright.ir.op import Builder, Cotangents
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.ops.control.bodies import Body
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.control.regions import (
    arranged,
)
from meshwright.ops.elementwise.table import add, lt


def counted(body: Callable[..., Any], number: Any, consts: Sequence[Any], carry: Any) -> Any:
    """``for i in range(number): carry = body(i, *consts, carry)``; bodies close over nothing that is traced."""

    def step(*args: Any) -> list[Any]:
        *given, i, held = args
        return [add(i, np.int32(1)), body(i, *given, held)]

    types = [typeof(v).strong() for v in (*consts, np.int32(0), carry)]
    again = trace_to_jaxpr(lambda number, i, carry: [lt(i, number)], [typeof(number).strong(), *types[-2:]])
    op = While(trace_to_jaxpr(step, types), len(consts), again, 1)
    return op.bind(number, *consts, np.int32(0), carry)[1]


@dataclass(frozen=True)
class While(ControlOp):
    """``while cond(*cond_consts, *carry): carry = body(*body_consts, *carry)``; operands are both constants and the
    carry."""

    body_jaxpr: ClosedJaxpr
    body_nconsts: int
    cond_jaxpr: ClosedJaxpr
    cond_nconsts: int
    name: ClassVar[str] = "while"

    def bodies(self) -> tuple[Body, ...]:
        num_carry = len(self.body_jaxpr.out_avals)
        return (
            Body(self.cond_jaxpr, self.cond_nconsts, num_carry, tests=True, label="cond"),
            Body(self.body_jaxpr, self.body_nconsts, num_carry, label="body"),
        )

    def with_bodies(self, bodies: Sequence[Body]) -> While:
        cond, body = bodies
        return While(body.jaxpr, body.num_consts, cond.jaxpr, cond.num_consts)

    def trips(self, operands: Sequence[Atom]) -> int | None:
        """The trip count of a loop that counts a carried integer up to a constant limit."""
        pred, body = self.cond_jaxpr.jaxpr, self.body_jaxpr.jaxpr
        if len(pred.eqns) != 1 or pred.eqns[0].op.name != "lt" or pred.outvars != list(pred.eqns[0].outvars):
            return None
        counter, limit = pred.eqns[0].invars
        if counter not in pred.invars[self.cond_nconsts :]:
            return None
        place = pred.invars.index(counter) - self.cond_nconsts
        if limit in pred.invars[: self.cond_nconsts]:
            limit = operands[pred.invars.index(limit)]
        start = operands[self.cond_nconsts + self.body_nconsts + place]
        step = next((e for e in body.eqns if body.outvars[place] in e.outvars), None)
        if step is None or step.op.name != "add" or step.invars[0] is not body.invars[self.body_nconsts + place]:
            return None
        return _steps(start, limit, step.invars[1])

    def transpose_call(self, t: Any, cts: Sequence[Any], *args: Any) -> Cotangents:
        raise LoopDerivativeError(
            "reverse-mode differentiation does not work for while_loop, or fori_loop with a dynamic number of steps: "
            "the number of values to keep is not known. Use scan, fori_loop with static bounds, or forward mode (jvp, "
            "jacfwd)"
        )

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        # StableHLO's while has no constants: carry them along unchanged.
        cond, body = self.cond_jaxpr.jaxpr, self.body_jaxpr.jaxpr
        n, m = self.cond_nconsts, self.body_nconsts
        unused = [Var(v.aval) for v in body.invars[:m]]
        cond_region = arranged(self.cond_jaxpr, [*cond.invars[:n], *unused, *cond.invars[n:]])
        passed = [Var(v.aval) for v in cond.invars[:n]]
        body_region = arranged(self.body_jaxpr, [*passed, *body.invars], [*passed, *body.invars[:m], *body.outvars])
        regions = [b.jaxpr_region(cond_region), b.jaxpr_region(body_region)]
        return b.op("stablehlo.while", operands, b.in_avals, regions=regions)[n + m :]


def _steps(start: Atom, limit: Atom, step: Atom) -> int | None:
    """How often ``step`` is added to ``start`` until it is at least ``limit``; None if they are not constant integers,
    or the sum would overflow their dtype."""
    numbers = [int(a.val) for a in (start, limit, step) if isinstance(a, Literal) and is_integer(a.aval.dtype)]
    if len(numbers) < 3 or numbers[2] <= 0:
        return None
    first, last, by = numbers
    count = max(0, -((first - last) // by))
    return count if first + count * by <= max_value(start.aval.dtype) else None
