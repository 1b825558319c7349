"""``while``: a body repeated as long as a predicate of its carry holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.dtypes import is_bool
from meshwright.errors import DifferentiationError, DTypeError, ShapeError
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Literal, Var
from meshwright.ir.op import BatchAxis, Builder, Op, Zero
from meshwright.ir.passes import dead_code
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.ir.varying import axes_of
from meshwright.ops.control.regions import (
    OPERAND,
    OUTPUT,
    PARAMETER,
    RESULT,
    End,
    RegionOp,
    Tie,
    arranged,
    check_operands,
    merge,
    omit,
    pick,
    split,
)
from meshwright.ops.control.retype import cast_each, in_axes, joined, out_axes, require_together, retyped
from meshwright.ops.elementwise.table import materialize, select
from meshwright.ops.reduce.reductions import reduce_or
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim


@dataclass(frozen=True)
class While(RegionOp):
    """``while cond(*cond_consts, *carry): carry = body(*body_consts, *carry)``; operands are both constants and the
    carry."""

    body_jaxpr: ClosedJaxpr
    body_nconsts: int
    cond_jaxpr: ClosedJaxpr
    cond_nconsts: int
    name: ClassVar[str] = "while"

    def _split(self, values: Sequence[Any]) -> list[list[Any]]:
        return split(values, self.cond_nconsts, self.body_nconsts)

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        cond_consts, body_consts, carry = self._split(avals)
        check_operands("while cond", [*cond_consts, *carry], self.cond_jaxpr.in_avals)
        check_operands("while body", [*body_consts, *carry], self.body_jaxpr.in_avals)
        preds = self.cond_jaxpr.out_avals
        if len(preds) != 1 or preds[0].shape != () or not is_bool(preds[0].dtype):
            raise DTypeError(f"while: the predicate must be one bool scalar, got {', '.join(map(str, preds))}")
        for i, (got, want) in enumerate(zip(self.body_jaxpr.out_avals, carry, strict=True)):
            if (got.shape, got.dtype) != (want.shape, want.dtype):
                raise ShapeError(f"while: carry {i} goes in as {want} and comes out as {got}")
        return tuple(self.body_jaxpr.in_avals[self.body_nconsts :])

    def regions(self) -> tuple[ClosedJaxpr, ...]:
        return self.cond_jaxpr, self.body_jaxpr

    def with_regions(self, regions: Sequence[ClosedJaxpr]) -> While:
        cond, body = regions
        return dataclasses.replace(self, cond_jaxpr=cond, body_jaxpr=body)

    def ties(self) -> Iterator[Tie]:
        n, m = self.cond_nconsts, self.body_nconsts
        for i in range(n):
            yield End(OPERAND, i), End(PARAMETER, i, 0)
        for i in range(m):
            yield End(OPERAND, n + i), End(PARAMETER, i, 1)
        for i in range(len(self.body_jaxpr.out_avals)):
            yield (
                End(OPERAND, n + m + i), End(PARAMETER, n + i, 0), End(PARAMETER, m + i, 1), End(OUTPUT, i, 1),
                End(RESULT, i),
            )  # fmt: skip

    def trips(self, operands: Sequence[Atom]) -> int | None:
        """The number of steps of a loop that counts a carried integer up to a limit written in the program."""
        pred, body = self.cond_jaxpr.jaxpr, self.body_jaxpr.jaxpr
        if len(pred.eqns) != 1 or pred.eqns[0].op.name != "lt":
            return None
        counter, limit = pred.eqns[0].invars
        if counter not in pred.invars[self.cond_nconsts :]:
            return None
        place = pred.invars.index(counter) - self.cond_nconsts  # type: ignore[arg-type]
        if limit in pred.invars[: self.cond_nconsts]:
            limit = operands[pred.invars.index(limit)]  # type: ignore[arg-type]
        start = operands[self.cond_nconsts + self.body_nconsts + place]
        step = next((e for e in body.eqns if body.outvars[place] in e.outvars), None)
        if step is None or step.op.name != "add" or step.invars[0] is not body.invars[self.body_nconsts + place]:
            return None
        if not all(isinstance(a, Literal) for a in (start, limit, step.invars[1])):
            return None
        first, last, by = (int(a.val) for a in (start, limit, step.invars[1]))  # type: ignore[union-attr]
        return max(0, -((first - last) // by)) if by > 0 else None

    def aligned(self, args: Sequence[Any]) -> tuple[Op, Sequence[Any]]:
        """The carry varies where a step or the number of steps does."""
        n, m = self.cond_nconsts, self.body_nconsts
        cond_consts, body_consts, carry = self._split(list(map(axes_of, args)))
        carry = joined(carry, in_axes(self.cond_jaxpr)[n:], in_axes(self.body_jaxpr)[m:])
        while True:
            cond = retyped(self.cond_jaxpr, [*cond_consts, *carry])
            body = retyped(self.body_jaxpr, [*body_consts, *carry])
            steps = out_axes(cond)[0]
            out = [axes | steps for axes in joined(carry, out_axes(body))]
            if out == carry:
                break
            carry = out
        require_together("a loop whose number of steps", steps, [cond, body])
        body = retyped(body, in_axes(body), carry)
        same = cond is self.cond_jaxpr and body is self.body_jaxpr
        ins = [*in_axes(cond)[:n], *in_axes(body)[:m], *carry]
        return self if same else self.with_regions([cond, body]), cast_each(args, ins)

    # --- derivatives ----------------------------------------------------------------------------------------
    def jvp_call(self, t: Any, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        cond_consts, body_consts, init = self._split(primals)
        _, const_ts, init_ts = self._split(tangents)
        consts = tuple(not isinstance(x, Zero) for x in const_ts)
        carry = tuple(not isinstance(x, Zero) for x in init_ts)
        while True:
            _, found = t.jvp(self.body_jaxpr, (*consts, *carry), carry)
            if found == carry:
                break
            carry = found
        body = t.derive(_jvp_body, self.body_jaxpr, consts, carry)
        extra = tuple(a.strong() for a in pick([typeof(x) for x in init], carry))
        cond = t.derive(_with_more_carry, self.cond_jaxpr, extra)
        given = pick(const_ts, consts)
        op = While(body, self.body_nconsts + len(given), cond, self.cond_nconsts)
        carried = [materialize(x) for x in pick(init_ts, carry)]
        outs = op.bind(*cond_consts, *body_consts, *given, *init, *carried)
        n = len(init)
        return outs[:n], merge(carry, outs[n:], [Zero(x.aval) for x in omit(outs[:n], carry)])

    def partial_eval_call(self, t: Any, known: Sequence[bool], args: Sequence[Any], tape: Any) -> Any:
        """What of the carry (and the predicate) is known runs alone; the rest is recorded with all of the loop."""
        cond_known, body_known, carry = map(tuple, self._split(known))
        while True:
            found = t.partial_eval(self.body_jaxpr, (*body_known, *carry)).known_out
            both = tuple(a and b for a, b in zip(carry, found))
            if both == carry:
                break
            carry = both
        pred = t.partial_eval(self.cond_jaxpr, (*cond_known, *carry))
        recorded = tape.record(self, args)
        if not any(carry) or not pred.known_out[0]:
            return recorded
        body = t.derive(_known_body, self.body_jaxpr, body_known, carry)
        cond = t.derive(_known_pred, self.cond_jaxpr, cond_known, carry)
        cond_consts, body_consts, init = self._split(args)
        operands = [*pick(cond_consts, cond_known), *pick(body_consts, body_known), *pick(init, carry)]
        outs = While(body, sum(body_known), cond, sum(cond_known)).bind(*operands)
        return merge(carry, outs, omit(recorded, carry))

    def transpose_call(self, t: Any, cts: Sequence[Any], *args: Any) -> Sequence[Any]:
        raise DifferentiationError(
            "reverse-mode differentiation does not work for while_loop, or fori_loop with a dynamic number of steps: "
            "the number of values to keep is not known. Use scan, fori_loop with static bounds, or forward mode (jvp, "
            "jacfwd)"
        )

    # --- batching -------------------------------------------------------------------------------------------
    def batch_call(self, t: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        cond_dims, body_dims, carry = map(tuple, self._split(dims))
        batched_pred = False
        while True:
            _, found = t.batch(self.body_jaxpr, axis, (*body_dims, *carry), carry)
            _, (pred_dim,) = t.batch(self.cond_jaxpr, axis, (*cond_dims, *carry))
            batched_pred = pred_dim is not None
            if batched_pred:
                found = tuple(0 if d is None else d for d in found)
            if found == carry:
                break
            carry = found
        body, _ = t.batch(self.body_jaxpr, axis, (*body_dims, *carry), carry)
        cond, _ = t.batch(self.cond_jaxpr, axis, (*cond_dims, *carry), (0,) if batched_pred else ())
        cond_consts, body_consts, init = self._split(args)
        init = [
            x if d == before else _repeated(x, d, axis.size) for x, d, before in zip(init, carry, self._split(dims)[2])
        ]
        if not batched_pred:
            op = While(body, self.body_nconsts, cond, self.cond_nconsts)
            return op.bind(*cond_consts, *body_consts, *init), list(carry)
        # Entries whose own predicate does not hold any more keep what they have.
        any_cond = t.derive(_any_holds, cond)
        masked = t.derive(_masked_body, body, cond, self.cond_nconsts, self.body_nconsts, carry)
        op = While(masked, self.cond_nconsts + self.body_nconsts, any_cond, self.cond_nconsts)
        return op.bind(*cond_consts, *cond_consts, *body_consts, *init), list(carry)

    def emit(self, b: Builder, *operands: Any) -> Any:
        # A while of StableHLO has no constants: they are carried along unchanged.
        cond, body = self.cond_jaxpr.jaxpr, self.body_jaxpr.jaxpr
        n, m = self.cond_nconsts, self.body_nconsts
        unused = [Var(v.aval) for v in body.invars[:m]]
        cond_region = arranged(self.cond_jaxpr, [*cond.invars[:n], *unused, *cond.invars[n:]])
        passed = [Var(v.aval) for v in cond.invars[:n]]
        body_region = arranged(self.body_jaxpr, [*passed, *body.invars], [*passed, *body.invars[:m], *body.outvars])
        regions = [b.jaxpr_region(cond_region), b.jaxpr_region(body_region)]
        return b.op("stablehlo.while", operands, b.in_avals, regions=regions)[n + m :]


def _repeated(x: Any, dim: int, size: int) -> Any:
    shape = typeof(x).shape
    full = (*shape[:dim], size, *shape[dim:])
    return broadcast_in_dim(x, full, [d for d in range(len(full)) if d != dim])


# --- bodies, made once for each jaxpr -----------------------------------------------------------------------
def _jvp_body(t: Any, jaxpr: ClosedJaxpr, consts: tuple[bool, ...], carry: tuple[bool, ...]) -> ClosedJaxpr:
    """Constants, their tangents, carry, its tangents."""
    body, _ = t.jvp(jaxpr, (*consts, *carry), carry)
    c, k, ct, kt = split(body.jaxpr.invars, len(consts), len(carry), sum(consts))
    return arranged(body, [*c, *ct, *k, *kt])


def _with_more_carry(t: Any, jaxpr: ClosedJaxpr, extra: tuple[ShapedArray, ...]) -> ClosedJaxpr:
    """A predicate that ignores further carried values."""
    return arranged(jaxpr, [*jaxpr.jaxpr.invars, *(Var(a) for a in extra)])


def _known_body(t: Any, jaxpr: ClosedJaxpr, consts: tuple[bool, ...], carry: tuple[bool, ...]) -> ClosedJaxpr:
    known = t.partial_eval(jaxpr, (*consts, *carry), tuple(not k for k in carry)).known
    return dead_code(arranged(known, known.jaxpr.invars, known.jaxpr.outvars[: sum(carry)]))


def _known_pred(t: Any, jaxpr: ClosedJaxpr, consts: tuple[bool, ...], carry: tuple[bool, ...]) -> ClosedJaxpr:
    known = t.partial_eval(jaxpr, (*consts, *carry)).known
    return dead_code(arranged(known, known.jaxpr.invars, known.jaxpr.outvars[:1]))


def _any_holds(t: Any, cond: ClosedJaxpr) -> ClosedJaxpr:
    def fun(*args: Any) -> list[Any]:
        (pred,) = eval_jaxpr(cond, cond.consts, *args)
        return [reduce_or(pred, (0,))]

    return trace_to_jaxpr(fun, cond.in_avals, cond.jaxpr.debug_name)


def _masked_body(
    t: Any, body: ClosedJaxpr, cond: ClosedJaxpr, cond_nconsts: int, body_nconsts: int, dims: tuple[int, ...]
) -> ClosedJaxpr:
    def fun(*args: Any) -> list[Any]:
        cond_consts, body_consts, carry = split(args, cond_nconsts, body_nconsts)
        (pred,) = eval_jaxpr(cond, cond.consts, *cond_consts, *carry)
        outs = eval_jaxpr(body, body.consts, *body_consts, *carry)
        return [
            select(broadcast_in_dim(pred, typeof(new).shape, (d,)), new, old) for new, old, d in zip(outs, carry, dims)
        ]

    return trace_to_jaxpr(fun, [*cond.in_avals[:cond_nconsts], *body.in_avals], body.jaxpr.debug_name)
