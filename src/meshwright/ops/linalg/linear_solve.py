"""The solution of a linear system by a user's function, differentiated without differentiating that function.

``A x = b`` implies ``A dx = db - dA x``: the derivative is another solve, and its transpose a solve with ``A^T``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from meshwright.core.avals import NOWHERE, ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import DifferentiationError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Linear, Op, Tangent, Zero
from meshwright.ir.tracing import eval_jaxpr
from meshwright.ir.varying import axes_of, cast_all
from meshwright.ops.control.call import CallOp
from meshwright.ops.control.retype import retyped
from meshwright.ops.elementwise.table import materialize, sub
from meshwright.ops.shape.broadcast_reduce import put_batch_dim


@dataclass(frozen=True)
class LinearSolve(CallOp):
    """``solve`` takes the values that all four jaxprs close over, and a right-hand side.

    ``matvec`` and ``vecmat`` are products with the matrix and with its transpose; ``transpose_solve`` solves with the
    transpose. Additional outputs of a solve have no derivatives.
    """

    fun_name: str
    matvec: ClosedJaxpr
    solve: ClosedJaxpr
    vecmat: ClosedJaxpr | None
    transpose_solve: ClosedJaxpr | None
    num_consts: int
    name: ClassVar[str] = "linear_solve"

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        return tuple(self.solve.out_avals)

    def aligned(self, args: Sequence[Any]) -> tuple[Op, Sequence[Any]]:
        axes = NOWHERE.union(*map(axes_of, args))

        def alike(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
            return retyped(jaxpr, [axes] * len(jaxpr.in_avals), [axes] * len(jaxpr.out_avals))

        back = [None if j is None else alike(j) for j in (self.vecmat, self.transpose_solve)]
        n = self.num_consts
        return LinearSolve(self.fun_name, alike(self.matvec), alike(self.solve), back[0], back[1], n), cast_all(args)

    @property
    def size(self) -> int:
        """The number of arrays that make up the solution."""
        return len(self.matvec.out_avals)

    def jvp_call(self, t: Any, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        n = self.num_consts
        outs = self.bind(*primals)
        solution = outs[: self.size]
        right = tangents[n:]
        moving = tuple(not isinstance(x, Zero) for x in tangents[:n])
        if any(moving):
            # The derivative of the product with respect to the matrix, at the solution.
            jaxpr, _ = t.jvp(self.matvec, (*moving, *(False,) * self.size), (True,) * self.size)
            given = [x for x, m in zip(tangents, moving) if m]
            products = eval_jaxpr(jaxpr, jaxpr.consts, *primals[:n], *solution, *given)[self.size :]
            right = [sub(materialize(r), p) for r, p in zip(right, products)]
        if all(isinstance(r, Zero) for r in right):
            return outs, [Zero(a.strong()) for a in self.solve.out_avals]
        solution_tangents = self.bind(*primals[:n], *map(materialize, right))[: self.size]
        return outs, [*solution_tangents, *(Zero(a.strong()) for a in self.solve.out_avals[self.size :])]

    def batch_call(self, t: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> BatchedResults:
        n = self.num_consts
        ins = (*dims[:n], *(0,) * self.size)

        def batched(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
            batched_jaxpr: ClosedJaxpr = t.batch(jaxpr, axis, ins, (0,) * len(jaxpr.out_avals))[0]
            return batched_jaxpr

        back = [None if j is None else batched(j) for j in (self.vecmat, self.transpose_solve)]
        moved = [put_batch_dim(x, d, 0, axis.size) for x, d in zip(args[n:], dims[n:])]
        op = LinearSolve(self.fun_name, batched(self.matvec), batched(self.solve), back[0], back[1], n)
        outs = op.bind(*args[:n], *moved)
        return outs, [0] * len(outs)

    def partial_eval_call(self, t: Any, known: Sequence[bool], args: Sequence[Any], tape: Any) -> Any:
        return tape.record(self, args)

    def transpose_call(self, t: Any, cts: Sequence[Any], *args: Any) -> Cotangents:
        n = self.num_consts
        if self.transpose_solve is None or self.vecmat is None:
            raise DifferentiationError(
                f"custom_linear_solve {self.fun_name}: reverse mode solves with the transpose, and there is no "
                "transpose_solve; pass one, or symmetric=True"
            )
        swapped = LinearSolve(
            self.fun_name, self.vecmat, self.transpose_solve, self.matvec, self.solve, n
        )  # fmt: skip
        in_cts = swapped.bind(*args[:n], *map(materialize, cts[: self.size]))[: self.size]
        return [None] * n + [ct if isinstance(x, Linear) else None for x, ct in zip(args[n:], in_cts)]

    def body(self) -> ClosedJaxpr | None:
        return self.solve

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        return b.call(self.fun_name, self.solve, operands)
