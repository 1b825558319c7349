"""QR decomposition, by LAPACK's ``geqrf`` or, with pivoting, ``geqp3``, and ``orgqr``.

Derivative: J. Townsend, "Differentiating the QR decomposition" (2018), for matrices with at least as many rows as
columns. The leading columns of wider matrices are such a matrix, which determines the others. The columns that complete
a basis are determined by the others, too: see :func:`_completing_tangent`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ShapeError
from meshwright.ir.contract import ArrayLike, Localizer, Value
from meshwright.ir.op import Dual, Tangent, Zero
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import Composite
from meshwright.ops.elementwise.table import add, convert, sub
from meshwright.ops.indexing.gather_scatter import gather_along
from meshwright.ops.linalg import flops
from meshwright.ops.linalg.batched import Factorization
from meshwright.ops.linalg.lapack import lapack, require_lapack_dtype
from meshwright.ops.linalg.lu import Lu, lu_solve
from meshwright.ops.linalg.matrices import (
    adjoint,
    along_rows,
    antihermitian,
    corner,
    eye,
    matmul,
    on_diagonal,
    padded,
    real_part,
    require_matrix,
    tril,
    triu,
)
from meshwright.ops.linalg.tall import by_rows, is_tall, rows_rule
from meshwright.ops.linalg.triangular_solve import ADJOINT, TriangularSolve
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota, match_shape
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim
from meshwright.sharding.rule import ShardingRule

_I32 = np.dtype(np.int32)


@dataclass(frozen=True)
class Qr(Factorization, Composite):
    """QR decomposition: ``q r = a`` with orthonormal columns in ``q`` and upper triangular ``r``.

    With ``full_matrices``, ``q`` has all columns. With ``pivoting``, the column order ``p`` is returned too, for which
    ``q r = a[:, p]`` and the diagonal of ``r`` decreases in magnitude.
    """

    full_matrices: bool = False
    pivoting: bool = False
    name: ClassVar[str] = "qr"
    multiple_results: ClassVar[bool] = True

    def flops(self, *cores: tuple[int, ...]) -> int:
        return 2 * flops.qr(*cores[0])

    def infer(self, a: ShapedArray) -> tuple[ShapedArray, ...]:
        require_matrix(self.name, a)
        require_lapack_dtype(self.name, a)
        *lead, m, n = a.shape
        k = m if self.full_matrices else min(m, n)
        order = (ShapedArray((*lead, n), _I32, a.weak_type),) if self.pivoting else ()
        return a.update(shape=(*lead, m, k)), a.update(shape=(*lead, k, n)), *order

    def expand(self, a: Value) -> list[Value]:
        *_, m, n = typeof(a).shape
        k = min(m, n)
        packed, scales, *order = self._packed(a)
        columns = m if self.full_matrices else k
        q = householder_product(padded(corner(packed, m, min(columns, n)), m, columns), scales)
        return [q, triu(padded(corner(packed, min(columns, m), n), columns, n)), *order]

    def _packed(self, a: Any) -> list[Any]:
        """The reflectors of a matrix packed with ``r``, their scales, and with ``pivoting`` the order of columns."""
        *lead, m, n = typeof(a).shape
        shapes = [((m, n), typeof(a).dtype), ((min(m, n),), typeof(a).dtype)]
        if not self.pivoting:
            return lapack("geqrf", [a], shapes)
        if typeof(a).size == 0:
            return [*lapack("geqrf", [a], shapes), iota(_I32, (*lead, n), len(lead))]
        free = broadcast_in_dim(np.zeros((), _I32), (*lead, n), ())  # no column is fixed to the front
        packed, order, scales = lapack("geqp3", [a, free], [shapes[0], ((n,), _I32), shapes[1]])
        return [packed, scales, sub(order, match_shape(np.ones((), _I32), typeof(order)))]  # LAPACK counts from 1

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        (a,) = avals
        if self.full_matrices or self.pivoting or not is_tall(a):
            return super().sharding_rule(a)
        return rows_rule(a, self.infer(a), 0, self.points(a))

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        (a,) = operands
        if not ctx.is_split(0, typeof(a).ndim - 2):
            return super().localize(ctx, a)
        return by_rows(ctx, self._masked(ctx, 0, a), self.bind)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        (t,) = tangents
        *_, m, n = typeof(t).shape
        q, r, *order = self.bind(*primals)
        t = _columns(t, order[0]) if order else t
        k, d = min(m, n), typeof(t).ndim - 1
        thin = corner(q, m, k)
        dq, dr = _tangents(thin, corner(r, k, k), corner(t, m, k))
        if m < n:
            rest, t_rest = (_halves(v, m, d)[1] for v in (r, t))
            dr_rest = matmul(adjoint(q), sub(t_rest, matmul(dq, rest)))
            dr = concatenate([dr, dr_rest], d)
        elif self.full_matrices and m > n:
            dq, dr = concatenate([dq, _completing_tangent(thin, dq)], d), padded(dr, m, n)
        return [q, r, *order], [dq, dr, *map(Zero, map(typeof, order))]


def _columns(x: Any, order: Any) -> Any:
    """The columns of matrices, reordered."""
    return gather_along(x, along_rows(order, typeof(x).shape[-2]), typeof(x).ndim - 1) if typeof(x).size else x


def _completing_tangent(q: Any, dq: Any) -> Any:
    """The tangent of the last m - n columns of a square ``q``, from the first n and their tangent.

    The product of reflectors with columns ``v`` is ``I - v t v^H`` (Schreiber and Van Loan, 1989). So the first columns
    are ``I + g`` with ``g = -v t v1^H``, where ``v1`` are the first rows of ``v`` and ``v2`` the others; the last ones
    are ``I + g w`` with ``w = (v2 v1^-1)^H``, which is ``g1^-H g2^H``.
    """
    *_, m, n = typeof(q).shape
    d = typeof(q).ndim - 2
    unit = broadcast_in_dim(eye(m, n, typeof(q).dtype), typeof(q).shape, (d, d + 1))
    g = sub(q, unit)
    factors, _, permutation = Lu().bind(corner(g, n, n))
    (dg1, dg2), g2 = (adjoint(x) for x in _halves(dq, n, d)), adjoint(_halves(g, n, d)[1])
    w = lu_solve(factors, permutation, g2, ADJOINT)
    dw = lu_solve(factors, permutation, sub(dg2, matmul(dg1, w)), ADJOINT)
    return add(matmul(dq, w), matmul(g, dw))


def _halves(x: Any, at: int, axis: int) -> tuple[Any, Any]:
    return slice_in_dim(x, 0, at, axis=axis), slice_in_dim(x, at, typeof(x).shape[axis], axis=axis)


def _tangents(q: Any, r: Any, t: Any) -> tuple[Any, Any]:
    scaled = TriangularSolve(left_side=False, lower=False).bind(r, t)  # da r^-1
    inner = matmul(adjoint(q), scaled)
    turn = antihermitian(tril(inner, -1))
    if dtypes.is_complex(typeof(t).dtype):  # the diagonal of r stays real
        turn = add(turn, on_diagonal(sub(inner, convert(real_part(inner), typeof(inner).dtype))))
    return add(matmul(q, sub(turn, inner)), scaled), matmul(sub(inner, turn), r)


def householder_product(a: Any, taus: Any) -> Any:
    """The first n columns of the product of Householder reflectors, which are orthonormal. It has no derivative.

    Args:
      a: shape (..., m, n) with m >= n, with the reflectors below its diagonal, as returned by LAPACK's ``geqrf``.
      taus: the reflectors' scales, shape (..., k) with k <= n.

    Returns:
      an array of ``a``'s shape.

    Raises:
      ShapeError: ``m >= n >= k`` does not hold.

    Example:
      >>> lax.linalg.householder_product(mnp.array([[1.0], [0.0]]), mnp.array([2.0])).tolist()
      [[-1.0], [-0.0]]
    """
    m, n = typeof(a).shape[-2:]
    if n > m or typeof(taus).shape[-1] > n:
        raise ShapeError(
            f"householder_product: reflectors of shape {typeof(a).shape} and {typeof(taus).shape[-1]} scales; expected "
            "no more columns than rows, and no more scales than columns"
        )
    (q,) = lapack("orgqr", [a, taus], [(typeof(a).shape[-2:], typeof(a).dtype)])
    return q


def qr(a: Any, *, pivoting: bool = False, full_matrices: bool = True) -> list[Any]:
    """QR decomposition: ``q r = a`` with orthonormal columns in ``q`` and upper triangular ``r``.

    Args:
      a: shape (..., m, n).
      pivoting: also return an order of columns, int32 of shape (..., n), for which the diagonal of ``r`` decreases in
        magnitude; then ``q r = a[:, order]``.
      full_matrices: return all m columns of ``q``.

    Returns:
      ``[q, r]``, or ``[q, r, order]`` with ``pivoting``. With ``k = min(m, n)``, or ``k = m`` with ``full_matrices``,
      ``q`` has shape (..., m, k) and ``r`` shape (..., k, n).

    Raises:
      ShapeError: fewer than two dimensions. DTypeError: a dtype without LAPACK kernels.

    Example:
      >>> q, r = lax.linalg.qr(mnp.array([[3.0], [4.0]]), full_matrices=False)
      >>> (q @ r).round(5).tolist()
      [[3.0], [4.0]]
    """
    outs: list[Any] = Qr(full_matrices, pivoting).bind(a)
    return outs
