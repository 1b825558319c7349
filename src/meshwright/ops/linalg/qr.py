"""QR decomposition, by LAPACK's ``geqrf`` and ``orgqr``.

Derivative: J. Townsend, "Differentiating the QR decomposition" (2018), for matrices with at least as many rows as
columns. The first columns of wider ones are such a matrix, and the others follow from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import DifferentiationError
from meshwright.ir.contract import ArrayLike
from meshwright.ir.op import Tangent
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import Composite
from meshwright.ops.elementwise.table import add, convert, sub
from meshwright.ops.linalg.batched import Factorization
from meshwright.ops.linalg.lapack import lapack, require_lapack_dtype
from meshwright.ops.linalg.matrices import (
    adjoint,
    antihermitian,
    corner,
    matmul,
    on_diagonal,
    padded,
    real_part,
    require_matrix,
    tril,
    triu,
)
from meshwright.ops.linalg.triangular_solve import TriangularSolve
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim


@dataclass(frozen=True)
class Qr(Factorization, Composite):
    """``q`` with orthonormal columns, ``r`` upper triangular, ``q r = a``; all columns of ``q`` with
    ``full_matrices``."""

    full_matrices: bool = False
    name: ClassVar[str] = "qr"
    multiple_results: ClassVar[bool] = True

    def infer(self, a: ShapedArray) -> tuple[ShapedArray, ...]:
        require_matrix(self.name, a)
        require_lapack_dtype(self.name, a)
        *lead, m, n = a.shape
        k = m if self.full_matrices else min(m, n)
        return a.update(shape=(*lead, m, k)).strong(), a.update(shape=(*lead, k, n)).strong()

    def expand(self, a: Any) -> list[Any]:
        *_, m, n = typeof(a).shape
        dtype, k = typeof(a).dtype, min(m, n)
        packed, scales = lapack("geqrf", [a], [((m, n), dtype), ((k,), dtype)])
        columns = m if self.full_matrices else k
        q = householder_product(padded(corner(packed, m, min(columns, n)), m, columns), scales)
        return [q, triu(padded(corner(packed, min(columns, m), n), columns, n))]

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> tuple[Any, Any]:
        (a,), (t,) = primals, tangents
        *_, m, n = typeof(a).shape
        if self.full_matrices and m > n:
            raise DifferentiationError(
                f"qr: with full_matrices, the last {m - n} columns of q for shape {typeof(a).shape} are any that "
                "complete a basis and have no derivative; use mode='reduced'"
            )
        q, r = self.bind(a)
        if m >= n:
            return [q, r], list(_tangents(q, r, t))
        d = typeof(a).ndim - 1
        dq, dr = _tangents(q, corner(r, m, m), corner(t, m, m))
        rest, t_rest = (slice_in_dim(v, m, n, axis=d) for v in (r, t))
        dr_rest = matmul(adjoint(q), sub(t_rest, matmul(dq, rest)))
        return [q, r], [dq, concatenate([dr, dr_rest], d)]


def _tangents(q: Any, r: Any, t: Any) -> tuple[Any, Any]:
    scaled = TriangularSolve(left_side=False, lower=False).bind(r, t)  # da r^-1
    inner = matmul(adjoint(q), scaled)
    turn = antihermitian(tril(inner, -1))
    if dtypes.is_complex(typeof(t).dtype):  # the diagonal of r stays real
        turn = add(turn, on_diagonal(sub(inner, convert(real_part(inner), typeof(inner).dtype))))
    return add(matmul(q, sub(turn, inner)), scaled), matmul(sub(inner, turn), r)


def householder_product(a: Any, taus: Any) -> Any:
    """The matrix with orthonormal columns that the reflectors in the lower part of ``a`` multiply to.

    Args:
      a: shape (..., m, n) with m >= n, as ``geqrf`` leaves it.
      taus: shape (..., k) with k <= n.

    Example:
      >>> lax.linalg.householder_product(mnp.array([[1.0], [0.0]]), mnp.array([2.0])).tolist()
      [[-1.0], [-0.0]]
    """
    (q,) = lapack("orgqr", [a, taus], [(typeof(a).shape[-2:], typeof(a).dtype)])
    return q


def qr(a: Any, *, full_matrices: bool = True) -> list[Any]:
    """``[q, r]`` with orthonormal columns and upper triangular, for matrices of shape (..., m, n).

    Example:
      >>> q, r = lax.linalg.qr(mnp.array([[3.0], [4.0]]), full_matrices=False)
      >>> (q @ r).round(5).tolist()
      [[3.0], [4.0]]
    """
    outs: list[Any] = Qr(full_matrices).bind(a)
    return outs
