"""Functions with custom batching rules, and linear functions with custom transposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from meshwright.core.dtypes import is_inexact
from meshwright.core.records import dataclass
from meshwright.errors import DifferentiationError, RuleError
from meshwright.ir.contract import ArrayLike
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import BatchAxis, BatchedResults, Cotangents, Dual, Linear, Op, Tangent, Zero
from meshwright.ir.varying import axes_of
from meshwright.ops.control.call import FunctionCall
from meshwright.ops.control.retype import cast_each, in_axes, out_axes, retyped
from meshwright.ops.elementwise.table import materialize
from meshwright.ops.shape.broadcast_reduce import put_batch_dim
from meshwright.ops.shape.rearrange import move_dim

#: from the axis size, whether each operand is batched (at 0), and the operands, to the results and whether each of them
#: is batched (at 0)
BatchRule = Callable[[int, Sequence[bool], Sequence[Any]], tuple[Sequence[Any], Sequence[bool]]]


@dataclass(frozen=True)
class CustomVmapCall(FunctionCall):
    """A function with a custom batching rule. The first ``num_consts`` operands are values that it closes over, which
    are not passed to the rule."""

    rule: BatchRule
    num_consts: int = 0
    name: ClassVar[str] = "custom_vmap_call"
    hidden_params: ClassVar[tuple[str, ...]] = ("rule", "num_consts")

    @property
    def params(self) -> dict[str, Any]:
        return {"name": self.fun_name, "call": self.jaxpr, "rule": self.rule, "num_consts": self.num_consts}

    def batch_call(self, t: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> BatchedResults:
        n = self.num_consts
        if any(d is not None for d in dims[:n]):
            raise RuleError(
                f"custom_vmap {self.fun_name}: it closes over a value that is mapped, of which its rule knows nothing; "
                "pass the value as an argument"
            )
        moved = [x if d is None else move_dim(x, d, 0) for x, d in zip(args[n:], dims[n:])]
        outs, batched = self.rule(axis.size, [d is not None for d in dims[n:]], moved)
        return list(outs), [0 if b else None for b in batched]

    def jvp_call(self, t: Any, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        n = self.num_consts
        nonzero = tuple(not isinstance(x, Zero) for x in tangents)
        inexact = tuple(is_inexact(a.dtype) for a in self.jaxpr.out_avals)
        jaxpr, _ = t.jvp(self.jaxpr, nonzero, inexact)
        rule = t.jvp_of_batch_rule(self.rule, nonzero[n:])
        given = [x for x, nz in zip(tangents, nonzero) if nz]
        if any(nonzero[:n]):
            raise DifferentiationError(
                f"custom_vmap {self.fun_name}: the derivative with respect to a value that it closes over is wanted, "
                "of which its rule knows nothing; pass the value as an argument"
            )
        outs = CustomVmapCall(self.fun_name, jaxpr, rule, n).bind(*primals, *given)
        touts = iter(outs[len(inexact) :])
        return outs[: len(inexact)], [next(touts) if i else Zero(a) for i, a in zip(inexact, self.jaxpr.out_avals)]

    def partial_eval_call(self, t: Any, known: Sequence[bool], args: Sequence[Any], tape: Any) -> Any:
        return tape.record(self, args)

    def transpose_call(self, t: Any, cts: Sequence[Any], *args: Any) -> Cotangents:
        raise DifferentiationError(
            f"custom_vmap {self.fun_name}: it has no reverse-mode derivative, as a batching rule says nothing of the "
            "backward pass; wrap it in custom_vjp"
        )


@dataclass(frozen=True)
class LinearCall(FunctionCall):
    """``jaxpr`` takes residuals and operands in which it is linear; ``transposed``, a function of the residuals and of
    cotangents of the results, is its transpose."""

    transposed: ClosedJaxpr
    num_residuals: int
    name: ClassVar[str] = "linear_call"

    def aligned(self, args: Sequence[Any]) -> tuple[Op, Sequence[Any]]:
        given, n = list(map(axes_of, args)), self.num_residuals
        jaxpr = retyped(self.jaxpr, given)
        ins = in_axes(jaxpr)
        back = retyped(self.transposed, [*ins[:n], *out_axes(jaxpr)], ins[n:])
        return LinearCall(self.fun_name, jaxpr, back, n), cast_each(args, ins)

    def jvp_call(self, t: Any, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        n = self.num_residuals
        if any(not isinstance(x, Zero) for x in tangents[:n]):
            raise DifferentiationError(
                f"linear_call {self.fun_name}: the derivative with respect to its residuals is wanted, in which it "
                "need not be linear; use stop_gradient on them, or custom_vjp"
            )
        return self.bind(*primals), self.bind(*primals[:n], *map(materialize, tangents[n:]))

    def batch_call(self, t: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> BatchedResults:
        n, outs = self.num_residuals, len(self.jaxpr.out_avals)
        residual_dims, linear = tuple(dims[:n]), len(args) - self.num_residuals
        jaxpr, _ = t.batch(self.jaxpr, axis, residual_dims + (0,) * linear, (0,) * outs)
        transposed, _ = t.batch(self.transposed, axis, residual_dims + (0,) * outs, (0,) * linear)
        moved = [put_batch_dim(x, d, 0, axis.size) for x, d in zip(args[n:], dims[n:])]
        return LinearCall(self.fun_name, jaxpr, transposed, n).bind(*args[:n], *moved), [0] * outs

    def partial_eval_call(self, t: Any, known: Sequence[bool], args: Sequence[Any], tape: Any) -> Any:
        return tape.record(self, args)

    def transpose_call(self, t: Any, cts: Sequence[Any], *args: Any) -> Cotangents:
        n = self.num_residuals
        swapped = LinearCall(self.fun_name, self.transposed, self.jaxpr, n)
        in_cts = swapped.bind(*args[:n], *map(materialize, cts))
        return [None] * n + [ct if isinstance(x, Linear) else None for x, ct in zip(args[n:], in_cts)]
