"""``scan``: runs a body a static number of times, over slices of its inputs, with a carry.

Derivatives of the loop are loops: reverse mode is a scan in the opposite direction over stacked residuals, which
accumulates cotangents of constants. Residuals that are loop-invariant are not stacked. A scan is emitted as a ``while``
with dynamic slices (:meth:`Scan.expand`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ShapeError
from meshwright.ir.contract import Emitted, Value
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Var, has_effects
from meshwright.ir.op import Builder, Cotangents, Linear, Zero
from meshwright.ir.passes import dead_code
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.ops.composite import emit_traced
from meshwright.ops.control.bodies import Body
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.control.regions import arranged, depends, merge, omit, pick, split
from meshwright.ops.control.while_loop import While
from meshwright.ops.elementwise.table import add, lt, materialize, sub
from meshwright.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.ops.shape.rearrange import expand_dims, squeeze
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim

Flags = tuple[bool, ...]


@dataclass(frozen=True)
class Scan(ControlOp):
    """Operands are constants, the initial carry, and inputs with a leading dimension of ``length``. The body takes
    constants, carry and one slice per input, and returns carry and outputs, which are stacked."""

    jaxpr: ClosedJaxpr
    length: int
    num_carry: int
    num_consts: int
    reverse: bool = False
    unroll: int = 1
    name: ClassVar[str] = "scan"

    def _split(self, values: Sequence[Any]) -> list[list[Any]]:
        return split(values, self.num_consts, self.num_carry)

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        for x in self._split(avals)[2]:
            if x.shape[:1] != (self.length,):
                raise ShapeError(f"scan: inputs need a leading dimension of {self.length}, got {x}")
        return super().infer(*avals)

    def bodies(self) -> tuple[Body, ...]:
        return (Body(self.jaxpr, self.num_consts, self.num_carry),)

    def with_bodies(self, bodies: Sequence[Body]) -> Scan:
        (body,) = bodies
        return self.with_body(body.jaxpr, body.num_consts, body.num_carry)

    def with_body(self, jaxpr: ClosedJaxpr, num_consts: int, num_carry: int) -> Scan:
        """A scan of the same length and direction with another body."""
        return dataclasses.replace(self, jaxpr=jaxpr, num_consts=num_consts, num_carry=num_carry)

    def stacked(self, row: ShapedArray) -> ShapedArray:
        return row.with_dim(0, self.length)

    def row(self, run: int) -> int:
        return self.length - 1 - run if self.reverse else run

    def trips(self, operands: Sequence[Atom]) -> int | None:
        return self.length

    # --- partial evaluation ---------------------------------------------------------------------------------
    def partial_eval_call(self, t: Any, known: Sequence[bool], args: Sequence[Any], tape: Any) -> Any:
        parts = t.derive(_split_body, self.jaxpr, self.num_consts, self.num_carry, tuple(known))
        results, op, operands = self._run_known(parts, known, args)
        recorded = tape.record(op, operands) if op.jaxpr.out_avals else []
        return merge(parts.known_out, results, recorded)

    def _run_known(
        self, parts: _Parts, known: Sequence[bool], args: Sequence[Any]
    ) -> tuple[list[Any], Scan, list[Any]]:
        """The known results, and the scan of the rest with its operands."""
        k = self.num_carry
        consts, init, xs = self._split(args)
        const_known, _, xs_known = self._split(known)
        carry_known = parts.known_out[:k]
        known_consts, known_xs = pick(consts, const_known), pick(xs, xs_known)
        outs: list[Any] = []
        if parts.known.out_avals or has_effects(parts.known.jaxpr):
            op = self.with_body(parts.known, len(known_consts), sum(carry_known))
            outs = op.bind(*known_consts, *pick(init, carry_known), *known_xs)
        n = sum(parts.known_out)
        results, stacked = outs[:n], outs[n:]
        hoisted = eval_jaxpr(parts.hoisted, parts.hoisted.consts, *known_consts)
        unknown_consts = [*hoisted, *omit(consts, const_known)]
        unknown_init = omit(init, carry_known)
        inputs = [*stacked, *(known_xs[i] for i in parts.forwarded), *omit(xs, xs_known)]
        op = self.with_body(parts.unknown, len(unknown_consts), len(unknown_init))
        return results, op, [*unknown_consts, *unknown_init, *inputs]

    # --- transposition --------------------------------------------------------------------------------------
    def transpose_call(self, t: Any, cts: Sequence[Any], *args: Any) -> Cotangents:
        linear = tuple(isinstance(x, Linear) for x in args)
        consts, carry, xs = self._split(linear)
        k = self.num_carry
        while True:
            dependent = depends(self.jaxpr.jaxpr, (*consts, *carry, *xs))[:k]
            grown = [a or b for a, b in zip(carry, dependent)]  # a carry may be replaced at each step
            if grown == carry:
                break
            carry = grown
        if not all(carry):
            return self._transpose_rest(t, cts, args, linear)
        asked, nonzero = split(tuple(not isinstance(c, Zero) for c in cts), k)
        body, const_out, kept, xs_out = t.derive(
            _transposed_body, self.jaxpr, tuple(asked), tuple(consts), tuple(xs), tuple(nonzero)
        )
        const_args, init_args, xs_args = self._split(args)
        values = omit(const_args, consts)
        sums = [materialize(Zero(x.aval.strong())) for x in pick(pick(const_args, consts), const_out)]
        carry_cts = [materialize(c) for c in pick(cts[:k], kept)]
        op = Scan(body, self.length, len(sums) + len(carry_cts), len(values), not self.reverse, self.unroll)
        outs = op.bind(*values, *sums, *carry_cts, *pick(cts[k:], nonzero), *omit(xs_args, xs))
        const_cts, kept_cts, xs_cts = split(outs, len(sums), len(carry_cts))
        init_cts = merge(kept, kept_cts, omit(cts[:k], kept))
        zeros = [Zero(x.aval) for x in omit(pick(const_args, consts), const_out)]
        linear_const_cts = merge(const_out, const_cts, zeros)
        linear_xs_cts = merge(xs_out, xs_cts, [Zero(x.aval) for x in omit(pick(xs_args, xs), xs_out)])
        carried_cts = [ct if isinstance(x, Linear) else None for x, ct in zip(init_args, init_cts)]
        all_const_cts = merge(consts, linear_const_cts, [None] * len(consts))
        return [*all_const_cts, *carried_cts, *merge(xs, linear_xs_cts, [None] * len(xs))]

    def _transpose_rest(self, t: Any, cts: Sequence[Any], args: Sequence[Any], linear: Flags) -> Sequence[Any]:
        """Transpose if part of the carry does not depend on linear operands: run that part first."""
        known = tuple(not lin for lin in linear)
        parts = t.derive(_split_body, self.jaxpr, self.num_consts, self.num_carry, known)
        _, op, operands = self._run_known(parts, known, args)
        in_cts = op.transpose_call(t, omit(cts, parts.known_out), *operands)
        given = iter([ct for x, ct in zip(operands, in_cts) if isinstance(x, Linear)])
        return [next(given) if lin else None for lin in linear]

    # --- lowering -------------------------------------------------------------------------------------------
    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        return emit_traced(b, self.expand, self.name, *operands)

    def expand(self, *operands: Value, in_place: Mapping[int, int] = MappingProxyType({})) -> list[Value]:
        """The loop as a ``while`` of ``length // unroll`` steps; the remainder is unrolled.

        Of inputs whose numbers are in ``in_place``, the rows are replaced by those of the output with that number.
        """
        consts, carry, xs = self._split(operands)
        ys_avals = self.jaxpr.out_avals[self.num_carry :]
        blocks, rest = divmod(self.length, self.unroll) if self.unroll < self.length else (0, self.length)
        if not blocks:
            return self._written_out(consts, carry, xs)
        replaced = {row: xs[n] for n, row in in_place.items()}
        xs = [x for n, x in enumerate(xs) if n not in in_place]
        ys = [
            replaced[n] if n in replaced else broadcast_in_dim(np.zeros((), y.dtype), (self.length, *y.shape), ())
            for n, y in enumerate(ys_avals)
        ]
        state = [np.int32(0), *carry, *ys]
        op = self._loop([typeof(x) for x in (*consts, *xs)], [typeof(x) for x in state], blocks, in_place)
        _, carry, ys = split(op.bind(*consts, *xs, *state), 1, self.num_carry)
        for i in range(rest):
            carry, ys = self._step(np.int32(blocks * self.unroll + i), consts, carry, xs, ys, in_place)
        return [*carry, *ys]

    def _loop(
        self, given: Sequence[ShapedArray], state: Sequence[ShapedArray], blocks: int, in_place: Mapping[int, int]
    ) -> While:
        def cond(number: Any, *_: Any) -> list[Any]:
            return [lt(number, np.int32(blocks * self.unroll))]

        def body(*values: Any) -> list[Any]:
            first, (number, *rest) = split(values, len(given))
            consts, xs = split(first, self.num_consts)
            carry, ys = split(rest, self.num_carry)
            for i in range(self.unroll):
                at = add(number, np.int32(i)) if i else number
                carry, ys = self._step(at, consts, carry, xs, ys, in_place)
            return [add(number, np.int32(self.unroll)), *carry, *ys]

        return While(trace_to_jaxpr(body, [*given, *state], "scan"), len(given), trace_to_jaxpr(cond, state, "scan"), 0)

    def _step(
        self,
        number: Any,
        consts: list[Any],
        carry: list[Any],
        xs: list[Any],
        ys: list[Any],
        in_place: Mapping[int, int],
    ) -> list[list[Any]]:
        """Carry and outputs after a step. ``xs`` are the inputs without those of which rows are replaced."""
        rest = iter(xs)
        inputs = [ys[in_place[n]] if n in in_place else next(rest) for n in range(len(xs) + len(in_place))]
        at = sub(np.int32(self.length - 1), number) if self.reverse else number
        zero = np.int32(0)
        slices = []
        for x in inputs:
            shape = typeof(x).shape
            window = DynamicSlice((1, *shape[1:])).bind(x, at, *[zero] * (len(shape) - 1))
            slices.append(squeeze(window, [0]))
        carry, outs = split(eval_jaxpr(self.jaxpr, self.jaxpr.consts, *consts, *carry, *slices), self.num_carry)
        stacked = []
        for y, out in zip(ys, outs):
            row = expand_dims(out, [0])
            stacked.append(DynamicUpdateSlice().bind(y, row, at, *[zero] * (typeof(row).ndim - 1)))
        return [carry, stacked]

    def _written_out(self, consts: list[Any], carry: list[Any], xs: list[Any]) -> list[Any]:
        rows: list[list[Any]] = []
        order = range(self.length)
        for i in reversed(order) if self.reverse else order:
            slices = [squeeze(slice_in_dim(x, i, i + 1), [0]) for x in xs]
            outs = eval_jaxpr(self.jaxpr, self.jaxpr.consts, *consts, *carry, *slices)
            carry, ys = split(outs, self.num_carry)
            rows.append([expand_dims(y, [0]) for y in ys])
        if not rows:
            empty = self.jaxpr.out_avals[self.num_carry :]
            return [*carry, *(broadcast_in_dim(np.zeros((), y.dtype), (0, *y.shape), ()) for y in empty)]
        columns = zip(*(reversed(rows) if self.reverse else rows))
        return [*carry, *(concatenate(column, 0) if len(column) > 1 else column[0] for column in columns)]


# --- bodies, made once for each jaxpr -----------------------------------------------------------------------
@dataclass(frozen=True)
class _Parts:
    """A body split in two. ``hoisted`` computes residuals from known constants, which are constants of ``unknown``;
    ``known`` returns known results and then residuals to stack; ``forwarded`` are the numbers of known inputs that
    ``unknown`` takes directly."""

    known: ClosedJaxpr
    unknown: ClosedJaxpr
    hoisted: ClosedJaxpr
    forwarded: tuple[int, ...]
    known_out: Flags


def _split_body(t: Any, jaxpr: ClosedJaxpr, num_consts: int, num_carry: int, known: Flags) -> _Parts:
    consts, carry, xs = split(known, num_consts, num_carry)
    rest = (False,) * (len(jaxpr.out_avals) - num_carry)
    while True:
        forced = (*(not k for k in carry), *rest)
        parts = t.partial_eval(jaxpr, (*consts, *carry, *xs), forced)
        if list(parts.known_out[:num_carry]) == list(carry):
            break
        carry = list(parts.known_out[:num_carry])
    first, second = parts.known.jaxpr, parts.unknown.jaxpr
    n = sum(parts.known_out)
    results, residuals = first.outvars[:n], first.outvars[n:]
    fixed, _, inputs = split(first.invars, sum(consts), sum(carry))
    invariant = _invariant(parts.known, fixed)
    places: dict[str, list[int]] = {"hoisted": [], "stacked": [], "forwarded": []}
    for i, atom in enumerate(residuals):
        kind = "hoisted" if atom in invariant else "forwarded" if atom in inputs else "stacked"
        places[kind].append(i)
    hoisted = dead_code(arranged(parts.known, fixed, [residuals[i] for i in places["hoisted"]]), keep_effects=False)
    known_body = dead_code(arranged(parts.known, first.invars, [*results, *(residuals[i] for i in places["stacked"])]))
    res_vars, const_vars, carry_vars, xs_vars = split(
        second.invars, len(residuals), len(consts) - sum(consts), num_carry - sum(carry)
    )
    as_inputs = [res_vars[i] for i in (*places["stacked"], *places["forwarded"])]
    unknown = arranged(
        parts.unknown,
        [*(res_vars[i] for i in places["hoisted"]), *const_vars, *carry_vars, *as_inputs, *xs_vars],
    )
    forwarded = tuple(inputs.index(residuals[i]) for i in places["forwarded"])
    return _Parts(known_body, unknown, hoisted, forwarded, parts.known_out)


def _invariant(jaxpr: ClosedJaxpr, fixed: Sequence[Var]) -> set[Var]:
    """Loop-invariant values: those computed from constants only."""
    invariant = {*fixed, *jaxpr.jaxpr.constvars}
    for eqn in jaxpr.eqns:
        if not eqn.op.has_effects and all(a in invariant for a in eqn.invars if isinstance(a, Var)):
            invariant.update(eqn.outvars)
    return invariant


def _transposed_body(
    t: Any, jaxpr: ClosedJaxpr, asked: Flags, consts: Flags, xs: Flags, nonzero: Flags
) -> tuple[ClosedJaxpr, Flags, Flags, Flags]:
    """The body of the backward scan, and for which linear constants, carries and inputs it returns cotangents.

    It takes the other constants; the accumulated cotangents of constants, and the carry's cotangents; the cotangents of
    a step's outputs, and its other inputs. Carries that do not affect results ``asked`` for have no cotangent, since
    zero times infinity would be NaN.
    """
    k, kept, linear = len(asked), asked, (*consts, *[True] * len(asked), *xs)
    while True:
        instantiate = (*[False] * sum(consts), *kept, *[False] * sum(xs))
        back, nonzero_out = t.transpose(jaxpr, linear, (*kept, *nonzero), instantiate)
        const_out, reached, xs_out = map(tuple, split(nonzero_out, sum(consts), k))
        if reached == kept:
            break
        kept = reached
    n, m = len(consts) - sum(consts), len(xs) - sum(xs)
    values, others, carry_cts, ys_cts = split(back.in_avals, n, m, sum(kept))
    sums = back.out_avals[: sum(const_out)]

    def body(*args: Any) -> list[Any]:
        given, acc, cts, ys, ins = split(args, n, len(sums), len(carry_cts), len(ys_cts))
        outs = eval_jaxpr(back, back.consts, *given, *ins, *cts, *ys)
        new, rest = split(outs, len(sums))
        return [*(add(a, b) for a, b in zip(acc, new)), *rest]

    avals = [*values, *(a.strong() for a in sums), *carry_cts, *ys_cts, *others]
    return trace_to_jaxpr(body, avals, jaxpr.jaxpr.debug_name), const_out, kept, xs_out
