"""``meshwright.lax.linalg``: decompositions and solves as ops, without promotion and broadcasting."""

from __future__ import annotations

from typing import Any

from meshwright.lax.polar import qdwh
from meshwright.ops.cholesky import cholesky
from meshwright.ops.eig import eig
from meshwright.ops.eigh import eigh
from meshwright.ops.lu import lu, lu_pivots_to_permutation
from meshwright.ops.matrices import matmul as _matmul
from meshwright.ops.matrices import transposed as _transposed
from meshwright.ops.qr import householder_product, qr
from meshwright.ops.svd import svd
from meshwright.ops.triangular_solve import triangular_solve
from meshwright.ops.tridiagonal import hessenberg, ormqr, schur, tridiagonal, tridiagonal_solve


def symmetric_product(a_matrix: Any, c_matrix: Any, *, alpha: Any = 1.0, beta: Any = 0.0) -> Any:
    """``alpha a a^T + beta c``, shape (..., n, n).

    Example:
      >>> lax.linalg.symmetric_product(mnp.array([[1.0], [2.0]]), mnp.eye(2), beta=3.0).tolist()
      [[4.0, 2.0], [2.0, 7.0]]
    """
    return alpha * _matmul(a_matrix, _transposed(a_matrix)) + beta * c_matrix


def cholesky_update(r_matrix: Any, w_vector: Any) -> Any:
    """The upper Cholesky factor of ``r^T r + w w^T``.

    Args:
      r_matrix: upper triangular, shape (n, n); w_vector: shape (n,).

    Example:
      >>> lax.linalg.cholesky_update(mnp.array([[3.0]]), mnp.array([4.0])).tolist()
      [[5.0]]
    """
    column = w_vector[:, None]
    return _transposed(cholesky(_matmul(_transposed(r_matrix), r_matrix) + _matmul(column, _transposed(column))))


__all__ = [
    "cholesky", "cholesky_update", "eig", "eigh", "hessenberg", "householder_product", "lu", "lu_pivots_to_permutation",
    "ormqr", "qdwh", "qr", "schur", "svd", "symmetric_product", "triangular_solve", "tridiagonal", "tridiagonal_solve",
]  # fmt: skip
