"""Ops that hold jaxprs: calls of jitted functions and of functions with custom derivatives.

Their rules need the transformations of jaxprs, which are in a higher layer than ``ops``, and so are passed them as
first argument ``t`` (:class:`meshwright.transforms.jaxprs.JaxprTransforms`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import RuleError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.jaxpr import ClosedJaxpr, has_effects, sub_jaxprs
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Linear, Mapped, Op, Tangent, Zero
from meshwright.ir.tracing import eval_jaxpr
from meshwright.ir.varying import axes_of
from meshwright.ops.control.retype import cast_each, in_axes, retyped


@dataclass(frozen=True)
class CallOp(Op):
    """Base class of ops with inner jaxprs, whose rules are passed the transformations of jaxprs."""

    multiple_results: ClassVar[bool] = True
    takes_keys: ClassVar[bool] = True
    holds_jaxprs: ClassVar[bool] = True

    @property
    def has_effects(self) -> bool:
        return any(map(has_effects, sub_jaxprs(self)))

    def typed(self, *avals: ShapedArray) -> Any:
        return self.infer(*avals)  # the inner jaxprs tell over which axes results vary

    def aligned(self, args: Sequence[Any]) -> tuple[Op, Sequence[Any]]:
        body = self.body()
        if body is None:
            raise RuleError(f"{self.name}: it is not known over which axes of a shard_map its results vary")
        jaxpr = retyped(body, list(map(axes_of, args)))
        op = self if jaxpr is body else dataclasses.replace(self, jaxpr=jaxpr)  # type: ignore[call-arg]
        return op, cast_each(args, in_axes(jaxpr))

    def jvp_call(self, t: Any, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        """``jvp``, given the transformations of jaxprs."""
        raise NotImplementedError

    def batch_call(self, t: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> BatchedResults:
        """``batch``, given the transformations of jaxprs."""
        raise NotImplementedError

    def partial_eval_call(self, t: Any, known: Sequence[bool], args: Sequence[Any], tape: Any) -> Any:
        """Bind what depends only on known operands, and record the rest on ``tape``."""
        raise NotImplementedError

    def transpose_call(self, t: Any, cts: Sequence[Any], *args: Any) -> Cotangents:
        """``transpose``, given the transformations of jaxprs."""
        raise NotImplementedError


@dataclass(frozen=True)
class FunctionCall(CallOp):
    """Base class of calls of a user's function. Its value is that of its jaxpr; its transformations may be custom."""

    fun_name: str
    jaxpr: ClosedJaxpr

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        return tuple(self.jaxpr.out_avals)

    def body(self) -> ClosedJaxpr | None:
        return self.jaxpr

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        return b.call(self.fun_name, self.jaxpr, operands)


