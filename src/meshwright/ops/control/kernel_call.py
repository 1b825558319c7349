"""Kernels that a user wrote for some hardware, such as those of JAX's Pallas.

A compiler for that hardware is given the kernel. Everywhere else, also on virtual meshes, the program runs that says
what the kernel computes; derivatives and batched forms are those of this program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.contract import ArrayLike, Emitted, Localizer, StatedCost
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Op, Tangent
from meshwright.ir.tracing import eval_jaxpr
from meshwright.ops.control.call import FunctionCall, Jit
from meshwright.sharding.rule import ShardingRule


class Divisible(Protocol):
    """A kernel that devices can each run a part of."""

    def rule(self, ins: Sequence[ShapedArray], outs: Sequence[ShapedArray]) -> ShardingRule:
        """How its operands and results can be split."""
        ...

    def on_part(self, shapes: tuple[tuple[int, ...], ...]) -> ClosedJaxpr:
        """The kernel on operands and results of these shapes."""
        ...


@dataclass(frozen=True)
class KernelCall(FunctionCall):
    """``jaxpr``, for which there are kernels: for each platform (``"tpu"``, ``"cuda"``) the op that calls one.

    It is not inlined. If it is not known to be divisible, it runs on whole operands on every device, or in a
    ``shard_map`` on each device's part.
    """

    calls: tuple[tuple[str, Op], ...]
    grid: Divisible | None = None
    name: ClassVar[str] = "kernel_call"
    holds_jaxprs: ClassVar[bool] = False
    hidden_params: ClassVar[tuple[str, ...]] = ("calls", "grid")

    @property
    def params(self) -> dict[str, Any]:
        return {"name": self.fun_name, "platforms": tuple(platform for platform, _ in self.calls)}

    @property
    def as_call(self) -> Jit:
        """The call of the program."""
        return Jit(self.fun_name, self.jaxpr)

    @property
    def stated_cost(self) -> StatedCost | None:
        return next((cost for _, kernel in self.calls if (cost := kernel.stated_cost)), None)

    @property
    def computed(self) -> ClosedJaxpr | None:
        return self.jaxpr

    def on_platform(self, platform: str) -> Op:
        return dict(self.calls).get(platform, self.as_call)

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        return super().sharding_rule(*avals) if self.grid is None else self.grid.rule(avals, self.jaxpr.out_avals)

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        shapes = *ctx.in_local_shapes, *ctx.out_local_shapes
        if self.grid is None or shapes == tuple(a.shape for a in (*ctx.in_avals, *ctx.out_avals)):
            return ctx.default(self, *operands)
        part = self.grid.on_part(shapes)
        return eval_jaxpr(part, part.consts, *operands)

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        return self.on_platform(b.platform).emit(b, *operands)

    def jvp_call(self, t: Any, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        return self.as_call.jvp_call(t, primals, tangents)

    def batch_call(self, t: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> BatchedResults:
        return self.as_call.batch_call(t, axis, args, dims)

    def partial_eval_call(self, t: Any, known: Sequence[bool], args: Sequence[Any], tape: Any) -> Any:
        return self.as_call.partial_eval_call(t, known, args, tape)

    def transpose_call(self, t: Any, cts: Sequence[Any], *args: Any) -> Cotangents:
        return self.as_call.transpose_call(t, cts, *args)
