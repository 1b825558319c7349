"""Eigenvalues and eigenvectors of Hermitian matrices, by LAPACK's ``syevd``.

Derivative: first-order perturbation theory (M. Giles, "An extended collection of matrix derivative results", 2008).
Eigenvectors of equal eigenvalues are an arbitrary basis of their space: their derivatives are undefined, and NaN or
infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.contract import ArrayLike, Value
from meshwright.ir.op import Dual, Tangent
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import Composite
from meshwright.ops.elementwise.table import convert, div, mul, sub
from meshwright.ops.linalg import flops
from meshwright.ops.linalg.batched import Factorization
from meshwright.ops.linalg.cholesky import symmetrized
from meshwright.ops.linalg.lapack import lapack, nan_where_failed, require_lapack_dtype
from meshwright.ops.linalg.matrices import (
    adjoint,
    along_columns,
    along_rows,
    diagonal,
    from_lower,
    matmul,
    off_diagonal,
    real_part,
    require_square,
)


@dataclass(frozen=True)
class Eigh(Factorization, Composite):
    """Orthonormal eigenvectors, as columns, and ascending eigenvalues; only the lower triangle is read."""

    name: ClassVar[str] = "eigh"
    multiple_results: ClassVar[bool] = True

    def flops(self, *cores: tuple[int, ...]) -> int:
        return flops.hermitian_eigenproblem(cores[0][0])

    def infer(self, a: ShapedArray) -> tuple[ShapedArray, ...]:
        require_square(self.name, a)
        require_lapack_dtype(self.name, a)
        return a, ShapedArray(a.shape[:-1], dtypes.real_of(a.dtype), a.weak_type)

    def expand(self, a: Value) -> list[Value]:
        n, dtype = typeof(a).shape[-1], typeof(a).dtype
        shapes = [((n, n), dtype), ((n,), dtypes.real_of(dtype)), ((), np.dtype(np.int32))]
        vectors, values, info = lapack("syevd", [a], shapes, mode="V", uplo="L")
        return [nan_where_failed(info, vectors), nan_where_failed(info, values)]

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        vectors, values = self.bind(*primals)
        t = from_lower(tangents[0])
        rotated = matmul(adjoint(vectors), matmul(t, vectors))
        n = typeof(values).shape[-1]
        gaps = sub(along_rows(values, n), along_columns(values, n))
        one = np.array(1, typeof(gaps).dtype)
        weights = off_diagonal(div(one, off_diagonal(gaps, 1)))
        turn = mul(rotated, convert(weights, typeof(t).dtype))
        return [vectors, values], [matmul(vectors, turn), real_part(diagonal(rotated))]


def eigh(a: Any, *, symmetrize_input: bool = True) -> list[Any]:
    """Eigenvectors and eigenvalues of Hermitian matrices.

    Args:
      a: shape (..., n, n).
      symmetrize_input: use ``(a + a^H) / 2``, so that derivatives are symmetric; if false, only the lower triangle.

    Returns:
      ``[vectors, values]``: orthonormal eigenvectors as columns, shape (..., n, n), and real eigenvalues in ascending
      order, shape (..., n).

    Raises:
      ShapeError: matrices are not square. DTypeError: a dtype without LAPACK kernels.

    Example:
      >>> vectors, values = lax.linalg.eigh(mnp.array([[2.0, 1.0], [1.0, 2.0]]))
      >>> values.round(5).tolist()
      [1.0, 3.0]
    """
    outs: list[Any] = Eigh().bind(symmetrized(a) if symmetrize_input else a)
    return outs
