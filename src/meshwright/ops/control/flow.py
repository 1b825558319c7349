"""The common view of control flow: which bodies an op runs, and which operands each takes.

An op is described by its bodies (:meth:`ControlOp.bodies`), jaxprs from constants, carry and slices to carry and
outputs, and rebuilt from changed ones (:meth:`ControlOp.with_bodies`). Everything that processes control flow uses only
these two methods: the rules below, which apply to every such op, propagation, the partitioner and its passes, reports,
checks, verification. A new loop or choice is a class in this folder, and needs no other changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from meshwright.core.avals import NOWHERE, ShapedArray
from meshwright.core.config import config
from meshwright.core.dtypes import is_bool
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import DifferentiationError, DTypeError, RuleError, ShapeError
from meshwright.ir.contract import ArrayLike
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.op import BatchAxis, BatchedResults, Cotangents, Dual, Op, Tangent, Zero
from meshwright.ir.tracing import typeof
from meshwright.ir.varying import axes_of
from meshwright.ops.control.bodies import (
    Body,
    Flags,
    Operands,
    each_to_its_end,
    jvp_body,
    known_part,
    tested_in_body,
    threaded,
    while_it_runs,
    with_more_carry,
)
from meshwright.ops.control.guards import has_checks, refuse_automatic_checks
from meshwright.ops.control.regions import (
    OPERAND,
    OUTPUT,
    PARAMETER,
    RESULT,
    End,
    RegionOp,
    Run,
    Tie,
    merge,
    omit,
    pick,
    split,
)
from meshwright.ops.control.retype import cast_each, in_axes, joined, out_axes, require_together, retyped
from meshwright.ops.elementwise.table import materialize
from meshwright.ops.shape.broadcast_reduce import put_batch_dim
from meshwright.ops.shape.rearrange import move_dim

T = TypeVar("T")
#: a property of each result, given a jaxpr, the property of its parameters, and the one requested of its results
After = Callable[[ClosedJaxpr, tuple[T, ...], tuple[T, ...]], Sequence[T]]


@dataclass(frozen=True)
class ControlOp(RegionOp):
    """Base class of loops and choices. Operands are in the order of :class:`Operands`; results are the final carry and
    the outputs, which loops stack."""

    def bodies(self) -> tuple[Body, ...]:
        """The bodies in the order in which they run; a body that tests comes first."""
        raise NotImplementedError

    def with_bodies(self, bodies: Sequence[Body]) -> ControlOp:
        """This op with other bodies, which may take and return more or fewer values."""
        raise NotImplementedError

    def stacked(self, row: ShapedArray) -> ShapedArray:
        """The type of an input or output of which each run takes or returns a ``row``."""
        if self.chooses:
            return row
        raise RuleError(f"{self.name}: a loop without a known number of steps has no inputs or outputs of each step")

    def row(self, run: int) -> int:
        """The number of the slice that the body gets in the given run."""
        return run

    @property
    def is_counted(self) -> bool:
        """Whether it runs its bodies a number of times that is known before the first, and not large: never forever."""
        return True

    def limited(self, eqn: JaxprEqn, most: int, inside: Callable[[ClosedJaxpr], ClosedJaxpr]) -> JaxprEqn:
        """The equation, with a further result, of the loop that ends after ``most`` runs, if it is not counted;
        ``inside`` does the same to bodies."""
        raise RuleError(f"{self.name} is counted")

    # --- the view -------------------------------------------------------------------------------------------
    def numbers(self) -> Operands[int]:
        """The numbers of the operands, by role."""
        bodies = self.bodies()
        sizes = [b.num_consts for b in (bodies[:1] if self.chooses else bodies)]
        last = bodies[-1]
        count = int(self.chooses) + sum(sizes) + len(last.jaxpr.in_avals) - last.num_consts
        choice, *consts, carry, xs = split(range(count), int(self.chooses), *sizes, last.num_carry)
        return Operands(choice, consts * len(bodies) if self.chooses else consts, carry, xs)

    def parts(self, operands: Sequence[T]) -> Operands[T]:
        """Operands, or a value for each, by role."""
        return self.numbers().map(operands.__getitem__)

    def working(self) -> list[tuple[int, Body]]:
        """The bodies that do not test, with their numbers."""
        return [(n, b) for n, b in enumerate(self.bodies()) if not b.tests]

    def regions(self) -> tuple[ClosedJaxpr, ...]:
        return tuple(b.jaxpr for b in self.bodies())

    def with_regions(self, regions: Sequence[ClosedJaxpr]) -> ControlOp:
        return self.with_bodies([replace(b, jaxpr=r) for b, r in zip(self.bodies(), regions, strict=True)])

    def ties(self) -> Iterator[Tie]:
        numbers, working = self.numbers(), self.working()
        takers: dict[int, list[End]] = {n: [] for n in numbers.flat()[len(numbers.choice) :]}
        for body in range(len(self.bodies())):
            for i, n in enumerate(numbers.of(body)):
                takers[n].append(End(PARAMETER, i, body))

        def results(i: int, stacked: bool = False) -> Tie:
            return *(End(OUTPUT, i, b) for b, _ in working), End(RESULT, i, stacked=stacked)

        places = {n: i for i, n in enumerate(numbers.carry)}
        for n, ends in takers.items():
            outs = results(places[n]) if n in places else ()
            yield (End(OPERAND, n, stacked=n in numbers.xs), *ends, *outs)
        for i in range(len(places), len(working[0][1].jaxpr.out_avals)):
            yield results(i, stacked=not self.chooses)

    # --- types ----------------------------------------------------------------------------------------------
    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        parts = self.parts(avals)
        for number, body in enumerate(self.bodies()):
            consts, carry, rows = body.split(body.jaxpr.in_avals)
            expected = [*consts, *carry, *map(self.stacked, rows)]
            check_operands(f"{self.name} {body.label}".strip(), parts.of(number), expected)
            self._check_results(body, parts.carry)
        _, first = self.working()[0]
        outs = first.jaxpr.out_avals
        return (*outs[: first.num_carry], *map(self.stacked, outs[first.num_carry :]))

    def _check_results(self, body: Body, carry: Sequence[ShapedArray]) -> None:
        outs, first = body.jaxpr.out_avals, self.working()[0][1].jaxpr.out_avals
        if body.tests:
            if len(outs) != 1 or outs[0].shape != () or not is_bool(outs[0].dtype):
                raise DTypeError(f"{self.name}: the predicate must be one bool scalar, got {_listed(outs)}")
            return
        for i, (got, want) in enumerate(zip(outs, carry)):
            if not _alike([got], [want]):
                raise ShapeError(f"{self.name}: carry {i} goes in as {want} and comes out as {got}")
        if not _alike(outs, first):
            raise ShapeError(
                f"{self.name}: {body.label} returns {_listed(outs)}, {self.bodies()[0].label} {_listed(first)}; "
                "branches must return equal types"
            )

    def aligned(self, args: Sequence[Any]) -> tuple[Op, Sequence[Any]]:
        """Make types agree. A carry varies if a step or the number of steps does. All branches take and return the same
        types; casts needed because devices take different branches are outside the branches, and so are the sums that
        are their transposes."""
        numbers, bodies = self.numbers(), self.bodies()
        ins = list(map(axes_of, args))
        turns = NOWHERE.union(*(ins[n] for n in numbers.choice))
        while True:
            before = tuple(ins)
            jaxprs = [retyped(b.jaxpr, [ins[n] for n in numbers.of(i)]) for i, b in enumerate(bodies)]
            turns = turns.union(*(out_axes(j)[0] for b, j in zip(bodies, jaxprs) if b.tests))
            outs = joined(*(out_axes(j) for b, j in zip(bodies, jaxprs) if not b.tests))
            outs = outs if not turns else [axes | turns for axes in outs]
            for i, jaxpr in enumerate(jaxprs):
                for n, axes in zip(numbers.of(i), in_axes(jaxpr)):
                    ins[n] |= axes | turns if self.chooses else axes
            for n, axes in zip(numbers.carry, outs):
                ins[n] |= axes
            if tuple(ins) == before:
                break
        require_together("a choice of branches" if self.chooses else "a loop whose number of steps", turns, jaxprs)
        outs = [*(ins[n] for n in numbers.carry), *outs[len(numbers.carry) :]]
        jaxprs = [j if b.tests else retyped(j, in_axes(j), outs) for b, j in zip(bodies, jaxprs)]
        same = all(j is b.jaxpr for b, j in zip(bodies, jaxprs))
        return self if same else self.with_regions(jaxprs), cast_each(args, ins)

    # --- fixed points over the carry ------------------------------------------------------------------------
    def _settled(
        self, parts: Operands[T], outs: Sequence[T], after: After[T], join: Callable[[Sequence[T]], T]
    ) -> tuple[Operands[T], tuple[T, ...], list[T]]:
        """The fixed point of a property of each carried value.

        ``after(jaxpr, properties of its parameters, requested of its results)`` returns the property of its results,
        ``join`` combines those of all bodies. Returns the properties of operands, those last requested of results, and
        those found.
        """
        k, asked = len(parts.carry), tuple(outs)
        while True:
            by_body = [list(after(b.jaxpr, tuple(parts.of(n)), asked)) for n, b in self.working()]
            both = [join(column) for column in zip(*by_body)]
            if both[:k] == parts.carry and all(f == both for f in by_body):
                return parts, asked, both
            parts, asked = replace(parts, carry=both[:k]), tuple(both)

    def _outs(self, carry: Sequence[T], rest: T) -> list[T]:
        """A property for each result of a step: that of the carry, and ``rest`` for outputs."""
        return [*carry, *[rest] * (len(self.working()[0][1].jaxpr.out_avals) - len(carry))]

    # --- derivatives ----------------------------------------------------------------------------------------
    def jvp_call(self, t: Any, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        flags = self.parts([not isinstance(x, Zero) for x in tangents])
        flags, asked, nonzero = self._settled(
            flags, self._outs(flags.carry, False), lambda j, ins, outs: t.jvp(j, ins, outs)[1], any
        )
        k, values, given = len(flags.carry), self.parts(primals), self.parts(tangents)
        bodies = list(self.bodies())
        consts = list(values.consts)
        for n, body in enumerate(bodies):
            if body.tests:
                more = tuple(typeof(x).strong() for x in pick(values.carry, flags.carry))
                bodies[n] = replace(body, jaxpr=t.derive(with_more_carry, body.jaxpr, more))
            else:
                each = tuple(map(tuple, (flags.consts[n], flags.carry, flags.xs)))
                bodies[n] = replace(body, jaxpr=t.derive(jvp_body, body.jaxpr, each, asked))
                consts[n] = [*values.consts[n], *pick(given.consts[n], flags.consts[n])]
            bodies[n] = replace(bodies[n], num_consts=len(consts[n]), num_carry=k + sum(flags.carry))
        operands = replace(
            values, consts=consts, carry=[*values.carry, *map(materialize, pick(given.carry, flags.carry))],
            xs=[*values.xs, *pick(given.xs, flags.xs)],
        )  # fmt: skip
        outs = self.with_bodies(bodies).bind(*operands.flat())
        carry, carry_ts, ys, ys_ts = split(outs, k, sum(flags.carry), len(nonzero) - k)
        results = [*carry, *ys]
        return results, merge(nonzero, [*carry_ts, *ys_ts], [Zero(typeof(x)) for x in omit(results, nonzero)])

    def partial_eval_call(self, t: Any, known: Sequence[bool], args: Sequence[Any], tape: Any) -> Any:
        """Compute known results (if the number of steps is known) separately, and record the rest with all operands of
        the op."""

        def after(jaxpr: ClosedJaxpr, ins: Flags, outs: Flags) -> Flags:
            result: tuple[bool, ...] = t.partial_eval(jaxpr, ins, tuple(not known for known in outs)).known_out
            return result

        flags = self.parts(known)
        recorded = tape.record(self, args)
        if not all(flags.choice):
            return recorded
        flags, asked, known_out = self._settled(flags, self._outs(flags.carry, True), after, all)
        bodies = list(self.bodies())
        tests = [t.partial_eval(b.jaxpr, tuple(flags.of(n))).known_out[0] for n, b in enumerate(bodies) if b.tests]
        if not any(known_out) or not all(tests):
            return recorded
        for n, body in enumerate(bodies):
            jaxpr = t.derive(known_part, body.jaxpr, tuple(flags.of(n)), () if body.tests else asked)
            bodies[n] = replace(body, jaxpr=jaxpr, num_consts=sum(flags.consts[n]), num_carry=sum(flags.carry))
        outs = self.with_bodies(bodies).bind(*pick(args, flags.flat()))
        return merge(known_out, outs, omit(recorded, known_out))

    def transpose_call(self, t: Any, cts: Sequence[Any], *args: Any) -> Cotangents:
        raise DifferentiationError(
            f"reverse-mode differentiation of {self.name} is not known: it has no transpose rule; use forward mode "
            "(jvp, jacfwd)"
        )

    # --- batching -------------------------------------------------------------------------------------------
    def batch_call(self, t: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> BatchedResults:
        values, places = self.parts(args), self.parts(dims)
        # The sliced dimension stays in front.
        values = replace(values, xs=[move_dim(x, 0, 1) if d == 0 else x for x, d in zip(values.xs, places.xs)])
        inner = replace(places, xs=[None if d is None else max(d, 1) - 1 for d in places.xs])
        inner, asked, out_dims = self._settled(
            inner, self._outs(inner.carry, None), lambda j, ins, outs: t.batch(j, axis, ins, outs)[1], _first
        )
        bodies = list(self.bodies())
        tests = [t.batch(b.jaxpr, axis, tuple(inner.of(n)))[1][0] for n, b in enumerate(bodies) if b.tests]
        apart = any(d is not None for d in tests)
        if apart:  # entries end after different numbers of steps, so all of the carry differs between them
            out_dims = [d or 0 for d in out_dims]
            inner, asked = replace(inner, carry=out_dims), tuple(out_dims)
            if config.automatic_checks:
                refuse_automatic_checks(bodies[-1].jaxpr)
            if has_checks(bodies[-1].jaxpr):
                test, body = bodies
                both = test.num_consts + body.num_consts
                jaxpr = t.derive(while_it_runs, body.jaxpr, test.jaxpr, test.num_consts, body.num_consts)
                bodies = [test, replace(body, jaxpr=jaxpr, num_consts=both)]
                values, inner = (replace(p, consts=[p.consts[0], p.consts[0] + p.consts[1]]) for p in (values, inner))
        for n, body in enumerate(bodies):
            outs = ((0,) if apart else ()) if body.tests else asked
            bodies[n] = replace(body, jaxpr=t.batch(body.jaxpr, axis, tuple(inner.of(n)), outs)[0])
        moved = zip(values.carry, places.carry, inner.carry)
        values = replace(
            values, carry=[x if d == to else put_batch_dim(x, d, to or 0, axis.size) for x, d, to in moved]
        )
        if apart:
            bodies, values = each_to_its_end(t, bodies, values, asked)
        outs = self.with_bodies(bodies).bind(*values.flat())
        k, above = len(values.carry), int(not self.chooses)
        return outs, [*out_dims[:k], *(None if d is None else d + above for d in out_dims[k:])]

    # --- state ----------------------------------------------------------------------------------------------
    threads: ClassVar[bool] = True

    def threaded(
        self, args: Sequence[Any], state: list[Any], run: Run, join: Callable[[Sequence[Any]], list[Any]]
    ) -> tuple[list[Any], list[Any]]:
        n, parts = len(state), self.parts(args)
        types = [typeof(x).strong() for x in state]
        if not self.chooses and self.bodies()[0].tests:
            return self._tested_in_body(parts, state, types, run)
        bodies = []
        for body in self.bodies():
            at = 0 if self.chooses else body.num_consts
            jaxpr = threaded(body, at, types, run)
            consts, carry = (n, 0) if self.chooses else (0, n)
            bodies.append(
                replace(body, jaxpr=jaxpr, num_consts=consts + body.num_consts, num_carry=carry + body.num_carry)
            )
        if self.chooses:
            parts = replace(parts, consts=[[*state, *each] for each in parts.consts])
        else:
            parts = replace(parts, carry=[*state, *parts.carry])
        outs = self.with_bodies(bodies).bind(*parts.flat())
        return outs[n:], list(outs[:n])

    def _tested_in_body(
        self, parts: Operands[Any], state: list[Any], types: Sequence[ShapedArray], run: Run
    ) -> tuple[list[Any], list[Any]]:
        """:meth:`threaded` for a loop whose test changes the state, which a test cannot return.

        The test is evaluated before the loop and at the end of each step, and its result is carried.
        """
        test, body = self.bodies()
        (again,), state = run(test.jaxpr, [*parts.consts[0], *parts.carry], state)
        jaxprs = tested_in_body(test, body, types, run)
        carry = [*state, again, *parts.carry]
        new = [
            replace(b, jaxpr=jaxpr, num_consts=consts, num_carry=len(carry))
            for b, jaxpr, consts in zip((test, body), jaxprs, (0, test.num_consts + body.num_consts))
        ]
        operands = replace(parts, consts=[[], [*parts.consts[0], *parts.consts[1]]], carry=carry)
        outs = self.with_bodies(new).bind(*operands.flat())
        n = len(state)
        return list(outs[n + 1 :]), list(outs[:n])


def check_operands(what: str, avals: Sequence[ShapedArray], expected: Sequence[ShapedArray]) -> None:
    """Raise if the types of operands differ from those a body takes."""
    if len(avals) != len(expected):
        raise ShapeError(f"{what}: expected {counted(len(expected), 'operand')}, got {len(avals)}")
    for i, (got, want) in enumerate(zip(avals, expected)):
        if not _alike([got], [want]):
            raise ShapeError(f"{what}: operand {i} is {got}, the body takes {want}")


def _alike(avals: Sequence[ShapedArray], others: Sequence[ShapedArray]) -> bool:
    return [(a.shape, a.dtype) for a in avals] == [(a.shape, a.dtype) for a in others]


def _listed(avals: Sequence[ShapedArray]) -> str:
    return ", ".join(map(str, avals))


def _first(dims: Sequence[int | None]) -> int | None:
    return next((d for d in dims if d is not None), None)