@dataclass(frozen=True)
class Jit(FunctionCall):
    """A call of a jitted function: one equation with an inner jaxpr, which contains its shardings as constraints."""

    inline: bool = False
    name: ClassVar[str] = "jit"
    plain_call: ClassVar[bool] = True
    hidden_params: ClassVar[tuple[str, ...]] = ("inline",)

    @property
    def inlined(self) -> ClosedJaxpr | None:
        return self.jaxpr if self.inline else None

    @property
    def scope_name(self) -> str:
        return f"jit({self.fun_name})"

    @property
    def params(self) -> dict[str, Any]:
        return {"name": self.fun_name, "jaxpr": self.jaxpr, "inline": self.inline}

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        for got, want in zip(avals, self.jaxpr.in_avals, strict=True):
            if (got.shape, got.dtype) != (want.shape, want.dtype):
                raise ShapeError(f"jit {self.fun_name}: operand {got}, the traced function takes {want}")
        return tuple(self.jaxpr.out_avals)

    def jvp_call(self, t: Any, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        nonzero = tuple(not isinstance(x, Zero) for x in tangents)
        jaxpr, nonzero_out = t.jvp(self.jaxpr, nonzero)
        given = [x for x, nz in zip(tangents, nonzero) if nz]
        outs = Jit(self.fun_name, jaxpr, self.inline).bind(*primals, *given)
        n = len(self.jaxpr.out_avals)
        rest = iter(outs[n:])
        touts = [next(rest) if nz else Zero(a) for nz, a in zip(nonzero_out, self.jaxpr.out_avals)]
        return outs[:n], touts

    def batch_call(self, t: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> BatchedResults:
        jaxpr, out_dims = t.batch(self.jaxpr, axis, tuple(dims))
        return Jit(self.fun_name, jaxpr, self.inline).bind(*args), list(out_dims)

    def partial_eval_call(self, t: Any, known: Sequence[bool], args: Sequence[Any], tape: Any) -> Any:
        split = t.partial_eval(self.jaxpr, tuple(known))
        known_args = [x for x, k in zip(args, known) if k]
        first = Jit(self.fun_name, split.known, self.inline)
        outs = first.bind(*known_args) if split.known.out_avals or first.has_effects else []
        n = sum(split.known_out)
        results, residuals = iter(outs[:n]), outs[n:]
        unknown_args = [x for x, k in zip(args, known) if not k]
        recorded = iter(tape.record(Jit(self.fun_name, split.unknown, self.inline), [*residuals, *unknown_args]))
        return [next(results) if k else next(recorded) for k in split.known_out]

    def transpose_call(self, t: Any, cts: Sequence[Any], *args: Any) -> Cotangents:
        linear = tuple(isinstance(x, Linear) for x in args)
        nonzero = tuple(not isinstance(c, Zero) for c in cts)
        jaxpr, nonzero_out = t.transpose(self.jaxpr, linear, nonzero)
        values = [x for x, lin in zip(args, linear) if not lin]
        outs = iter(Jit(self.fun_name, jaxpr, self.inline).bind(*values, *(c for c in cts if not isinstance(c, Zero))))
        flags = iter(nonzero_out)
        return [(next(outs) if next(flags) else Zero(x.aval)) if lin else None for x, lin in zip(args, linear)]


def batched_everywhere(
    t: Any, jaxpr: ClosedJaxpr, axis: BatchAxis, dims: Sequence[int | None]
) -> tuple[ClosedJaxpr, tuple[int | None, ...]]:
    """The batched jaxpr with all results batched; a custom batching rule may leave results unbatched.

    Along the dimension of key words only keys are batched; they are distinguished after differentiation.
    """
    batched, out_dims = t.batch(jaxpr, axis, tuple(dims))
    if None not in out_dims or axis.key is not None:
        return batched, out_dims
    result: tuple[ClosedJaxpr, tuple[int | None, ...]] = t.batch(
        jaxpr, axis, tuple(dims), tuple(d or 0 for d in out_dims)
    )
    return result


@dataclass(frozen=True)
class CustomJvpCall(FunctionCall):
    """A function with a custom derivative rule, which is a function of flat primals and tangents."""

    rule: Callable[[Sequence[Any], Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]]
    name: ClassVar[str] = "custom_jvp_call"
    hidden_params: ClassVar[tuple[str, ...]] = ("rule",)

    @property
    def params(self) -> dict[str, Any]:
        return {"name": self.fun_name, "call_jaxpr": self.jaxpr, "rule": self.rule}

    def jvp_call(self, t: Any, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        return self.rule(primals, tangents)

    def batch_call(self, t: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> BatchedResults:
        jaxpr, out_dims = batched_everywhere(t, self.jaxpr, axis, dims)
        rule = t.batched_jvp_rule(self.rule, Mapped(axis, tuple(dims), tuple(out_dims)))
        return CustomJvpCall(self.fun_name, jaxpr, rule).bind(*args), list(out_dims)

    def partial_eval_call(self, t: Any, known: Sequence[bool], args: Sequence[Any], tape: Any) -> Any:
        # Reached only with tangents that bypassed ``jvp``: differentiate the body itself.
        return eval_jaxpr(self.jaxpr, self.jaxpr.consts, *args)
