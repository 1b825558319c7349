"""``checkpoint``: a call whose intermediate values are recomputed for the backward pass instead of stored
(Griewank and Walther 2000; splitting by a policy follows ``jax.checkpoint``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Linear, Tangent, Zero
from meshwright.ir.passes import dead_code, inline_calls, is_plain_call
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr
from meshwright.ops.control.call import CallOp
from meshwright.ops.control.markers import optimization_barrier
from meshwright.ops.control.regions import merge, omit, pick
from meshwright.ops.sharding.memory_put import MemoryPut

#: ``policy(op, *operand avals, **params)``: whether the result of an op may be stored
Policy = Callable[..., Any]


@dataclass(frozen=True)
class Checkpoint(CallOp):
    """A call that is recomputed where its derivative needs it; ``policy`` tells which ops' results are stored.

    ``prevent_cse`` puts a barrier before the recomputation, which the compiler would otherwise merge with the first
    computation.
    """

    jaxpr: ClosedJaxpr
    policy: Policy | None = None
    prevent_cse: bool = True
    differentiated: bool = False
    name: ClassVar[str] = "checkpoint"

    @property
    def params(self) -> dict[str, Any]:
        return {
            "differentiated": self.differentiated,
            "jaxpr": self.jaxpr,
            "policy": self.policy,
            "prevent_cse": self.prevent_cse,
        }

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        return tuple(self.jaxpr.out_avals)

    def _with(self, jaxpr: ClosedJaxpr, differentiated: bool = False) -> Checkpoint:
        return Checkpoint(jaxpr, self.policy, self.prevent_cse, self.differentiated or differentiated)

    def jvp_call(self, t: Any, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        nonzero = tuple(not isinstance(x, Zero) for x in tangents)
        jaxpr, nonzero_out = t.jvp(self.jaxpr, nonzero)
        outs = self._with(jaxpr).bind(*primals, *pick(tangents, nonzero))
        n = len(nonzero_out)
        zeros = [Zero(a) for a in omit(self.jaxpr.out_avals, nonzero_out)]
        return outs[:n], merge(nonzero_out, outs[n:], zeros)

    def batch_call(self, t: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> BatchedResults:
        jaxpr, out_dims = t.batch(self.jaxpr, axis, tuple(dims))
        return self._with(jaxpr).bind(*args), list(out_dims)

    def partial_eval_call(self, t: Any, known: Sequence[bool], args: Sequence[Any], tape: Any) -> Any:
        parts = t.derive(_split, self.jaxpr, tuple(known), self.policy)
        given = pick(args, known)
        outs = eval_jaxpr(parts.known, parts.known.consts, *given)
        n = sum(parts.known_out)
        recorded: Sequence[Any] = ()
        if parts.again.out_avals:
            recorded = tape.record(self._with(parts.again, True), [*given, *outs[n:], *omit(args, known)])
        return merge(parts.known_out, outs[:n], recorded)

    def transpose_call(self, t: Any, cts: Sequence[Any], *args: Any) -> Cotangents:
        linear = tuple(isinstance(x, Linear) for x in args)
        nonzero = tuple(not isinstance(c, Zero) for c in cts)
        jaxpr, nonzero_out = t.derive(_transposed, self.jaxpr, linear, nonzero, self.prevent_cse)
        outs = iter(self._with(jaxpr, True).bind(*omit(args, linear), *pick(cts, nonzero)))
        flags = iter(nonzero_out)
        return [(next(outs) if next(flags) else Zero(x.aval)) if lin else None for x, lin in zip(args, linear)]

    def body(self) -> ClosedJaxpr | None:
        return self.jaxpr

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        return b.call("checkpoint", self.jaxpr, operands)


@dataclass(frozen=True)
class Offloadable:
    """A policy's answer to store a value in another memory: the memory it comes from, and the destination."""

    src: str
    dst: str


