"""Bodies of control flow, the operands they take, and how derivatives, batching and checks transform them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import ClosedJaxpr, Var
from meshwright.ir.passes import dead_code
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.ops.control.guards import guarded
from meshwright.ops.control.regions import Run, arranged, pick, split
from meshwright.ops.elementwise.table import select
from meshwright.ops.reduce.reductions import reduce_or
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim

T = TypeVar("T")
S = TypeVar("S")
Flags = tuple[bool, ...]


@dataclass(frozen=True)
class Body:
    """A jaxpr that an op runs. It takes constants, a carry and slices, and returns the carry and outputs; one that
    ``tests`` instead returns a bool, which tells whether the other bodies run once more."""

    jaxpr: ClosedJaxpr
    num_consts: int
    num_carry: int = 0
    tests: bool = False
    #: a description of the body, to tell it from the op's other bodies
    label: str = ""

    def split(self, parameters: Sequence[T]) -> list[list[T]]:
        """Parameters split into constants, carry, slices."""
        return split(parameters, self.num_consts, self.num_carry)

    def used(self) -> list[bool]:
        """Whether each parameter is used."""
        inner = self.jaxpr.jaxpr
        atoms = {a for e in inner.eqns for a in e.invars}.union(inner.outvars)
        return [v in atoms for v in inner.invars]

    def only(self, flags: Sequence[bool]) -> Body:
        """The body without the parameters that are not flagged, which must be unused."""
        consts, carry, _ = self.split(flags)
        jaxpr = arranged(self.jaxpr, pick(self.jaxpr.jaxpr.invars, flags))
        return replace(self, jaxpr=jaxpr, num_consts=sum(consts), num_carry=sum(carry))


@dataclass(frozen=True)
class Operands(Generic[T]):
    """The operands of an op, or a value for each, by role: the branch index, the constants of each body (branches share
    theirs), the initial carry, and the arrays that are sliced."""

    choice: list[T]
    consts: list[list[T]]
    carry: list[T]
    xs: list[T]

    def of(self, body: int) -> list[T]:
        """The operand behind each parameter of a body."""
        return [*self.consts[body], *self.carry, *self.xs]

    def map(self, fun: Callable[[T], S]) -> Operands[S]:
        """``fun`` applied to each."""
        consts = [list(map(fun, each)) for each in self.consts]
        return Operands(list(map(fun, self.choice)), consts, list(map(fun, self.carry)), list(map(fun, self.xs)))

    def flat(self) -> list[T]:
        """In the order of the op's operands."""
        consts = self.consts[:1] if self.choice else self.consts
        return [*self.choice, *(c for each in consts for c in each), *self.carry, *self.xs]


def threaded(body: Body, at: int, types: Sequence[ShapedArray], run: Run) -> ClosedJaxpr:
    """The body's jaxpr with a state, which it takes after its first ``at`` parameters and returns first.

    ``run(jaxpr, args, state)`` evaluates the equations and returns results and the new state.
    """

    def fun(*values: Any) -> list[Any]:
        before, state, rest = split(values, at, len(types))
        outs, state = run(body.jaxpr, [*before, *rest], state)
        return [*state, *outs]

    avals = body.jaxpr.in_avals
    return trace_to_jaxpr(fun, [*avals[:at], *types, *avals[at:]], body.jaxpr.jaxpr.debug_name)


def tested_in_body(test: Body, body: Body, types: Sequence[ShapedArray], run: Run) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """The test and the body of a loop with a state, for a test that changes the state.

    Both carry the state and the result of the test in front of the carry. The new body evaluates the test for the next
    step; the new test returns the carried result.
    """
    (says,) = test.jaxpr.out_avals
    firsts, (seconds, carry, _) = test.jaxpr.in_avals[: test.num_consts], body.split(body.jaxpr.in_avals)

    def step(*values: Any) -> list[Any]:
        first, second, state, _, carried = split(values, len(firsts), len(seconds), len(types), 1)
        outs, state = run(body.jaxpr, [*second, *carried], state)
        (again,), state = run(test.jaxpr, [*first, *outs], state)
        return [*state, again, *outs]

    avals = [*types, says.strong(), *carry]
    new = trace_to_jaxpr(step, [*firsts, *seconds, *avals], body.jaxpr.jaxpr.debug_name)
    return trace_to_jaxpr(lambda *values: [values[len(types)]], avals, test.jaxpr.jaxpr.debug_name), new


