"""Implements :class:`JaxprTransforms`: each function evaluates a jaxpr under a transformation's trace and records it.

They are registered in ``TRANSFORMS.makers``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.errors import NestingError
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import BatchAxis, Mapped, Zero
from meshwright.ir.state import STATE, extend_axis_env, set_trace
from meshwright.ir.tracing import JaxprTrace, Tracer, eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.ops.elementwise.table import materialize, mul, scalar_like
from meshwright.ops.shape.broadcast_reduce import put_batch_dim, reduce_sum
from meshwright.transforms.batching import BatchTrace
from meshwright.transforms.jaxprs import TRANSFORMS, SplitJaxpr, batched_aval
from meshwright.transforms.jvp import JVPTrace, fitting
from meshwright.transforms.tape import Tape, backward, replay

#: the maximum number of residuals of one call
_MOST_RESIDUALS = 100_000


def _forced(values: Sequence[Any], instantiate: Sequence[bool]) -> list[Any]:
    """``values`` with symbolic zeros materialized where ``instantiate`` is True."""
    return [materialize(x) if forced else x for x, forced in zip(values, instantiate)] if instantiate else list(values)


def _jvp(
    jaxpr: ClosedJaxpr, nonzero: tuple[bool, ...], instantiate: tuple[bool, ...] = ()
) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    n = len(jaxpr.in_avals)
    tangent_avals = [a.strong() for a, nz in zip(jaxpr.in_avals, nonzero) if nz]
    nonzero_out: tuple[bool, ...] = ()

    def fun(*args: Any) -> list[Any]:
        nonlocal nonzero_out
        trace = JVPTrace(STATE.trace)
        given = iter(args[n:])
        values = [trace.wrap(x, next(given) if nz else Zero(typeof(x))) for x, nz in zip(args[:n], nonzero)]
        with trace:
            with set_trace(trace):
                outs = eval_jaxpr(jaxpr, jaxpr.consts, *values)
            pairs = [trace.unwrap(x) for x in outs]
        tangents = _forced([t for _, t in pairs], instantiate)
        nonzero_out = tuple(not isinstance(t, Zero) for t in tangents)
        return [p for p, _ in pairs] + [t for t in tangents if not isinstance(t, Zero)]

    return trace_to_jaxpr(fun, [*jaxpr.in_avals, *tangent_avals], jaxpr.jaxpr.debug_name), nonzero_out


def _batch(
    jaxpr: ClosedJaxpr, axis: BatchAxis, dims: tuple[int | None, ...], targets: tuple[int | None, ...] = ()
) -> tuple[ClosedJaxpr, tuple[int | None, ...]]:
    out_dims: tuple[int | None, ...] = ()

    def fun(*args: Any) -> list[Any]:
        nonlocal out_dims
        trace = BatchTrace(STATE.trace, axis)
        values = [trace.wrap(x, d) for x, d in zip(args, dims)]
        with trace:
            with set_trace(trace):
                outs = eval_jaxpr(jaxpr, jaxpr.consts, *values)
            pairs = [trace.unwrap(x) for x in outs]
        for i, target in enumerate(targets):
            if target is not None:
                pairs[i] = put_batch_dim(*pairs[i], target, axis.size), target
        out_dims = tuple(d for _, d in pairs)
        return [x for x, _ in pairs]

    avals = [batched_aval(a, axis, d) for a, d in zip(jaxpr.in_avals, dims)]
    return trace_to_jaxpr(fun, avals, jaxpr.jaxpr.debug_name), out_dims


def _partial_eval(jaxpr: ClosedJaxpr, known: tuple[bool, ...], unknown_out: tuple[bool, ...] = ()) -> SplitJaxpr:
    trace = JaxprTrace()
    tape = Tape(trace)
    args = [(trace if k else tape).new_arg(a) for a, k in zip(jaxpr.in_avals, known)]
    with set_trace(tape):
        outs = eval_jaxpr(jaxpr, jaxpr.consts, *args)
    forced = unknown_out or (False,) * len(outs)
    known_out = tuple(not tape.holds(x) and not f for x, f in zip(outs, forced))
    used = [x for r in tape.records for x in r.args] + [x for x, k in zip(outs, known_out) if not k]
    residuals = {id(x): x for x in used if isinstance(x, Tracer) and not tape.holds(x)}
    name = jaxpr.jaxpr.debug_name
    if len(residuals) > _MOST_RESIDUALS:
        raise NestingError(
            f"the derivative of {name or 'a function'} needs {len(residuals):,} values of it, at most "
            f"{_MOST_RESIDUALS:,} are kept: each of its calls keeps its own; write the repetition as lax.scan or "
            "lax.fori_loop, which keep arrays of them"
        )
    known_jaxpr = trace.finish([*(x for x, k in zip(outs, known_out) if k), *residuals.values()], name)

    second = JaxprTrace()
    env: dict[int, Any] = {}
    inner = {key: second.new_arg(x.aval) for key, x in residuals.items()}
    for x, k in zip(args, known):
        if not k:
            env[id(x)] = second.new_arg(x.aval)
    for record in tape.records:
        record.args = [inner.get(id(x), x) if isinstance(x, Tracer) else x for x in record.args]
    with tape:
        with set_trace(second):
            replay(tape.records, env)
    rest = [x for x, k in zip(outs, known_out) if not k]
    unknown_jaxpr = second.finish([env[id(x)] if tape.holds(x) else inner.get(id(x), x) for x in rest], name)
    return SplitJaxpr(known_jaxpr, unknown_jaxpr, known_out)


def _transpose(
    jaxpr: ClosedJaxpr,
    linear: tuple[bool, ...],
    nonzero: tuple[bool, ...],
    instantiate: tuple[bool, ...] = (),
) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    n = len(linear) - sum(linear)
    nonzero_out: tuple[bool, ...] = ()

    def fun(*args: Any) -> list[Any]:
        nonlocal nonzero_out
        tape = Tape(STATE.trace)
        given = iter(args[:n])
        values = [tape.new_arg(a) if lin else next(given) for a, lin in zip(jaxpr.in_avals, linear)]
        with tape:
            with set_trace(tape):
                outs = eval_jaxpr(jaxpr, jaxpr.consts, *values)
            arrived = iter(args[n:])
            linear_args = [x for x, lin in zip(values, linear) if lin]
            cts = collect_cts(tape, outs, [next(arrived) if nz else Zero(typeof(x)) for nz, x in zip(nonzero, outs)])
            results = _forced(backward(tape, tape.records, cts, linear_args), instantiate)
        nonzero_out = tuple(not isinstance(c, Zero) for c in results)
        return [c for c in results if not isinstance(c, Zero)]

    ct_avals = [a.strong() for a, nz in zip(jaxpr.out_avals, nonzero) if nz]
    in_avals = [a for a, lin in zip(jaxpr.in_avals, linear) if not lin]
    return trace_to_jaxpr(fun, [*in_avals, *ct_avals], jaxpr.jaxpr.debug_name), nonzero_out


def collect_cts(tape: Tape, outs: Sequence[Any], cts: Sequence[Any]) -> dict[int, Any]:
    """Cotangents of tape values, by the id of the value; several cotangents of one value are added."""
    tape_cts: dict[int, Any] = {}
    for x, ct in zip(outs, cts):
        if tape.holds(x) and not isinstance(ct, Zero):
            ct = fitting(ct, x.aval, "a cotangent", "the output")
            tape_cts[id(x)] = tape_cts[id(x)] + ct if id(x) in tape_cts else ct
    return tape_cts


def _batched_jvp_rule(rule: Callable[..., Any], mapped: Mapped) -> Callable[..., Any]:
    axis, dims, out_dims = mapped.axis, mapped.dims, mapped.out_dims

    def batched(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        trace = BatchTrace(STATE.trace, axis)
        wrapped = [trace.wrap(x, d) for x, d in zip(primals, dims)]
        twrapped = [
            Zero(typeof(w)) if isinstance(t, Zero) else trace.wrap(t, d) for w, t, d in zip(wrapped, tangents, dims)
        ]
        with trace:
            with set_trace(trace):
                outs, touts = rule(wrapped, twrapped)

            def place(x: Any, d: int | None) -> Any:
                if isinstance(x, Zero):
                    return Zero(batched_aval(x.aval, axis, d))
                val, dim = trace.unwrap(x)
                return val if d is None and dim is None else put_batch_dim(val, dim, d or 0, axis.size)

            results = [place(x, d) for x, d in zip(outs, out_dims)], [place(x, d) for x, d in zip(touts, out_dims)]
        return results

    return batched


def _batched_vjp_rules(
    fwd: Callable[..., Any], bwd: Callable[..., Any], mapped: Mapped
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    axis, dims, out_dims = mapped.axis, mapped.dims, mapped.out_dims
    residual_dims: list[int | None] = []

    def batched_fwd(primals: Sequence[Any], perturbed: Sequence[bool]) -> tuple[Sequence[Any], Sequence[Any]]:
        trace = BatchTrace(STATE.trace, axis)
        with trace:
            with _naming(axis), set_trace(trace):
                residuals, outs = fwd([trace.wrap(x, d) for x, d in zip(primals, dims)], perturbed)
            pairs = [trace.unwrap(x) for x in residuals]
            residual_dims[:] = [d for _, d in pairs]
            results = [trace.unwrap(x) for x in outs]
        placed = [
            x if d == want else put_batch_dim(x, d, want or 0, axis.size) for (x, d), want in zip(results, out_dims)
        ]
        return [x for x, _ in pairs], placed

    return batched_fwd, batched_backward(bwd, mapped, residual_dims)


def _naming(axis: BatchAxis) -> Any:
    return extend_axis_env({axis.name: axis.size} if axis.name is not None else {})


def batched_backward(
    bwd: Callable[..., Any], mapped: Mapped, residual_dims: Sequence[int | None]
) -> Callable[..., Any]:
    """The batched form of a backward rule; ``residual_dims`` are the batch dimensions of its residuals."""
    axis, dims, out_dims = mapped.axis, mapped.dims, mapped.out_dims

    def batched_bwd(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        trace = BatchTrace(STATE.trace, axis)
        with trace:
            with _naming(axis), set_trace(trace):
                in_cts = bwd(
                    [trace.wrap(x, d) for x, d in zip(residuals, residual_dims)],
                    [_unbatched(ct, d) if isinstance(ct, Zero) else trace.wrap(ct, d) for ct, d in zip(cts, out_dims)],
                )
            pairs = [None if ct is None else trace.unwrap(ct) for ct in in_cts]
        return [None if pair is None else _cotangent(*pair, d, axis.size) for pair, d in zip(pairs, dims)]

    return batched_bwd


def _unbatched(zero: Zero, dim: int | None) -> Zero:
    shape = zero.aval.shape
    return zero if dim is None else Zero(zero.aval.update(shape=shape[:dim] + shape[dim + 1 :]))


def _cotangent(ct: Any, dim: int | None, target: int | None, size: int) -> Any:
    """The cotangent of an operand with its batch dimension at ``target``; summed over the batch if that is None."""
    if target is not None:
        return put_batch_dim(ct, dim, target, size)
    return mul(ct, scalar_like(size, ct)) if dim is None else reduce_sum(ct, (dim,))


TRANSFORMS.makers["jvp"].fill(_jvp)
TRANSFORMS.makers["batch"].fill(_batch)
TRANSFORMS.makers["partial_eval"].fill(_partial_eval)
TRANSFORMS.makers["transpose"].fill(_transpose)
TRANSFORMS.makers["batched_jvp_rule"].fill(_batched_jvp_rule)
TRANSFORMS.makers["batched_vjp_rules"].fill(_batched_vjp_rules)
TRANSFORMS.makers["batched_linear"].fill(batched_backward)
