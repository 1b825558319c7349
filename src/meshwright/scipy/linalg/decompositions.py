"""Decompositions and solvers with SciPy's defaults, based on those of :mod:`meshwright.numpy.linalg`.

Arguments named ``overwrite_*`` and ``check_finite`` have no effect: arrays are immutable, and values are not checked.
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

    Only the corresponding triangle of ``a`` is read.

    Raises:
      ShapeError: the matrices are not square.
      DTypeError: a dtype without kernels.

    >>> cholesky(np.array([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 1.0], [0.0, 2.0]]
    """
    return linalg.cholesky(a, upper=not lower, symmetrize_input=False)


def cho_factor(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, bool]:
    """The Cholesky factor, and whether it is the lower one, for :func:`cho_solve`.

    >>> cho_factor(np.array([[4.0]]))[0].tolist()
    [[2.0]]
    """
    return linalg.cho_factor(a, lower)


def lu(a: Any, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, ...]:
    """LU decomposition with partial pivoting: ``(p, l, u)`` with ``a = p l u``; or ``(p l, u)`` with ``permute_l``.

    Args:
      a: shape (m, n). Then p has shape (m, m), l (m, min(m, n)) and u (min(m, n), n).

    Raises:
      ShapeError: ``a`` is not a matrix.
      DTypeError: a dtype without kernels.

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
    """QR decomposition: ``(q, r)`` with ``a = q r``; ``(r,)`` in mode ``r``.

    Args:
      a: shape (..., m, n).
      mode: ``full``, where q has shape (..., m, m); ``economic``, (..., m, min(m, n)); or ``r``, to return only r.
      pivoting: also return an order of columns p, shape (..., n), for which the diagonal of r decreases in magnitude;
        then ``a[:, p] = q r``.

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

    With ``pivoting``, the order of columns is the last result, as in :func:`qr`.

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
    """Singular value decomposition: ``(u, s, vh)`` with ``a = u diag(s) vh``, or the singular values alone.

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
      a: shape (..., n, n); only the triangle selected by ``lower`` is read.
      b: positive definite matrices, to solve the generalized problem ``a v = w b v``.

    Raises:
      ArgumentError: ``eigvals`` is given, or a ``type`` other than 1.

    >>> [round(v, 3) for v in eigh(np.array([[2.0, 1.0], [1.0, 2.0]]), eigvals_only=True).tolist()]
    [1.0, 3.0]
    """
    if eigvals is not None or type != 1:
        raise ArgumentError("eigh: eigvals and types other than 1 are not supported; take a part of the result")
    side = "L" if lower else "U"
    if b is None:
        return linalg.eigvalsh(a, side) if eigvals_only else tuple(linalg.eigh(a, side))
    a, b = inexact_operands("eigh", a, b)
    # With b = l l^H, w are the eigenvalues of l^-1 a l^-H.
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
    """Eigenvalues and eigenvectors ``(w, v)`` of a symmetric tridiagonal matrix, or ``w`` alone.

    Args:
      d: the diagonal, shape (n,).
      e: the off-diagonal, shape (n - 1,).
      select: ``a`` for all eigenvalues; ``i`` for those with numbers from ``select_range[0]`` to ``select_range[1]``.
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
    """Schur decomposition: ``(t, z)`` with ``a = z t z^H``.

    For real matrices ``t`` has 2 by 2 blocks for complex eigenvalues, unless ``output`` is ``complex``.

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
    """Convert a real Schur form to a complex one: ``(t, z)`` with the same ``z t z^H``.

    >>> rsf2csf(np.array([[1.0, 2.0], [0.0, 3.0]]), np.eye(2))[0].real.tolist()
    [[1.0, 2.0], [0.0, 3.0]]
    """
    T, Z = inexact_operands("rsf2csf", T, Z)
    t, q = schur(T, "complex")
    q = Z.astype(q.dtype) @ q
    weak = typeof(T).weak_type
    return convert(t, t.dtype, weak), convert(q, q.dtype, weak)


def hessenberg(a: Any, *, calc_q: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The Hessenberg form ``h`` of square matrices; with ``calc_q`` also ``q``, where ``a = q h q^H``.

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
    """Polar decomposition: ``(u, p)`` with ``a = u p``, where u is unitary and p positive semidefinite.

    Args:
      a: shape (m, n).
      side: ``right``, or ``left`` for ``a = p u``.
      method: ``qdwh`` or ``svd``.
      eps, max_iterations: as in :func:`meshwright.lax.linalg.qdwh`.

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
    """Solve ``a x = b`` for ``x``.

    Args:
      a: shape (..., n, n).
      b: shape (n,) or (..., n, k).
      assume_a: ``pos`` for positive definite matrices, of which only the triangle selected by ``lower`` is read; or
        ``gen``, ``sym`` or ``her``, which are treated alike.

    Raises:
      ArgumentError: another ``assume_a``.
      ShapeError: the shapes do not fit each other.

    >>> [round(v, 3) for v in solve(np.array([[4.0, 2.0], [2.0, 5.0]]), np.array([8.0, 8.0]), assume_a="pos").tolist()]
    [1.5, 1.0]
    """
    if assume_a not in ("gen", "sym", "her", "pos"):
        raise ArgumentError(f"solve: assume_a must be gen, sym, her or pos, got {assume_a!r}")
    if assume_a == "pos":
        return linalg.cho_solve(linalg.cho_factor(a, lower), b)
    return linalg.solve(a, b)


def cho_solve(c_and_lower: tuple[Any, bool], b: Any, overwrite_b: bool = False, check_finite: bool = True) -> Any:
    """Solve ``a x = b`` for ``x``, given the result of :func:`cho_factor` for ``a``.

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
    """The inverse of square matrices, shape (..., n, n); infinite or NaN for singular matrices.

    >>> inv(np.array([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    return linalg.inv(a)


def lu_factor(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, Any]:
    """LU decomposition as ``(factors, pivots)``, for :func:`lu_solve`.

    >>> lu_factor(np.array([[1.0, 2.0], [4.0, 4.0]]))[1].tolist()
    [1, 1]
    """
    return linalg.lu_factor(a)


def lu_solve(
    lu_and_piv: tuple[Any, Any], b: Any, trans: int = 0, overwrite_b: bool = False, check_finite: bool = True
) -> Any:  # fmt: skip
    """Solve ``op(a) x = b`` for ``x``, given the result of :func:`lu_factor` for ``a``.

    ``op(a)`` is ``a`` (``trans=0``), its transpose (1) or its conjugate transpose (2).

    >>> lu_solve(lu_factor(np.array([[2.0]])), np.array([4.0])).tolist()
    [2.0]
    """
    return linalg.lu_solve(lu_and_piv, b, trans)


def solve_triangular(
    a: Any, b: Any, trans: int | str = 0, lower: bool = False, unit_diagonal: bool = False, overwrite_b: bool = False,
    debug: Any = None, check_finite: bool = True,
) -> Any:  # fmt: skip
    """Solve ``op(a) x = b`` for ``x``, with triangular ``a``, of which only one triangle is read.

    >>> solve_triangular(np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([2.0, 3.0]), lower=True).tolist()
    [1.0, 2.0]
    """
    return linalg.solve_triangular(a, b, trans, lower, unit_diagonal)
