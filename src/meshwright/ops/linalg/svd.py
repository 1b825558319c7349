"""Singular value decomposition, by LAPACK's ``gesdd``.

Derivative: J. Townsend, "Differentiating the singular value decomposition" (2016). Vectors of equal singular values are
an arbitrary basis of their space: their derivatives are undefined, and NaN or infinite.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import DifferentiationError
from meshwright.ir.contract import ArrayLike, Localizer, Value
from meshwright.ir.op import Dual, Tangent
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import Composite
from meshwright.ops.elementwise.table import add, convert, div, eq, mul, select, sub
from meshwright.ops.linalg import flops
from meshwright.ops.linalg.batched import Factorization
from meshwright.ops.linalg.lapack import lapack, nan_where_failed, require_lapack_dtype
from meshwright.ops.linalg.matrices import (
    adjoint,
    along_columns,
    along_rows,
    antihermitian,
    diagonal,
    hermitian,
    matmul,
    off_diagonal,
    on_diagonal,
    real_part,
    require_matrix,
)
from meshwright.ops.linalg.qr import Qr
from meshwright.ops.linalg.tall import by_rows, is_tall, rows_rule
from meshwright.ops.shape.broadcast_reduce import match_shape
from meshwright.sharding.rule import ShardingRule


@dataclass(frozen=True)
class Svd(Factorization, Composite):
    """Singular value decomposition: ``u diag(s) vh = a``, with singular values in descending order.

    Results are ``s``, and with ``compute_uv`` ``u`` and ``vh``, which are square with ``full_matrices``.
    """

    full_matrices: bool = False
    compute_uv: bool = True
    name: ClassVar[str] = "svd"
    multiple_results: ClassVar[bool] = True

    def _shapes(self, m: int, n: int) -> list[tuple[int, ...]]:
        k = min(m, n)
        return [(k,), (m, m), (n, n)] if self.full_matrices and self.compute_uv else [(k,), (m, k), (k, n)]

    def flops(self, *cores: tuple[int, ...]) -> int:
        m, n = cores[0]
        return flops.singular_values(m, n, self.compute_uv, self.full_matrices)

    def infer(self, a: ShapedArray) -> tuple[ShapedArray, ...]:
        require_matrix(self.name, a)
        require_lapack_dtype(self.name, a)
        *lead, m, n = a.shape
        s, u, vh = ((*lead, *shape) for shape in self._shapes(m, n))
        values = ShapedArray(s, dtypes.real_of(a.dtype), a.weak_type)
        return (values, a.update(shape=u), a.update(shape=vh)) if self.compute_uv else (values,)

    def expand(self, a: Value) -> list[Value]:
        *_, m, n = typeof(a).shape
        dtype = typeof(a).dtype
        s, u, vh = self._shapes(m, n)
        shapes = [((m, n), dtype), (s, dtypes.real_of(dtype)), (u, dtype), (vh, dtype), ((), np.dtype(np.int32))]
        mode = "N" if not self.compute_uv else "A" if self.full_matrices else "S"
        _, *outs, info = lapack("gesdd", [a], shapes, mode=mode)
        return [nan_where_failed(info, x) for x in (outs if self.compute_uv else outs[:1])]

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        (a,) = avals
        if (self.full_matrices and self.compute_uv) or not is_tall(a):
            return super().sharding_rule(a)
        return rows_rule(a, self.infer(a), 1 if self.compute_uv else -1, self.points(a))

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        (a,) = operands
        if not ctx.is_split(0, typeof(a).ndim - 2):
            return super().localize(ctx, a)
        q, r = by_rows(ctx, self._masked(ctx, 0, a), Qr().bind)
        s, *vectors = self.bind(r)
        return [s, matmul(q, vectors[0]), vectors[1]] if vectors else [s]

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        (a,), (t,) = primals, tangents
        *_, m, n = typeof(a).shape
        if self.compute_uv and self.full_matrices and m != n:
            raise DifferentiationError(
                f"svd: with full_matrices, the vectors beyond the {min(m, n)} singular values of shape "
                f"{typeof(a).shape} are any that complete a basis and have no derivative; use full_matrices=False"
            )
        reduced = dataclasses.replace(self, full_matrices=False, compute_uv=True)
        s, u, vh = reduced.bind(a)
        v = adjoint(vh)
        inner = matmul(adjoint(u), matmul(t, v))
        ds = real_part(diagonal(inner))
        if not self.compute_uv:
            return [s], [ds]
        du, dv = _vector_tangents(s, u, v, inner, t)
        return [s, u, vh], [ds, du, adjoint(dv)]


def _vector_tangents(s: Any, u: Any, v: Any, inner: Any, t: Any) -> tuple[Any, Any]:
    k, dtype = typeof(s).shape[-1], typeof(inner).dtype
    columns, rows = along_rows(s, k), along_columns(s, k)
    gaps = mul(add(columns, rows), sub(columns, rows))
    one = match_shape(np.array(1, typeof(s).dtype), typeof(gaps))
    weights = convert(off_diagonal(div(one, off_diagonal(gaps, one))), dtype)
    turn_u = mul(weights, hermitian(mul(inner, convert(columns, dtype))))
    turn_v = mul(weights, hermitian(mul(convert(rows, dtype), inner)))
    inverse = _inverse(s)
    if dtypes.is_complex(dtype):
        # Fix the phase of each pair of vectors: v keeps its own.
        phase = mul(on_diagonal(antihermitian(inner)), np.array(0.5, dtype))
        turn_u = add(turn_u, mul(phase, convert(along_rows(inverse, k), dtype)))
    m, n = typeof(t).shape[-2:]
    du, dv = matmul(u, turn_u), matmul(v, turn_v)
    if m > n:
        du = add(du, _outside(u, matmul(t, v), inverse))
    if n > m:
        dv = add(dv, _outside(v, matmul(adjoint(t), u), inverse))
    return du, dv


def _inverse(s: Any) -> Any:
    """``1 / s``, or 0 where ``s`` is 0."""
    zero, one = (match_shape(np.array(v, typeof(s).dtype), typeof(s)) for v in (0, 1))
    is_zero = eq(s, zero)
    return select(is_zero, zero, div(one, select(is_zero, one, s)))


def _outside(basis: Any, moved: Any, inverse: Any) -> Any:
    """The component of ``moved`` orthogonal to ``basis``, divided by the singular values."""
    rest = sub(moved, matmul(basis, matmul(adjoint(basis), moved)))
    return mul(rest, convert(along_rows(inverse, typeof(rest).shape[-2]), typeof(rest).dtype))


def svd(a: Any, *, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Singular value decomposition: ``u diag(s) vh = a``.

    Args:
      a: shape (..., m, n).
      full_matrices: return all columns of ``u`` and all rows of ``vh``.
      compute_uv: return ``u`` and ``vh`` too.

    Returns:
      ``[u, s, vh]``, or ``s`` alone without ``compute_uv``. Singular values are real and descend, shape (..., k) with
      ``k = min(m, n)``. ``u`` has shape (..., m, k) and ``vh`` (..., k, n), or (..., m, m) and (..., n, n) with
      ``full_matrices``.

    Raises:
      ShapeError: fewer than two dimensions. DTypeError: a dtype without LAPACK kernels.

    Example:
      >>> lax.linalg.svd(mnp.array([[3.0, 0.0], [0.0, 4.0]]), compute_uv=False).round(5).tolist()
      [4.0, 3.0]
    """
    outs = Svd(bool(full_matrices), bool(compute_uv)).bind(a)
    return [outs[1], outs[0], outs[2]] if compute_uv else outs[0]
