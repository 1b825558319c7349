"""``while``: repeats a body while a predicate of its carry holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.dtypes import is_integer, is_signed, max_value
from meshwright.core.records import dataclass
from meshwright.errors import LoopDerivativeError
from meshwright.ir.contract import Emitted
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.op import Builder, Cotangents
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.ops.control.bodies import Body
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.control.regions import arranged
from meshwright.ops.elementwise.table import add, and_, lt


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

    @property
    def counter(self) -> tuple[int, int | Atom, int] | None:
        """The operand that is an integer which the loop counts up, the limit (an operand or a literal), and the step.

        None if the loop tests anything else, and may run forever.
        """
        pred, body, first = self.cond_jaxpr.jaxpr, self.body_jaxpr.jaxpr, self.cond_nconsts
        if len(pred.eqns) != 1 or pred.eqns[0].op.name != "lt" or pred.outvars != list(pred.eqns[0].outvars):
            return None
        number, limit = (pred.invars.index(a) if a in pred.invars else a for a in pred.eqns[0].invars)
        if not isinstance(number, int) or number < first:
            return None
        if isinstance(limit, int) and limit >= first:  # carried
            if body.outvars[limit - first] is not body.invars[self.body_nconsts + limit - first]:
                return None
            limit += self.body_nconsts
        counted = body.outvars[number - first]
        adds = next((e for e in body.eqns if counted in e.outvars and e.op.name == "add"), None)
        before = body.invars[self.body_nconsts + number - first]
        if adds is None or before not in adds.invars:
            return None
        step = _integer(adds.invars[1 - adds.invars.index(before)])
        return (self.body_nconsts + number, limit, step) if step is not None and step > 0 else None

    @property
    def is_counted(self) -> bool:
        if self.counter is None:
            return False
        number, limit, step = self.counter
        dtype = self.body_jaxpr.in_avals[number - self.cond_nconsts].dtype
        last = None if isinstance(limit, int) else _integer(limit)
        if last is None:  # unsigned integers of programs are often random bits
            return step == 1 and is_signed(dtype)
        return bool(last + step - 1 <= max_value(dtype))

    def limited(self, eqn: JaxprEqn, most: int, inside: Callable[[ClosedJaxpr], ClosedJaxpr]) -> JaxprEqn:
        test = _within(inside(self.cond_jaxpr), most)
        op = While(_counting(inside(self.body_jaxpr)), self.body_nconsts, test, self.cond_nconsts)
        return eqn.replace(op=op, invars=[*eqn.invars, _literal(0)], outvars=[*eqn.outvars, Var(_NUMBER)])

    def trips(self, operands: Sequence[Atom]) -> int | None:
        """The trip count of a loop that counts a carried integer up to a constant limit."""
        if self.counter is None:
            return None
        number, limit, step = self.counter
        start, first = operands[number], _integer(operands[number])
        last = _integer(operands[limit] if isinstance(limit, int) else limit)
        if first is None or last is None:
            return None
        count = max(0, -((first - last) // step))
        return count if first + count * step <= max_value(start.aval.dtype) else None

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


def _integer(atom: Atom) -> int | None:
    """The value of an integer literal."""
    return int(atom.val) if isinstance(atom, Literal) and is_integer(atom.aval.dtype) else None


# --- limits -------------------------------------------------------------------------------------------------
_NUMBER, _BOOL = ShapedArray((), np.dtype(np.int32)), ShapedArray((), np.dtype(bool))


def _counting(body: ClosedJaxpr) -> ClosedJaxpr:
    """The body with one more carried value, to which it adds 1."""
    before, after = Var(_NUMBER), Var(_NUMBER)
    more = _extended(body, JaxprEqn(add, [before, _literal(1)], [after]))
    return arranged(more, [*body.jaxpr.invars, before], [*body.jaxpr.outvars, after])


def _within(test: ClosedJaxpr, most: int) -> ClosedJaxpr:
    """The test, of a further carried value too, which must be less than ``most``."""
    runs, few, both = Var(_NUMBER), Var(_BOOL), Var(_BOOL)
    fewer = JaxprEqn(lt, [runs, _literal(most)], [few])
    more = _extended(test, fewer, JaxprEqn(and_, [test.jaxpr.outvars[0], few], [both]))
    return arranged(more, [*test.jaxpr.invars, runs], [both])


def _extended(jaxpr: ClosedJaxpr, *eqns: JaxprEqn) -> ClosedJaxpr:
    return jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(eqns=[*jaxpr.jaxpr.eqns, *eqns]))


def _literal(number: int) -> Literal:
    return Literal(np.int32(number), _NUMBER)
