"""``meshwright.lax.linalg``: decompositions and solves as ops, without promotion and broadcasting."""

from __future__ import annotations

from typing import Any

from meshwright.core import dtypes as _dtypes
from meshwright.core.absent import absent as _absent
from meshwright.core.static import only_default as _only_default
from meshwright.errors import ArgumentError
from meshwright.ir.tracing import typeof as _typeof
from meshwright.lax.polar import qdwh as _qdwh
from meshwright.ops.elementwise.conversion import ConvertElementType as _ConvertElementType
from meshwright.ops.linalg.cholesky import cholesky as _cholesky
from meshwright.ops.linalg.eig import eig as _eig
from meshwright.ops.linalg.eigh import eigh as _eigh
from meshwright.ops.linalg.lu import lu as _lu
from meshwright.ops.linalg.lu import lu_pivots_to_permutation
from meshwright.ops.linalg.matrices import conjugate as _conjugate
from meshwright.ops.linalg.matrices import matmul as _matmul
from meshwright.ops.linalg.matrices import transposed as _transposed
from meshwright.ops.linalg.matrices import tril as _tril
from meshwright.ops.linalg.qr import householder_product
from meshwright.ops.linalg.qr import qr as _qr
from meshwright.ops.linalg.svd import svd as _svd
from meshwright.ops.linalg.triangular_solve import triangular_solve
from meshwright.ops.linalg.tridiagonal import hessenberg, ormqr, tridiagonal
from meshwright.ops.linalg.tridiagonal import schur as _schur
from meshwright.ops.linalg.tridiagonal import tridiagonal_solve as _tridiagonal_solve

_ONE_WAY = "there is one way, LAPACK's; leave it out"


def cholesky(x: Any, *, symmetrize_input: bool = True) -> Any:
    """The lower Cholesky factor of positive definite matrices, shape (..., n, n); NaN for other matrices.

    Args:
      symmetrize_input: use ``(x + x^H) / 2``, so that derivatives are symmetric; if false, only the lower triangle.

    Example:
      >>> lax.linalg.cholesky(mnp.array([[4.0, 2.0], [2.0, 5.0]])).tolist()
      [[2.0, 0.0], [1.0, 2.0]]
    """
    return _cholesky(_averaged(x, symmetrize_input), symmetrize_input=symmetrize_input)


def _averaged(x: Any, symmetrize_input: bool) -> Any:
    """``x`` as floats if it will be averaged with its transpose."""
    aval = _typeof(x)
    whole = symmetrize_input and _dtypes.is_integer(aval.dtype)
    return _ConvertElementType(_dtypes.inexact(aval.dtype), aval.weak_type).bind(x) if whole else x


def eig(
    x: Any, *, compute_left_eigenvectors: bool = True, compute_right_eigenvectors: bool = True,
    enable_eigvec_derivs: bool = False, implementation: Any = None, use_magma: bool | None = None,
) -> list[Any]:  # fmt: skip
    """``[values]`` of matrices of shape (..., n, n), then the requested left and right eigenvectors; all complex.

    Args:
      enable_eigvec_derivs: no effect; eigenvectors have derivatives where these are known.

    Raises:
      ArgumentError: ``implementation`` is given; there is only one.

    Example:
      >>> values, right = lax.linalg.eig(mnp.array([[0.0, 1.0], [0.0, 2.0]]), compute_left_eigenvectors=False)
      >>> values.tolist()
      [0j, (2+0j)]
    """
    _only_default("eig", _ONE_WAY, implementation=implementation, use_magma=use_magma)
    return _eig(
        x, compute_left_eigenvectors=compute_left_eigenvectors, compute_right_eigenvectors=compute_right_eigenvectors
    )


def eigh(
    x: Any, *, lower: bool = True, symmetrize_input: bool = True, sort_eigenvalues: bool = True,
    subset_by_index: tuple[int, int] | None = None, implementation: Any = None,
) -> list[Any]:  # fmt: skip
    """``[vectors, values]`` of Hermitian matrices, shape (..., n, n); eigenvalues ascend.

    Args:
      lower: which triangle is read without ``symmetrize_input``.
      symmetrize_input: use ``(x + x^H) / 2``, so that derivatives are symmetric.
      sort_eigenvalues: no effect; they are always sorted.
      subset_by_index: (start, stop): the range of eigenvalues and vectors to return.

    Raises:
      ArgumentError: ``implementation`` is given (there is only one), or the subset is out of range.

    Example:
      >>> vectors, values = lax.linalg.eigh(mnp.array([[2.0, 1.0], [1.0, 2.0]]))
      >>> values.round(5).tolist()
      [1.0, 3.0]
    """
    _only_default("eigh", _ONE_WAY, implementation=implementation)
    if not lower and not symmetrize_input:
        x = _conjugate(_transposed(x))
    vectors, values = _eigh(_averaged(x, symmetrize_input), symmetrize_input=symmetrize_input)
    if subset_by_index is None:
        return [vectors, values]
    start, stop = subset_by_index
    if not 0 <= start < stop <= values.shape[-1]:
        raise ArgumentError(f"eigh: subset_by_index {subset_by_index} is not inside of (0, {values.shape[-1]})")
    return [vectors[..., start:stop], values[..., start:stop]]


def lu(x: Any) -> list[Any]:
    """``[factors, pivots, permutation]`` of matrices of shape (..., m, n): ``x[permutation] = l u``.

    Example:
      >>> lax.linalg.lu(mnp.array([[1.0, 2.0], [4.0, 4.0]]))[2].tolist()
      [1, 0]
    """
    return _lu(x)


