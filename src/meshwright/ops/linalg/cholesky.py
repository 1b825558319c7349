"""The Cholesky decomposition of Hermitian positive definite matrices, by LAPACK's ``potrf``.

Derivative: S. Smith, "Differentiation of the Cholesky algorithm" (1995), in the matrix form of I. Murray,
"Differentiation of the Cholesky decomposition" (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.contract import ArrayLike, Value
from meshwright.ir.op import Dual, Tangent
from meshwright.ir.reading import Reader, Unreadable, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import Composite
from meshwright.ops.elementwise.table import mul, sub
from meshwright.ops.linalg import flops
from meshwright.ops.linalg.batched import Factorization
from meshwright.ops.linalg.lapack import lapack, nan_where_failed, require_lapack_dtype
from meshwright.ops.linalg.matrices import (
    adjoint,
    constant_like,
    from_lower,
    hermitian,
    matmul,
    on_diagonal,
    require_square,
    tril,
)
from meshwright.ops.linalg.triangular_solve import ADJOINT, TriangularSolve


@dataclass(frozen=True)
class Cholesky(Factorization, Composite):
    """The lower triangular ``L`` with ``L L^H = a``, where only the lower triangle of ``a`` is read; NaN if there is
    none."""

    name: ClassVar[str] = "cholesky"

    def flops(self, *cores: tuple[int, ...]) -> int:
        return flops.cholesky(cores[0][0])

    def infer(self, a: ShapedArray) -> ShapedArray:
        require_lapack_dtype(self.name, a)
        require_square(self.name, a)
        return a

    def expand(self, a: Value) -> list[Value]:
        aval = typeof(a)
        factor, info = lapack("potrf", [a], [(aval.shape[-2:], aval.dtype), ((), np.dtype(np.int32))], uplo="L")
        return [tril(nan_where_failed(info, factor))]

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        """``dL = L phi(L^-1 da L^-H)``, where ``phi`` takes the lower triangle with half the diagonal."""
        factor, t = self.bind(*primals), from_lower(tangents[0])
        right = TriangularSolve(left_side=False, lower=True, transpose_a=ADJOINT).bind(factor, t)
        middle = TriangularSolve(left_side=True, lower=True).bind(factor, right)
        half = mul(on_diagonal(middle), np.array(0.5, typeof(t).dtype))
        return factor, tril(matmul(factor, sub(tril(middle), half)))  # zeros above, even if there are infinities


def cholesky(a: Any, *, symmetrize_input: bool = True) -> Any:
    """The lower triangular ``L`` with ``L L^H = a``; NaN where ``a`` is not positive definite.

    Args:
      a: Hermitian matrices, shape (..., n, n).
      symmetrize_input: use ``(a + a^H) / 2``, so that derivatives are symmetric; if false, only the lower triangle.

    Raises:
      ShapeError: matrices are not square. DTypeError: a dtype without kernels.

    Example:
      >>> lax.linalg.cholesky(mnp.array([[4.0, 2.0], [2.0, 5.0]])).tolist()
      [[2.0, 0.0], [1.0, 2.0]]
    """
    return Cholesky().bind(symmetrized(a) if symmetrize_input else a)


def symmetrized(a: Any) -> Any:
    """``(a + a^H) / 2``."""
    require_square("symmetrized", typeof(a))
    return mul(hermitian(a), constant_like(0.5, a))


# --- reading ------------------------------------------------------------------------------------------------
@reads("stablehlo.cholesky")
def _read_cholesky(r: Reader) -> Any:
    (a,) = r.operands
    if r.in_avals[0].dtype.itemsize < 4:
        raise Unreadable("half precision")
    return Cholesky().bind(a) if r.attr("lower", False) else adjoint(Cholesky().bind(adjoint(a)))
