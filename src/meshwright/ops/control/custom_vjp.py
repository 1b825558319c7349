"""Functions with custom backward rules.

``custom_vjp_call`` is the function. Differentiating it runs the user's forward rule and leaves one linear op,
``custom_lin``, whose transpose is the user's backward rule. It can be evaluated only if its pushforward is given too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.dtypes import is_inexact
from meshwright.core.records import dataclass
from meshwright.errors import DifferentiationError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Linear, Mapped, Op, Tangent, Zero
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.ops.control.call import CallOp, FunctionCall, Jit, batched_everywhere
from meshwright.ops.elementwise.table import materialize

#: from flat operands, and whether each is differentiated, to (flat residuals, flat results)
Forward = Callable[[Sequence[Any], Sequence[bool]], tuple[Sequence[Any], Sequence[Any]]]
#: from flat residuals and result cotangents to one cotangent (or None, for zero) per operand
Backward = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
#: from flat residuals and tangents of inexact operands to the tangents of inexact results
Pushforward = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


def closed_over(name: str) -> DifferentiationError:
    """The error if a derivative is needed that the rules do not define."""
    return DifferentiationError(
        f"custom_vjp {name}: the derivative with respect to a value that it closes over is wanted, which its rule does "
        "not give; pass the value as an argument (see closure_convert)"
    )


def linear_part(
    name: str, bwd: Backward, residuals: Sequence[Any], primals: Sequence[ArrayLike], tangents: Sequence[Tangent],
    out_avals: Sequence[ShapedArray], symbolic_zeros: bool,
) -> list[Any]:  # fmt: skip
    """The tangents of the results: the results of a linear op whose transpose is the backward rule."""
    linear = tuple(is_inexact(typeof(p).dtype) for p in primals)
    given = [materialize(x) for x, lin in zip(tangents, linear) if lin]
    avals = tuple(a.strong() for a in out_avals)
    outs = iter(CustomLin(name, bwd, len(residuals), linear, avals, symbolic_zeros).bind(*residuals, *given))
    return [next(outs) if is_inexact(a.dtype) else Zero(a) for a in avals]


@dataclass(frozen=True)
class CustomVjpCall(FunctionCall):
    """A function with a custom backward rule.

    The first ``num_consts`` operands are values that it closes over, for which the rule returns no cotangents; the
    first ``num_loose`` of these are used only by the backward rule. With ``symbolic_zeros``, the rule gets zero
    cotangents as :class:`Zero`.
    """

    fwd: Forward
    bwd: Backward
    num_consts: int = 0
    symbolic_zeros: bool = False
    num_loose: int = 0
    name: ClassVar[str] = "custom_vjp_call"
    hidden_params: ClassVar[tuple[str, ...]] = ("fwd", "bwd", "num_consts", "symbolic_zeros", "num_loose")

    @property
    def params(self) -> dict[str, Any]:
        return {
            "name": self.fun_name, "call_jaxpr": self.jaxpr, "fwd": self.fwd, "bwd": self.bwd,
            "num_consts": self.num_consts, "symbolic_zeros": self.symbolic_zeros, "num_loose": self.num_loose,
        }  # fmt: skip

    def jvp_call(self, t: Any, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        if any(not isinstance(x, Zero) for x in tangents[self.num_loose : self.num_consts]):
            raise closed_over(self.fun_name)
        residuals, outs = self.fwd(primals, [not isinstance(x, Zero) for x in tangents])
        return outs, linear_part(
            self.fun_name, self.bwd, residuals, primals, tangents, self.jaxpr.out_avals, self.symbolic_zeros
        )

    def batch_call(self, t: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> BatchedResults:
        jaxpr, out_dims = batched_everywhere(t, self.jaxpr, axis, dims)
        fwd, bwd = t.batched_vjp_rules(self.fwd, self.bwd, Mapped(axis, tuple(dims), out_dims))
        op = CustomVjpCall(self.fun_name, jaxpr, fwd, bwd, self.num_consts, self.symbolic_zeros, self.num_loose)
        return op.bind(*args), list(out_dims)

    def partial_eval_call(self, t: Any, known: Sequence[bool], args: Sequence[Any], tape: Any) -> Any:
        return tape.record(self, args)


@dataclass(frozen=True)
class CustomLin(CallOp):
    """The derivative of a function with a custom backward rule, as an op on residuals and tangents known by its
    transpose.

    ``linear`` tells which operands of the function have tangents (those of inexact types). ``push`` computes it, for
    operands of types ``in_avals``, which makes forward mode possible. It is called only then, and may raise.
    """

    fun_name: str
    bwd: Backward
    num_residuals: int
    linear: tuple[bool, ...]
    out_avals: tuple[ShapedArray, ...]
    symbolic_zeros: bool = False
    push: Pushforward | None = None
    in_avals: tuple[ShapedArray, ...] = ()
    name: ClassVar[str] = "custom_lin"
    hidden_params: ClassVar[tuple[str, ...]] = ("bwd", "linear", "out_avals", "symbolic_zeros", "push", "in_avals")
    body_is_late: ClassVar[bool] = True

    def body(self) -> ClosedJaxpr | None:
        return None if self.push is None else self._pushed.jaxpr

    @cached_property
    def _pushed(self) -> Jit:
        """The computation in forward mode."""
        push, n = self.push, self.num_residuals
        if push is None:
            raise DifferentiationError(
                f"custom_vjp {self.fun_name}: it has a rule for reverse mode only, so jvp, jacfwd and linearize cannot "
                "go through it; use grad, vjp or jacrev, or write the rule with custom_jvp"
            )
        return Jit(self.fun_name, trace_to_jaxpr(lambda *xs: push(xs[:n], xs[n:]), self.in_avals, self.fun_name))

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        return tuple(a for a in self.out_avals if is_inexact(a.dtype))

    def aligned(self, args: Sequence[Any]) -> tuple[Op, Sequence[Any]]:
        return self, args  # tangents have the types of their primals, and rules may use residuals of any type

    def partial_eval_call(self, t: Any, known: Sequence[bool], args: Sequence[Any], tape: Any) -> Any:
        return tape.record(self, args)

    def transpose_call(self, t: Any, cts: Sequence[Any], *args: Any) -> Cotangents:
        residuals = args[: self.num_residuals]
        given = iter(cts)
        full = [next(given) if is_inexact(a.dtype) else Zero(a) for a in self.out_avals]
        full = full if self.symbolic_zeros else [materialize(ct) for ct in full]
        all_cts = self.bwd(residuals, full)
        in_cts = [ct for ct, lin in zip(all_cts, self.linear) if lin]
        tangents = args[self.num_residuals :]
        cotangents = [Zero(x.aval) if ct is None else ct for x, ct in zip(tangents, in_cts) if isinstance(x, Linear)]
        results = iter(cotangents)
        return [None] * len(residuals) + [next(results) if isinstance(x, Linear) else None for x in tangents]

    def jvp_call(self, t: Any, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        return self._pushed.jvp_call(t, primals, tangents)

    def batch_call(self, t: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> BatchedResults:
        if self.push is None or axis.key is not None:
            return self._pushed.batch_call(t, axis, args, dims)
        saved, given = tuple(dims[: self.num_residuals]), iter(dims[self.num_residuals :])
        ins = [next(given) if lin else None for lin in self.linear]
        tangents = [d for d, lin in zip(ins, self.linear) if lin]
        outs, inexact = (0,) * len(self.out_avals), (0,) * len(self.infer())
        bwd = t.batched_linear(self.bwd, Mapped(axis, ins, outs), saved)
        push = t.batched_linear(self.push, Mapped(axis, inexact, tangents), saved)
        types = t.batched_avals(self.out_avals, axis, outs), t.batched_avals(self.in_avals, axis, dims)
        op = dataclasses.replace(self, bwd=bwd, push=push, out_avals=types[0], in_avals=types[1])
        return op.bind(*args), list(inexact)

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        return self._pushed.emit(b, *operands)