@dataclass(frozen=True)
class _Parts:
    """``known`` takes the known operands and returns the known results and the residuals; ``again`` takes the known
    operands, the residuals and the unknown operands, and returns the other results."""

    known: ClosedJaxpr
    again: ClosedJaxpr
    known_out: tuple[bool, ...]


def _split(t: Any, jaxpr: ClosedJaxpr, known: tuple[bool, ...], policy: Policy | None) -> _Parts:
    # Policies apply inside jitted functions, but custom derivatives must stay: they may be differentiated again.
    split = t.partial_eval(inline_calls(jaxpr, is_plain_call), known)
    n = sum(split.known_out)
    first = inline_calls(split.known, is_plain_call)
    inner = first.jaxpr
    results, residuals = inner.outvars[:n], inner.outvars[n:]
    kept = _kept(inner, policy)
    # Residuals become parameters of the recomputation, so their producers are dead code there.
    twice = ClosedJaxpr(
        Jaxpr(
            inner.constvars,
            [*inner.invars, *kept],
            residuals,
            [e for e in inner.eqns if not any(v in kept for v in e.outvars)],
            inner.debug_name,
        ),
        first.consts,
    )
    twice = dead_code(twice)
    used = {a for e in twice.eqns for a in e.invars if isinstance(a, Var)}.union(
        a for a in residuals if isinstance(a, Var)
    )
    needed = [v for v in kept if v in used]
    m = len(inner.invars) + len(needed)
    params = [*inner.invars, *needed]
    twice = ClosedJaxpr(twice.jaxpr.replace(invars=params), twice.consts)
    moved = [_memory(inner, v, policy) for v in needed]
    stored = [v if kind is None else Var(v.aval.update(memory=kind)) for v, kind in zip(needed, moved)]
    puts = [JaxprEqn(MemoryPut(k), [v], [s]) for v, s, k in zip(needed, stored, moved) if k is not None]
    known_jaxpr = dead_code(
        ClosedJaxpr(inner.replace(eqns=[*inner.eqns, *puts], outvars=[*results, *stored]), first.consts)
    )

    def again(*args: Any) -> list[Any]:
        back = [x if k is None else MemoryPut(None).bind(x) for x, k in zip(args[len(inner.invars) : m], moved)]
        args = (*args[: len(inner.invars)], *back, *args[m:])
        values = eval_jaxpr(twice, twice.consts, *args[:m])
        return eval_jaxpr(split.unknown, split.unknown.consts, *values, *args[m:])

    avals = [*(v.aval for v in (*inner.invars, *stored)), *omit(jaxpr.in_avals, known)]
    return _Parts(known_jaxpr, trace_to_jaxpr(again, avals, jaxpr.jaxpr.debug_name), split.known_out)


def _memory(jaxpr: Jaxpr, var: Var, policy: Policy | None) -> str | None:
    """The memory in which the policy stores a value, if it is not the device's own."""
    eqn = next(e for e in jaxpr.eqns if var in e.outvars)
    answer = policy(eqn.op, *(a.aval for a in eqn.invars), **eqn.op.params) if policy is not None else None
    return answer.dst if isinstance(answer, Offloadable) else None


def _kept(jaxpr: Jaxpr, policy: Policy | None) -> list[Var]:
    if policy is None:
        return []
    return [v for e in jaxpr.eqns if policy(e.op, *(a.aval for a in e.invars), **e.op.params) for v in e.outvars]


def _transposed(
    t: Any, jaxpr: ClosedJaxpr, linear: tuple[bool, ...], nonzero: tuple[bool, ...], barrier: bool
) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    back, nonzero_out = t.transpose(jaxpr, linear, nonzero)
    if not barrier:
        return back, nonzero_out

    def fun(*args: Any) -> list[Any]:
        return eval_jaxpr(back, back.consts, *optimization_barrier(args))

    return trace_to_jaxpr(fun, back.in_avals, jaxpr.jaxpr.debug_name), nonzero_out
