"""Triangular solves: ``stablehlo.triangular_solve``, run by BLAS' ``trsm``.

Columns of the right-hand side are independent problems: they may be split, and a batch of right-hand sides for one
matrix is a wider right-hand side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Tangent, Zero
from meshwright.ir.reading import Reader, Unreadable, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import emit_traced
from meshwright.ops.elementwise.table import add, neg
from meshwright.ops.linalg import flops
from meshwright.ops.linalg.batched import Batched
from meshwright.ops.linalg.lapack import flags_of, kernel_of, lapack, leading_dims, require_lapack_dtype
from meshwright.ops.linalg.matrices import adjoint, conjugate, matmul, transposed, tril, triu
from meshwright.ops.shape.rearrange import move_dim, reshape

#: as in BLAS: the matrix itself, its transpose, its conjugate transpose
PLAIN, TRANSPOSE, ADJOINT = "N", "T", "C"


@dataclass(frozen=True)
class TriangularSolve(Batched):
    """Solves ``op(a) x = b``, or ``x op(a) = b`` unless ``left_side``; the other triangle of ``a`` is not read."""

    left_side: bool
    lower: bool
    transpose_a: str = PLAIN
    unit_diagonal: bool = False
    name: ClassVar[str] = "triangular_solve"
    by_lapack: ClassVar[bool] = True
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((1,),)

    def core_ranks(self) -> tuple[int, ...]:
        return 2, 2

    def infer(self, a: ShapedArray, b: ShapedArray) -> ShapedArray:
        self.lead(a, b)
        n = b.shape[-2 if self.left_side else -1]
        if a.shape[-2:] != (n, n):
            side = "rows" if self.left_side else "columns"
            raise ShapeError(
                f"triangular_solve: a is {a} and b is {b}; with left_side={self.left_side}, a must be square with as "
                f"many rows as b has {side}, {n}"
            )
        require_lapack_dtype(self.name, a)
        if a.dtype != b.dtype:
            raise DTypeError(f"triangular_solve: a is {a} and b is {b}; convert one with .astype")
        return b

    # --- derivatives ----------------------------------------------------------------------------------------
    def applied(self, a: Any, x: Any) -> Any:
        """The product of which this is the inverse, for a tangent of the matrix (a unit diagonal has none)."""
        k = -1 if self.unit_diagonal else 0
        a = tril(a, k) if self.lower else triu(a, -k)
        a = {PLAIN: lambda v: v, TRANSPOSE: transposed, ADJOINT: adjoint}[self.transpose_a](a)
        return matmul(a, x) if self.left_side else matmul(x, a)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        (a, _), (ta, tb) = primals, tangents
        x = self.bind(*primals)
        right: Any = None if isinstance(tb, Zero) else tb
        if not isinstance(ta, Zero):
            moved = neg(self.applied(ta, x))
            right = moved if right is None else add(right, moved)
        return x, self.bind(a, right)

    def transpose(self, ct: Any, a: Any, b: Any) -> Cotangents:
        if self.transpose_a == ADJOINT:  # the transposed solve uses the conjugate of the matrix
            plain = dataclasses.replace(self, transpose_a=PLAIN)
            return [None, conjugate(plain.bind(a, conjugate(ct)))]
        other = TRANSPOSE if self.transpose_a == PLAIN else PLAIN
        return [None, dataclasses.replace(self, transpose_a=other).bind(a, ct)]

    # --- batching and sharding ------------------------------------------------------------------------------
    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (a, b), (da, db) = args, dims
        if da is not None:
            return super().batch(axis, args, dims)
        # Merge the batch dimension into the columns of b (its rows if solved from the right), as their major part.
        place = typeof(b).ndim - (2 if self.left_side else 3)
        b = move_dim(b, db, place)  # type: ignore[arg-type]
        shape = typeof(b).shape
        merged = reshape(b, (*shape[:place], shape[place] * shape[place + 1], *shape[place + 2 :]))
        return reshape(self.bind(a, merged), shape), place

    def free_dims(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        d = -1 if self.left_side else -2
        return {1: d}, {0: d}

    def flops(self, *cores: tuple[int, ...]) -> int:
        (n, _), (rows, columns) = cores
        return flops.triangular(n, columns if self.left_side else rows)

    # --- emission -------------------------------------------------------------------------------------------
    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        return emit_traced(b, self._by_blas, self.name, *operands)[0]

    def _by_blas(self, a: Any, b: Any) -> list[Any]:
        trans = self.transpose_a
        if trans == ADJOINT and not dtypes.is_complex(typeof(a).dtype):
            trans = TRANSPOSE
        aval = typeof(b)
        return lapack(
            "trsm", [a, b], [(aval.shape[-2:], aval.dtype)], diag="U" if self.unit_diagonal else "N",
            side="L" if self.left_side else "R", trans_x=trans, uplo="L" if self.lower else "U",
        )  # fmt: skip


def triangular_solve(
    a: Any, b: Any, *, left_side: bool = False, lower: bool = False, transpose_a: bool = False,
    conjugate_a: bool = False, unit_diagonal: bool = False,
) -> Any:  # fmt: skip
    """Solve ``op(a) x = b`` (``left_side``) or ``x op(a) = b`` for ``x``, with triangular matrices ``a``.

    Args:
      a: shape (..., n, n); only the triangle selected by ``lower`` is read, without its diagonal if ``unit_diagonal``.
      b: shape (..., n, m), or (..., m, n) if solved from the right; or a vector (..., n).
      transpose_a, conjugate_a: whether ``op`` transposes and conjugates ``a``.

    Raises:
      ShapeError, DTypeError: sizes or dtypes do not fit.

    Example:
      >>> float(lax.linalg.triangular_solve(mnp.array([[2.0]]), mnp.array([[6.0]]), left_side=True)[0, 0])
      3.0
    """
    conjugate_a = conjugate_a and dtypes.is_complex(typeof(a).dtype)
    if conjugate_a and not transpose_a:
        a = conjugate(a)
    trans = PLAIN if not transpose_a else ADJOINT if conjugate_a else TRANSPOSE
    op = TriangularSolve(left_side, lower, trans, unit_diagonal)
    if typeof(b).ndim == typeof(a).ndim - 1:
        shape = typeof(b).shape
        column = (*shape, 1) if left_side else (*shape[:-1], 1, shape[-1])
        return reshape(op.bind(a, reshape(b, column)), shape)
    return op.bind(a, b)


# --- reading ------------------------------------------------------------------------------------------------
_WORDS = {"NO_TRANSPOSE": PLAIN, "TRANSPOSE": TRANSPOSE, "ADJOINT": ADJOINT}


@reads("stablehlo.triangular_solve")
def _read_triangular_solve(r: Reader) -> Any:
    if r.in_avals[0].dtype.itemsize < 4:
        raise Unreadable("half precision")
    flags = r.attr("left_side"), r.attr("lower"), _WORDS[r.attr("transpose_a")], r.attr("unit_diagonal")
    return TriangularSolve(*flags).bind(*r.operands)


@reads(*(f"custom_call:lapack_{letter}trsm_ffi" for letter in "sdcz"))
def _read_trsm(r: Reader) -> Any:
    leading_dims(r, kernel_of(r.attr("call_target_name")))
    f = flags_of(r)
    return TriangularSolve(f["side"] == "L", f["uplo"] == "L", str(f["trans_x"]), f["diag"] == "U").bind(*r.operands)
