"""Linear equations: solve, inverses, least squares, and solves with triangular and factored matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from meshwright.core.dtypes import real_of
from meshwright.errors import ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.compiled import compiled
from meshwright.numpy.creation import asarray
from meshwright.numpy.linalg.decompositions import cholesky
from meshwright.numpy.linalg.operands import epsilon, fitting, inexact_operands, matrix, same_lead, square, with_lead
from meshwright.numpy.logic import where
from meshwright.numpy.manipulation import moveaxis, reshape
from meshwright.numpy.reductions import sum
from meshwright.ops.elementwise.table import convert
from meshwright.ops.linalg.cholesky import symmetrized
from meshwright.ops.linalg.lu import Lu, lu_pivots_to_permutation
from meshwright.ops.linalg.lu import lu_solve as solve_factored
from meshwright.ops.linalg.matrices import (
    adjoint,
    along_rows,
    conjugate,
    diagonal,
    eye,
    matmul,
    real_part,
    require_matrix,
    require_square,
)
from meshwright.ops.linalg.svd import Svd
from meshwright.ops.linalg.triangular_solve import triangular_solve
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, broadcast_to_rank_end
from meshwright.transforms.custom_jvp import custom_jvp


# --- solve --------------------------------------------------------------------------------------------------
def as_columns(name: str, a: Any, b: Any) -> tuple[Any, Any, bool]:
    """Square matrices and right-hand sides with equal leading dimensions, and whether ``b`` was one vector.

    Many right-hand sides for one matrix become columns of one, so that the matrix need not be copied.
    """
    a, b = inexact_operands(name, a, b)
    require_square(name, typeof(a))
    vector = typeof(b).ndim == 1
    b = reshape(b, (*typeof(b).shape, 1)) if vector else b
    require_matrix(name, typeof(b))
    fitting(name, typeof(a).shape[-1], b, typeof(b).shape[-2])
    return a, b, vector


@custom_jvp
def _solve(a: Any, b: Any) -> Any:
    factors, _, permutation = Lu().bind(a)
    return solve_factored(factors, permutation, b)


@_solve.defjvp
def _solve_tangent(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    (a, b), (ta, tb) = primals, tangents
    factors, _, permutation = Lu().bind(a)
    x = solve_factored(factors, permutation, b)
    return x, solve_factored(factors, permutation, tb - matmul(ta, x))


@compiled
def _solve_with_lead(a: Any, b: Any) -> Any:
    if typeof(a).ndim == 2 and typeof(b).ndim > 2:
        columns = moveaxis(b, -2, 0)
        shape = typeof(columns).shape
        x = _solve(a, reshape(columns, (shape[0], math.prod(shape[1:]))))
        return moveaxis(reshape(x, shape), 0, -2)
    return _solve(*same_lead("solve", a, b))


def solve(a: Any, b: Any) -> Any:
    """Solve ``a x = b`` for ``x``; the result has infinities or NaN where ``a`` is singular.

    Args:
      a: shape (..., n, n).
      b: shape (n,), or (..., n, k); leading dimensions broadcast.

    Raises:
      ShapeError: ``a`` is not square, or sizes differ. DTypeError: a dtype without kernels.

    >>> solve(np.array([[2.0, 0.0], [0.0, 4.0]]), np.array([2.0, 2.0])).tolist()
    [1.0, 0.5]
    """
    a, b, vector = as_columns("solve", a, b)
    x = _solve_with_lead(a, b)
    return reshape(x, typeof(x).shape[:-1]) if vector else x


def inv(a: Any) -> Any:
    """The inverse of square matrices, shape (..., n, n); infinities or NaN where they are singular.

    >>> inv(np.array([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    return _inv(square("inv", a))


@compiled
def _inv(a: Any) -> Any:
    n = typeof(a).shape[-1]
    return _solve(a, with_lead(eye(n, n, typeof(a).dtype), typeof(a).shape[:-2]))


# --- least squares ------------------------------------------------------------------------------------------
@custom_jvp
def pinv_and_values(a: Any, rtol: Any) -> tuple[Any, Any]:
    """The pseudoinverse and the singular values; values up to ``rtol`` times the largest count as 0."""
    s, u, vh = Svd().bind(a)
    large = s > reshape(rtol, (*typeof(rtol).shape, 1)) * s[..., :1]
    inverse = where(large, 1 / where(large, s, 1), 0)
    scaled = adjoint(vh) * along_rows(convert(inverse, typeof(u).dtype), typeof(vh).shape[-1])
    return matmul(scaled, adjoint(u)), s


@pinv_and_values.defjvp
def _pinv_tangent(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """The derivative by G. Golub and V. Pereyra, "The differentiation of pseudo-inverses" (1973), which does not use
    singular vectors, so that equal singular values do no harm."""
    (a, rtol), (t, _) = primals, tangents
    p, s = pinv_and_values(a, rtol)
    _, u, vh = Svd().bind(a)
    ph, th = adjoint(p), adjoint(t)
    inner = _product(p, ph, th)
    outer = _product(th, ph, p)
    tangent = inner - _product(inner, a, p) + outer - _product(p, a, outer) - _product(p, t, p)
    return (p, s), (tangent, real_part(diagonal(matmul(adjoint(u), matmul(t, adjoint(vh))))))


def _product(x: Any, y: Any, z: Any) -> Any:
    """The product ``x y z`` of matrices (n, m), (m, n) and (n, m), without a square matrix of the larger size."""
    *_, n, m = typeof(x).shape
    return matmul(matmul(x, y), z) if n <= m else matmul(x, matmul(y, z))


def pinv(a: Any, rtol: Any = None, hermitian: bool = False, *, rcond: Any = None) -> Any:
    """The Moore-Penrose pseudoinverse, shape (..., n, m).

    Args:
      a: shape (..., m, n).
      rtol: singular values up to ``rtol`` times the largest count as 0; a number or an array of the leading shape.
        Default: ``10 * max(m, n)`` times the dtype's epsilon.
      hermitian: ``a`` is Hermitian; use its eigenvalues.

    Raises:
      ShapeError, DTypeError: not matrices that LAPACK supports.

    >>> pinv(np.array([[2.0], [0.0]])).tolist()
    [[0.5, 0.0]]
    """
    x = matrix("pinv", a)
    if hermitian:
        require_square("pinv", typeof(x))
    rtol = rcond if rtol is None else rtol
    *lead, m, n = typeof(x).shape
    rtol = 10.0 * max(m, n) * epsilon(x) if rtol is None else rtol
    return _pinv(x, convert(asarray(rtol), real_of(typeof(x).dtype)), tuple(lead), bool(hermitian))


@compiled(static_argnums=(2, 3))
def _pinv(x: Any, rtol: Any, lead: tuple[int, ...], hermitian: bool) -> Any:
    rtol = broadcast_in_dim(rtol, lead, range(len(lead) - typeof(rtol).ndim, len(lead)))
    return pinv_and_values(symmetrized(x) if hermitian else x, rtol)[0]


def lstsq(a: Any, b: Any, rcond: Any = None, *, numpy_resid: bool = False) -> tuple[Any, Any, Any, Any]:
    """The ``x`` of least norm that minimizes the norm of ``a x - b``.

    Args:
      a: shape (m, n).
      b: shape (m,) or (m, k).
      rcond: singular values up to ``rcond`` times the largest count as 0 (default: ``max(m, n)`` epsilons).
      numpy_resid: return an empty array of residuals where NumPy does.

    Returns:
      ``(x, residuals, rank, singular values)``; x has shape (n,) or (n, k), residuals (1,) or (k,).

    Raises:
      ShapeError: not a matrix and a vector or matrix with matching sizes.

    >>> x, residuals, rank, s = lstsq(np.array([[1.0], [1.0]]), np.array([1.0, 3.0]))
    >>> x.round(4).tolist(), residuals.round(4).tolist(), rank.item()
    ([2.0], [2.0], 1)
    """
    a, b = inexact_operands("lstsq", a, b)
    if typeof(a).ndim != 2 or typeof(b).ndim not in (1, 2):
        raise ShapeError(f"lstsq: expected a matrix and a vector or matrix, got {typeof(a)} and {typeof(b)}")
    m, n = typeof(a).shape
    vector = typeof(b).ndim == 1
    fitting("lstsq", m, b, typeof(b).shape[0])
    tolerance = epsilon(a) * max(m, n) if rcond is None else where(asarray(rcond) < 0, epsilon(a), rcond)
    columns = reshape(b, (m, 1)) if vector else b
    x, residuals, rank, s = _lstsq(a, columns, convert(asarray(tolerance), real_of(typeof(a).dtype)))
    if not m * n:
        s = convert(s, typeof(a).dtype)  # JAX's type of no singular values
    if numpy_resid and (m <= n or int(rank) < n):
        residuals = residuals[:0]
    return reshape(x, (n,)) if vector else x, residuals, rank, s


@compiled
def _lstsq(a: Any, b: Any, rcond: Any) -> tuple[Any, Any, Any, Any]:
    p, s = pinv_and_values(a, rcond)
    x = matmul(p, b)
    rest = b - matmul(a, x)
    return x, sum(real_part(rest * conjugate(rest)), 0), sum(s > rcond * s[:1]), s


# --- tensors ------------------------------------------------------------------------------------------------
def tensorsolve(a: Any, b: Any, axes: Sequence[int] | None = None) -> Any:
    """Solve ``tensordot(a, x, x.ndim) = b`` for ``x``.

    Args:
      a: shape b.shape + Q, where the product of the sizes in Q is that of b's.
      axes: axes of ``a`` to move to the end first.

    Raises:
      ShapeError: the products of sizes differ.

    >>> tensorsolve(np.eye(4).reshape(2, 2, 4), np.ones((2, 2))).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    a, b = inexact_operands("tensorsolve", a, b)
    if axes is not None:
        a = moveaxis(a, list(axes), list(range(typeof(a).ndim - len(axes), typeof(a).ndim)))
    free = typeof(a).shape[typeof(b).ndim :]
    if typeof(a).shape[: typeof(b).ndim] != typeof(b).shape or math.prod(free) != typeof(b).size:
        raise ShapeError(
            f"tensorsolve: a has shape {typeof(a).shape} and b {typeof(b).shape}; expected a to have the sizes of b, "
            f"then sizes whose product is {typeof(b).size}"
        )
    n = typeof(b).size
    return reshape(solve(reshape(a, (n, n)), reshape(b, (n,))), free)


def tensorinv(a: Any, ind: int = 2) -> Any:
    """The inverse with respect to ``tensordot(..., ind)``: of the first ``ind`` dimensions of ``a`` against the others.

    Raises:
      ShapeError: the products of their sizes differ.

    >>> tensorinv(np.eye(4).reshape(4, 2, 2), ind=1).shape
    (2, 2, 4)
    """
    (a,) = inexact_operands("tensorinv", a)
    first, second = typeof(a).shape[:ind], typeof(a).shape[ind:]
    n = math.prod(first)
    if ind < 1 or n != math.prod(second):
        raise ShapeError(
            f"tensorinv: sizes {first} and {second} of a shape cut at ind={ind} must be some, of equal products"
        )
    return reshape(inv(reshape(a, (n, n))), (*second, *first))


# --- factored matrices --------------------------------------------------------------------------------------
def solve_triangular(a: Any, b: Any, trans: int | str = 0, lower: bool = False, unit_diagonal: bool = False) -> Any:
    """Solve ``op(a) x = b`` for triangular ``a``, of which only one triangle is read.

    Args:
      a: shape (..., n, n).
      b: shape (n,) or (..., n, k).
      trans: the meaning of ``op``: 0 or "N" the identity, 1 or "T" the transpose, 2 or "C" the conjugate transpose.

    Raises:
      ShapeError: sizes do not match. DTypeError: a dtype without kernels.

    >>> solve_triangular(np.array([[2.0, 9.0], [0.0, 4.0]]), np.array([2.0, 0.0])).tolist()
    [1.0, 0.0]
    """
    a, b, vector = as_columns("solve_triangular", a, b)
    a, b = same_lead("solve_triangular", a, b)
    x = triangular_solve(
        a, b, left_side=True, lower=lower, transpose_a=trans in (1, 2, "T", "C"), conjugate_a=trans in (2, "C"),
        unit_diagonal=unit_diagonal,
    )  # fmt: skip
    return reshape(x, typeof(x).shape[:-1]) if vector else x


def cho_factor(a: Any, lower: bool = False) -> tuple[Any, bool]:
    """A Cholesky factor for :func:`cho_solve`, and whether it is the lower one; only that triangle of ``a`` is read.

    >>> cho_factor(np.array([[4.0]]))[0].tolist()
    [[2.0]]
    """
    return cholesky(a, upper=not lower, symmetrize_input=False), bool(lower)


def cho_solve(c_and_lower: tuple[Any, bool], b: Any) -> Any:
    """Solve ``a x = b`` for ``x``, given the result of :func:`cho_factor` for ``a``.

    >>> cho_solve(cho_factor(np.array([[4.0]])), np.array([2.0])).tolist()
    [0.5]
    """
    c, lower = c_and_lower
    y = solve_triangular(c, b, trans=0 if lower else 2, lower=lower)
    return solve_triangular(c, y, trans=2 if lower else 0, lower=lower)


def lu_factor(a: Any) -> tuple[Any, Any]:
    """``(factors, pivots)`` of an LU decomposition, for :func:`lu_solve`; shapes (..., m, n) and (..., min(m, n)).

    >>> lu_factor(np.array([[1.0, 2.0], [4.0, 4.0]]))[1].tolist()
    [1, 1]
    """
    factors, pivots, _ = Lu().bind(matrix("lu_factor", a))
    return factors, pivots


def lu_solve(lu_and_pivots: tuple[Any, Any], b: Any, trans: int = 0) -> Any:
    """Solve ``op(a) x = b`` for ``x``, given the result of :func:`lu_factor` for ``a``; ``trans`` is 0, 1 or 2 as in
    :func:`solve_triangular`.

    >>> lu_solve(lu_factor(np.array([[1.0, 2.0], [4.0, 4.0]])), np.array([5.0, 12.0])).tolist()
    [1.0, 2.0]
    """
    factors, pivots = lu_and_pivots
    factors, b, vector = as_columns("lu_solve", factors, b)
    factors, b = same_lead("lu_solve", factors, b)
    permutation = lu_pivots_to_permutation(pivots, typeof(factors).shape[-1])
    permutation = broadcast_to_rank_end(permutation, typeof(factors).shape[:-1])
    x = solve_factored(factors, permutation, b, "NTC"[trans])
    return reshape(x, typeof(x).shape[:-1]) if vector else x
