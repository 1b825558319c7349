"""Eigenvalues and eigenvectors of general square matrices, by LAPACK's ``geev``; results are complex.

Derivative: C. Boeddeker et al., "On the computation of complex-valued gradients with application to statistically
optimum beamforming" (2017), section 4; right eigenvectors keep norm 1, their phase is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import DifferentiationError
from meshwright.ir.contract import ArrayLike, Value
from meshwright.ir.op import Dual, Tangent
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import Composite
from meshwright.ops.elementwise.table import complex_, convert, div, mul, real, sub
from meshwright.ops.linalg import flops
from meshwright.ops.linalg.batched import Factorization
from meshwright.ops.linalg.lapack import lapack, nan_where_failed, require_lapack_dtype
from meshwright.ops.linalg.lu import Lu, lu_solve
from meshwright.ops.linalg.matrices import (
    along_columns,
    along_rows,
    conjugate,
    diagonal,
    matmul,
    off_diagonal,
    require_square,
)
from meshwright.ops.shape.broadcast_reduce import reduce_sum


@dataclass(frozen=True)
class Eig(Factorization, Composite):
    """Eigenvalues, then the requested left and right eigenvectors, as columns of norm 1."""

    left: bool = False
    right: bool = True
    name: ClassVar[str] = "eig"
    multiple_results: ClassVar[bool] = True

    def flops(self, *cores: tuple[int, ...]) -> int:
        return flops.eigenproblem(cores[0][0], self.left or self.right)

    def infer(self, a: ShapedArray) -> tuple[ShapedArray, ...]:
        require_square(self.name, a)
        require_lapack_dtype(self.name, a)
        dtype = _complex_of(a.dtype)
        vectors = ShapedArray(a.shape, dtype, a.weak_type)
        return ShapedArray(a.shape[:-1], dtype, a.weak_type), *[vectors] * (self.left + self.right)

    def expand(self, a: Value) -> list[Value]:
        n, dtype = typeof(a).shape[-1], typeof(a).dtype
        wide = _complex_of(dtype)
        parts = 1 if dtypes.is_complex(dtype) else 2  # LAPACK returns eigenvalues of real matrices as two real arrays
        shapes = [((n,), dtype)] * parts + [((n, n), wide)] * 2 + [((), np.dtype(np.int32))]
        flags = {"compute_left": "V" if self.left else "N", "compute_right": "V" if self.right else "N"}
        *values, left, right, info = lapack("geev", [a], shapes, **flags)
        outs = [values[0] if parts == 1 else complex_(*values), *[left] * self.left, *[right] * self.right]
        return [nan_where_failed(info, x) for x in outs]

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        if self.left:
            raise DifferentiationError(
                "eig: left eigenvectors have no derivative here; use the inverse of the right ones"
            )
        values, vectors = Eig().bind(*primals)
        t = convert(tangents[0], typeof(vectors).dtype)
        factors, _, permutation = Lu().bind(vectors)
        rotated = lu_solve(factors, permutation, matmul(t, vectors))
        tangent = diagonal(rotated)
        if not self.right:
            return [values], [tangent]
        n = typeof(values).shape[-1]
        gaps = sub(along_rows(values, n), along_columns(values, n))
        one = np.array(1, typeof(gaps).dtype)
        moved = matmul(vectors, mul(rotated, off_diagonal(div(one, off_diagonal(gaps, 1)))))
        # Remove the change of the vectors' norms.
        along = real(reduce_sum(mul(conjugate(vectors), moved), (typeof(moved).ndim - 2,)))
        kept = mul(vectors, along_rows(convert(along, typeof(vectors).dtype), n))
        return [values, vectors], [tangent, sub(moved, kept)]


def _complex_of(dtype: np.dtype) -> np.dtype:
    return np.result_type(dtype, np.complex64)


def eig(a: Any, *, compute_left_eigenvectors: bool = True, compute_right_eigenvectors: bool = True) -> list[Any]:
    """Eigenvalues and eigenvectors of general square matrices.

    Args:
      a: shape (..., n, n).
      compute_left_eigenvectors, compute_right_eigenvectors: whether to return them.

    Returns:
      ``[values, left, right]`` without those not requested: eigenvalues of shape (..., n) in no particular order, and
      eigenvectors as columns of norm 1, shape (..., n, n). All are complex, and NaN where LAPACK does not converge.

    Raises:
      ShapeError: matrices are not square. DTypeError: a dtype without LAPACK kernels.

    Example:
      >>> values, right = lax.linalg.eig(mnp.array([[0.0, 1.0], [0.0, 2.0]]), compute_left_eigenvectors=False)
      >>> values.tolist()
      [0j, (2+0j)]
    """
    outs: list[Any] = Eig(bool(compute_left_eigenvectors), bool(compute_right_eigenvectors)).bind(a)
    return outs