def qr(x: Any, *, pivoting: bool = False, full_matrices: bool = True, use_magma: bool | None = None) -> list[Any]:
    """``[q, r]`` of matrices of shape (..., m, n), with unitary ``q`` and ``q r = x``.

    With ``pivoting``, ``[q, r, p]`` with ``q r = x[:, p]``, where ``p``, shape (..., n), orders the columns so that the
    diagonal of ``r`` decreases.

    Raises:
      ArgumentError: ``use_magma`` is given; there is only one implementation.

    Example:
      >>> q, r = lax.linalg.qr(mnp.array([[2.0, 0.0], [0.0, 3.0]]))
      >>> abs(r).tolist()
      [[2.0, 0.0], [0.0, 3.0]]
    """
    _only_default("qr", "leave it out", use_magma=use_magma)
    return _qr(x, pivoting=pivoting, full_matrices=full_matrices)


def schur(
    x: Any, *, compute_schur_vectors: bool = True, sort_eig_vals: bool = False, select_callable: Any = None
) -> list[Any]:
    """``[t, vectors]`` with (quasi) triangular ``t``, unitary vectors and ``vectors t vectors^H = x``, or ``[t]``
    alone.

    Raises:
      ArgumentError: sorting of eigenvalues is requested.

    Example:
      >>> lax.linalg.schur(mnp.array([[1.0, 2.0], [0.0, 3.0]]))[0].tolist()
      [[1.0, 2.0], [0.0, 3.0]]
    """
    why = "eigenvalues come as LAPACK gives them; leave it out"
    _only_default("schur", why, sort_eig_vals=sort_eig_vals, select_callable=select_callable)
    return _schur(x, compute_schur_vectors=compute_schur_vectors)


def svd(
    x: Any, *, full_matrices: bool = True, compute_uv: bool = True, subset_by_index: tuple[int, int] | None = None,
    algorithm: Any = None,
) -> Any:  # fmt: skip
    """``[u, values, vh]`` of matrices of shape (..., m, n), or only the singular values, in descending order.

    Args:
      subset_by_index: (start, stop): the range of singular values and vectors to return.

    Raises:
      ArgumentError: ``algorithm`` is given (there is only one), or the subset is out of range.

    Example:
      >>> lax.linalg.svd(mnp.array([[3.0, 0.0], [0.0, 4.0]]), compute_uv=False).round(4).tolist()
      [4.0, 3.0]
    """
    _only_default("svd", _ONE_WAY, algorithm=algorithm)
    if subset_by_index is None:
        return _svd(x, full_matrices=full_matrices, compute_uv=compute_uv)
    start, stop = subset_by_index
    factors = _svd(x, full_matrices=False, compute_uv=compute_uv)
    values = factors[1] if compute_uv else factors
    if not 0 <= start < stop <= values.shape[-1]:
        raise ArgumentError(f"svd: subset_by_index {subset_by_index} is not inside of (0, {values.shape[-1]})")
    if not compute_uv:
        return values[..., start:stop]
    return [factors[0][..., start:stop], values[..., start:stop], factors[2][..., start:stop, :]]


def qdwh(
    x: Any, *, is_hermitian: bool = False, max_iterations: int | None = None, eps: float | None = None,
    dynamic_shape: tuple[int, int] | None = None,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """``(u, h, iterations, converged)``: the polar decomposition ``x = u h`` of a matrix, as in
    :func:`meshwright.scipy.linalg.polar`.

    Raises:
      ArgumentError: ``dynamic_shape`` is given; shapes are static.

    Example:
      >>> lax.linalg.qdwh(mnp.array([[2.0, 0.0], [0.0, 3.0]]))[0].round(4).tolist()
      [[1.0, 0.0], [0.0, 1.0]]
    """
    _only_default("qdwh", "shapes are known here; leave it out", dynamic_shape=dynamic_shape)
    return _qdwh(x, is_hermitian=is_hermitian, max_iterations=max_iterations, eps=eps)


def tridiagonal_solve(dl: Any, d: Any, du: Any, b: Any, *, perturb_singular: bool = False) -> Any:
    """Solve ``a x = b`` for tridiagonal ``a``, with diagonals of shape (..., n), and ``b`` of shape (..., n, k).

    The first element of ``dl`` and the last of ``du`` are not used.

    Raises:
      ArgumentError: ``perturb_singular`` is set; singular systems give infinities or NaN.

    Example:
      >>> ones = mnp.ones(2)
      >>> lax.linalg.tridiagonal_solve(0 * ones, 2 * ones, 0 * ones, mnp.ones((2, 1))).tolist()
      [[0.5], [0.5]]
    """
    _only_default("tridiagonal_solve", "add a small diagonal", perturb_singular=perturb_singular)
    return _tridiagonal_solve(dl, d, du, b)


def symmetric_product(
    a_matrix: Any, c_matrix: Any, *, alpha: Any = 1.0, beta: Any = 0.0, symmetrize_output: bool = False
) -> Any:
    """``alpha a a^T + beta c``, shape (..., n, n), symmetric where ``c`` is.

    Args:
      symmetrize_output: mirror the lower triangle above the diagonal, regardless of ``c`` there.

    Example:
      >>> lax.linalg.symmetric_product(mnp.array([[1.0], [2.0]]), mnp.eye(2), beta=3.0).tolist()
      [[4.0, 2.0], [2.0, 7.0]]
    """
    product = alpha * _matmul(a_matrix, _transposed(a_matrix)) + beta * c_matrix
    return _tril(product) + _transposed(_tril(product, -1)) if symmetrize_output else product


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

__getattr__ = _absent("lax.linalg")
