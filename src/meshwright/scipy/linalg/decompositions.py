"""Decompositions with SciPy's defaults, in terms of those of :mod:`meshwright.numpy.linalg`.

Arguments named ``overwrite_*`` and ``check_finite`` have no effect: arrays are immutable and nothing waits for values.
"""

from __future__ import annotations

from typing import Any

from meshwright.core import dtypes
from meshwright.errors import ArgumentError
from meshwright.ir.tracing import typeof
from meshwright.lax import linalg as lax_linalg
from meshwright.numpy import linalg
from meshwright.numpy.linalg.operands import inexact_operands, matrix
from meshwright.numpy.manipulation import matrix_transpose
from meshwright.numpy.promotion import promotes_freely
from meshwright.numpy.ranges import diag, eye, tril, triu
from meshwright.ops.elementwise.table import convert


def _adjoint(x: Any) -> Any:
    return matrix_transpose(x).conj()


def cholesky(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The Cholesky factor of positive definite matrices, shape (..., n, n): ``r^H r = a``, or ``l l^H = a``.

    Of ``a`` the triangle that the factor fills is read, and no more.

    Raises:
      ShapeError, DTypeError: no square matrices, or of a dtype without kernels.

    >>> cholesky(np.array([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 1.0], [0.0, 2.0]]
    """
    return linalg.cholesky(a, upper=not lower, symmetrize_input=False)


def cho_factor(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, bool]:
    """A Cholesky factor for :func:`cho_solve`, and whether it is the lower one.

    >>> cho_factor(np.array([[4.0]]))[0].tolist()
    [[2.0]]
    """
    return linalg.cho_factor(a, lower)


def lu(a: Any, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, ...]:
    """``(p, l, u)`` with ``a = p l u``; or ``(p l, u)`` with ``permute_l``.

    Args:
      a: shape (m, n); p is (m, m), l (m, min(m, n)), u (min(m, n), n).

    Raises:
      ShapeError, DTypeError: no matrix, or of a dtype without kernels.

    >>> p, l, u = lu(np.array([[1.0, 2.0], [4.0, 4.0]]))
    >>> p.tolist(), l.tolist(), u.tolist()
    ([[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.25, 1.0]], [[4.0, 4.0], [0.0, 1.0]])
    """
    (a,) = inexact_operands("lu", a)
    factors, _, permutation = lax_linalg.lu(a)
    m, n = a.shape
    k = min(m, n)
    low = tril(factors[:, :k], -1) + eye(m, k, dtype=a.dtype)
    high = triu(factors[:k])
    p = matrix_transpose(eye(m, dtype=dtypes.real_of(a.dtype))[permutation])
    return (p.astype(a.dtype) @ low, high) if permute_l else (p, low, high)


def qr(
    a: Any, overwrite_a: bool = False, lwork: Any = None, mode: str = "full", pivoting: bool = False,
    check_finite: bool = True,
) -> tuple[Any, ...]:  # fmt: skip
    """``(q, r)`` with ``a = q r``; ``(r,)`` in mode ``r``.

    Args:
      a: shape (..., m, n).
      mode: ``full``: q is (m, m); ``economic``: (m, min(m, n)); ``r``: only r.
      pivoting: return ``(q, r, p)``, or ``(r, p)``: an order of columns, shape (..., n), in which the diagonal of r
        falls, ``a[:, p] = q r``.

    Raises:
      ArgumentError: another ``mode``.

    >>> q, r = qr(np.array([[2.0], [0.0]]))
    >>> q.shape, r.shape
    ((2, 2), (2, 1))
    """
    if mode not in ("full", "economic", "r"):
        raise ArgumentError(f"qr: mode must be full, economic or r, got {mode!r}")
    factors = lax_linalg.qr(matrix("qr", a), pivoting=pivoting, full_matrices=mode != "economic")
    return tuple(factors[1:] if mode == "r" else factors)


@promotes_freely("a", "c", ranks=False)
def qr_multiply(
    a: Any, c: Any, mode: str = "right", pivoting: bool = False, conjugate: bool = False, overwrite_a: bool = False,
    overwrite_c: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """``(c q, r)``, or ``(q c, r)`` in mode ``left``, for the economic factors of ``a = q r``.

    With ``pivoting`` the order of columns of :func:`qr` is the last result.

    >>> qr_multiply(np.eye(2), np.array([[3.0, 4.0]]))[0].shape
    (1, 2)
    """
    q, *others = qr(a, mode="economic", pivoting=pivoting)
    q = q.conj() if conjugate else q
    if mode not in ("left", "right"):
        raise ArgumentError(f"qr_multiply: mode must be left or right, got {mode!r}")
    return (q @ c if mode == "left" else c @ q), *others


def svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, overwrite_a: bool = False, check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any:  # fmt: skip
    """``(u, s, vh)`` with ``a = u diag(s) vh``, or the singular values alone.

    >>> svd(np.array([[0.0, 2.0], [3.0, 0.0]]), compute_uv=False).tolist()
    [3.0, 2.0]
    """
    factors = linalg.svd(a, full_matrices, compute_uv)
    return tuple(factors) if compute_uv else factors


def eigh(
    a: Any, b: Any = None, lower: bool = True, eigvals_only: bool = False, overwrite_a: bool = False,
    overwrite_b: bool = False, turbo: bool = True, eigvals: None = None, type: int = 1, check_finite: bool = True,
) -> Any:  # fmt: skip
    """``(w, v)``: eigenvalues in ascending order and eigenvectors of Hermitian matrices, or ``w`` alone.

    Args:
      a: shape (..., n, n); the triangle that ``lower`` names is read.
      b: positive definite; then the problem is ``a v = w b v``.

    Raises:
      ArgumentError: ``eigvals``, or a ``type`` other than 1.

    >>> [round(v, 3) for v in eigh(np.array([[2.0, 1.0], [1.0, 2.0]]), eigvals_only=True).tolist()]
    [1.0, 3.0]
    """
    if eigvals is not None or type != 1:
        raise ArgumentError("eigh: eigvals and types other than 1 are not supported; take a part of the result")
    side = "L" if lower else "U"
    if b is None:
        return linalg.eigvalsh(a, side) if eigvals_only else tuple(linalg.eigh(a, side))
    a, b = inexact_operands("eigh", a, b)
    # With b = l l^H, the matrix of w is l^-1 a l^-H.
    factor = linalg.cholesky(b if lower else _adjoint(b), symmetrize_input=False)
    whole = tril(a) + _adjoint(tril(a, -1)) if lower else triu(a) + _adjoint(triu(a, 1))
    half = linalg.solve_triangular(factor, whole, lower=True)
    inner = _adjoint(linalg.solve_triangular(factor, _adjoint(half), lower=True))
    if eigvals_only:
        return linalg.eigvalsh(inner)
    w, v = linalg.eigh(inner)
    return w, linalg.solve_triangular(factor, v, trans=2, lower=True)


def eigh_tridiagonal(
    d: Any, e: Any, *, eigvals_only: bool = False, select: str = "a", select_range: tuple[int, int] | None = None,
    tol: float | None = None, key: Any = None,
) -> Any:  # fmt: skip
    """``(w, v)`` of the symmetric matrix with diagonal ``d`` (n,) and ``e`` (n - 1,) beside it, or ``w`` alone.

    Args:
      select: ``a`` for all; ``i`` for those numbered ``select_range``, first and last.
      tol, key: have no effect.

    Raises:
      ArgumentError: another ``select``.

    >>> [round(v, 3) for v in eigh_tridiagonal(np.array([2.0, 2.0]), np.array([1.0]), eigvals_only=True).tolist()]
    [1.0, 3.0]
    """
    if select not in ("a", "i") or (select == "i") != (select_range is not None):
        raise ArgumentError(f"eigh_tridiagonal: select must be a, or i with a select_range, got {select!r}")
    d, e = (convert(v, v.dtype, False) for v in inexact_operands("eigh_tridiagonal", d, e))
    whole = diag(d) + diag(e, 1) + diag(e.conj(), -1)
    first, last = (0, d.shape[0] - 1) if select_range is None else select_range
    chosen = slice(first, last + 1)
    if eigvals_only:
        return linalg.eigvalsh(whole)[chosen]
    w, v = linalg.eigh(whole)
    return w[chosen], v[:, chosen]


def schur(a: Any, output: str = "real") -> tuple[Any, Any]:
    """``(t, z)`` with ``a = z t z^H``: the Schur form, of real matrices with blocks of two unless ``complex``.

    Raises:
      ArgumentError: ``output`` is neither ``real`` nor ``complex``.

    >>> schur(np.array([[1.0, 2.0], [0.0, 3.0]]))[0].tolist()
    [[1.0, 2.0], [0.0, 3.0]]
    """
    if output not in ("real", "complex"):
        raise ArgumentError(f"schur: output must be real or complex, got {output!r}")
    (a,) = inexact_operands("schur", a)
    a = a.astype(dtypes.complex_of(dtypes.real_of(a.dtype))) if output == "complex" else a
    t, z = lax_linalg.schur(a)
    return t, z


def rsf2csf(T: Any, Z: Any, check_finite: bool = True) -> tuple[Any, Any]:
    """The complex Schur form from a real one: ``(t, z)`` with the same ``z t z^H``.

    >>> rsf2csf(np.array([[1.0, 2.0], [0.0, 3.0]]), np.eye(2))[0].real.tolist()
    [[1.0, 2.0], [0.0, 3.0]]
    """
    T, Z = inexact_operands("rsf2csf", T, Z)
    t, q = schur(T, "complex")
    q = Z.astype(q.dtype) @ q
    weak = typeof(T).weak_type
    return convert(t, t.dtype, weak), convert(q, q.dtype, weak)


def hessenberg(a: Any, *, calc_q: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The Hessenberg form ``h`` of square matrices, with ``calc_q`` also ``q`` with ``a = q h q^H``.

    >>> hessenberg(np.ones((3, 3))).round(3)[2, 0].item()
    0.0
    """
    (a,) = inexact_operands("hessenberg", a)
    packed, scales = lax_linalg.hessenberg(a)
    h = triu(packed, -1)
    if not calc_q:
        return h
    n = a.shape[-1]
    q = eye(n, dtype=a.dtype) + 0 * packed
    if n > 1:
        inner = lax_linalg.householder_product(packed[..., 1:, :-1], scales)
        q = q.at[..., 1:, 1:].set(inner)
    return h, q


def polar(
    a: Any, side: str = "right", *, method: str = "qdwh", eps: float | None = None, max_iterations: int | None = None
) -> tuple[Any, Any]:
    """``(u, p)`` with ``a = u p``, or ``a = p u`` from the ``left``: a unitary and a positive semidefinite factor.

    Args:
      a: shape (m, n).
      method: ``qdwh`` or ``svd``.
      eps, max_iterations: of :func:`meshwright.lax.linalg.qdwh`.

    Raises:
      ArgumentError: another ``side`` or ``method``.

    >>> u, p = polar(np.array([[0.0, 2.0], [-3.0, 0.0]]))
    >>> u.round(3).tolist()
    [[0.0, 1.0], [-1.0, 0.0]]
    """
    if side not in ("left", "right") or method not in ("qdwh", "svd"):
        raise ArgumentError(f"polar: side must be left or right, method qdwh or svd, got {side!r} and {method!r}")
    (a,) = inexact_operands("polar", a)
    m, n = a.shape
    if method == "svd" or (m < n) == (side == "right"):
        u, s, vh = linalg.svd(a, full_matrices=False)
        positive = (_adjoint(vh) * s) @ vh if side == "right" else (u * s) @ _adjoint(u)
        return u @ vh, positive
    if side == "right":
        return lax_linalg.qdwh(a, eps=eps, max_iterations=max_iterations)[:2]
    u, h, _, _ = lax_linalg.qdwh(_adjoint(a), eps=eps, max_iterations=max_iterations)
    return _adjoint(u), h


@promotes_freely("a", "b", ranks=False)
def solve(
    a: Any, b: Any, lower: bool = False, overwrite_a: bool = False, overwrite_b: bool = False, debug: bool = False,
    check_finite: bool = True, assume_a: str = "gen",
) -> Any:  # fmt: skip
    """``x`` with ``a x = b``.

    Args:
      a: shape (..., n, n).
      b: shape (n,) or (..., n, k).
      assume_a: ``pos``: positive definite, of which the triangle that ``lower`` names is read; ``gen``, ``sym`` and
        ``her`` are solved alike.

    Raises:
      ArgumentError: another ``assume_a``. ShapeError: sizes that do not fit.

    >>> [round(v, 3) for v in solve(np.array([[4.0, 2.0], [2.0, 5.0]]), np.array([8.0, 8.0]), assume_a="pos").tolist()]
    [1.5, 1.0]
    """
    if assume_a not in ("gen", "sym", "her", "pos"):
        raise ArgumentError(f"solve: assume_a must be gen, sym, her or pos, got {assume_a!r}")
    if assume_a == "pos":
        return linalg.cho_solve(linalg.cho_factor(a, lower), b)
    return linalg.solve(a, b)


def cho_solve(c_and_lower: tuple[Any, bool], b: Any, overwrite_b: bool = False, check_finite: bool = True) -> Any:
    """``x`` with ``a x = b``, from what :func:`cho_factor` gives for ``a``.

    >>> cho_solve(cho_factor(np.array([[4.0]])), np.array([2.0])).tolist()
    [0.5]
    """
    return linalg.cho_solve(c_and_lower, b)


def det(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """Determinants of square matrices, shape (..., n, n).

    >>> det(np.array([[2.0, 0.0], [0.0, 4.0]])).item()
    8.0
    """
    return linalg.det(a)


def inv(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The inverse of square matrices, shape (..., n, n); infinities or NaN where there is none.

    >>> inv(np.array([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    return linalg.inv(a)


def lu_factor(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, Any]:
    """``(factors, pivots)`` of an LU decomposition, for :func:`lu_solve`.

    >>> lu_factor(np.array([[1.0, 2.0], [4.0, 4.0]]))[1].tolist()
    [1, 1]
    """
    return linalg.lu_factor(a)


def lu_solve(
    lu_and_piv: tuple[Any, Any], b: Any, trans: int = 0, overwrite_b: bool = False, check_finite: bool = True
) -> Any:  # fmt: skip
    """``x`` with ``op(a) x = b``, from what :func:`lu_factor` gives for ``a``; ``trans`` is 0, 1 (the transpose) or 2
    (its conjugate).

    >>> lu_solve(lu_factor(np.array([[2.0]])), np.array([4.0])).tolist()
    [2.0]
    """
    return linalg.lu_solve(lu_and_piv, b, trans)


def solve_triangular(
    a: Any, b: Any, trans: int | str = 0, lower: bool = False, unit_diagonal: bool = False, overwrite_b: bool = False,
    debug: Any = None, check_finite: bool = True,
) -> Any:  # fmt: skip
    """``x`` with ``op(a) x = b`` for triangular ``a``, of which only one triangle is read.

    >>> solve_triangular(np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([2.0, 3.0]), lower=True).tolist()
    [1.0, 2.0]
    """
    return linalg.solve_triangular(a, b, trans, lower, unit_diagonal)