# --- bodies, made once for each jaxpr -----------------------------------------------------------------------
def jvp_body(t: Any, jaxpr: ClosedJaxpr, flags: Sequence[Flags], asked: Flags) -> ClosedJaxpr:
    """The JVP of a body, whose tangents follow constants, carry and slices respectively; likewise for its results."""
    consts, carry, xs = flags
    body, nonzero = t.jvp(jaxpr, (*consts, *carry, *xs), asked)
    k = len(carry)
    c, p, x, ct, pt, xt = split(body.jaxpr.invars, len(consts), k, len(xs), sum(consts), sum(carry))
    co, yo, cto, yto = split(body.jaxpr.outvars, k, len(nonzero) - k, sum(carry))
    return arranged(body, [*c, *ct, *p, *pt, *x, *xt], [*co, *cto, *yo, *yto])


def with_more_carry(t: Any, jaxpr: ClosedJaxpr, extra: Sequence[ShapedArray]) -> ClosedJaxpr:
    """A test that takes and ignores further carried values."""
    return arranged(jaxpr, [*jaxpr.jaxpr.invars, *(Var(a) for a in extra)])


def known_part(t: Any, jaxpr: ClosedJaxpr, known: Flags, asked: Flags) -> ClosedJaxpr:
    """The part of a body that depends only on known values, without the residuals for the rest."""
    parts = t.partial_eval(jaxpr, known, tuple(not want for want in asked))
    inner = parts.known.jaxpr
    return dead_code(arranged(parts.known, inner.invars, inner.outvars[: sum(parts.known_out)]))


def each_to_its_end(
    t: Any, bodies: Sequence[Body], values: Operands[Any], dims: tuple[int | None, ...]
) -> tuple[list[Body], Operands[Any]]:
    """A loop that runs while any batch entry does; entries that are done keep their values."""
    test, body = bodies
    again = replace(test, jaxpr=t.derive(_any_holds, test.jaxpr))
    masked = t.derive(_masked_body, body.jaxpr, test.jaxpr, test.num_consts, body.num_consts, dims)
    first, second = values.consts
    new = replace(body, jaxpr=masked, num_consts=test.num_consts + body.num_consts)
    return [again, new], replace(values, consts=[first, [*first, *second]])


def while_it_runs(t: Any, body: ClosedJaxpr, test: ClosedJaxpr, test_consts: int, body_consts: int) -> ClosedJaxpr:
    """The body with the constants of the test in front, and with checks that hold for entries that are done."""

    def runs(*args: Any) -> tuple[Any, Sequence[Any]]:
        first, second, carry = split(args, test_consts, body_consts)
        (holds,) = eval_jaxpr(test, test.consts, *first, *carry)
        return holds, [*second, *carry]

    return guarded(body, test.in_avals[:test_consts], runs)


def _any_holds(t: Any, test: ClosedJaxpr) -> ClosedJaxpr:
    def fun(*args: Any) -> list[Any]:
        (holds,) = eval_jaxpr(test, test.consts, *args)
        return [reduce_or(holds, (0,))]

    return trace_to_jaxpr(fun, test.in_avals, test.jaxpr.debug_name)


def _masked_body(
    t: Any, body: ClosedJaxpr, test: ClosedJaxpr, test_consts: int, body_consts: int, dims: Sequence[int]
) -> ClosedJaxpr:
    def fun(*args: Any) -> list[Any]:
        first, second, carry = split(args, test_consts, body_consts)
        (holds,) = eval_jaxpr(test, test.consts, *first, *carry)
        outs = eval_jaxpr(body, body.consts, *second, *carry)
        return [
            select(broadcast_in_dim(holds, typeof(new).shape, (d,)), new, old) for new, old, d in zip(outs, carry, dims)
        ]

    return trace_to_jaxpr(fun, [*test.in_avals[:test_consts], *body.in_avals], body.jaxpr.debug_name)
