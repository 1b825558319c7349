"""Operation counts of algorithms on dense matrices, to leading order; a multiply-add counts as two.

Source: G. Golub and C. Van Loan, "Matrix Computations" (4th edition, 2013), sections 3.1 to 3.2, 4.2, 5.2, 7.4 to 7.5,
8.3 and 8.6. Complex numbers count as real ones, as in products.
"""

from __future__ import annotations

from collections.abc import Callable


def cholesky(n: int) -> int:
    """Cholesky decomposition of an ``n`` by ``n`` matrix."""
    return n**3 // 3


def lu(m: int, n: int) -> int:
    """LU decomposition with pivoting of an ``m`` by ``n`` matrix."""
    k = min(m, n)
    return 2 * m * n * k - (m + n) * k * k + 2 * k**3 // 3


def qr(m: int, n: int) -> int:
    """QR decomposition of an ``m`` by ``n`` matrix into ``r`` and reflectors; forming ``q`` takes as many again."""
    k = min(m, n)
    return 2 * k * k * max(m, n) - 2 * k**3 // 3


def reflected(m: int, n: int, k: int) -> int:
    """The product of ``k`` reflections of ``m`` rows with a matrix of ``n`` columns."""
    return 4 * m * n * k - 2 * n * k * k


def triangular(n: int, columns: int) -> int:
    """Triangular systems of ``n`` equations with ``columns`` right-hand sides."""
    return n * n * columns


def hermitian_eigenproblem(n: int) -> int:
    """Eigenvalues and eigenvectors of a Hermitian matrix, by the symmetric QR algorithm."""
    return 9 * n**3


def eigenproblem(n: int, vectors: bool) -> int:
    """Eigenvalues of a general matrix, by the QR algorithm."""
    return (25 if vectors else 10) * n**3


def singular_values(m: int, n: int, vectors: bool, full: bool = False) -> int:
    """Singular values, by the Golub-Reinsch algorithm; ``full``: all vectors of the longer side."""
    m, n = max(m, n), min(m, n)
    if not vectors:
        return 4 * m * n * n - 4 * n**3 // 3
    return 4 * m * m * n + 8 * m * n * n + 9 * n**3 if full else 14 * m * n * n + 8 * n**3


#: by LAPACK's names; functions of the operand sizes
KERNELS: dict[str, Callable[..., int]] = {
    "gees": lambda a: eigenproblem(a[0], True),
    "geev": lambda a: eigenproblem(a[0], True),
    "gehrd": lambda a: 10 * a[0] ** 3 // 3,
    "geqp3": lambda a, columns: qr(*a),
    "geqrf": lambda a: qr(*a),
    "gesdd": lambda a: singular_values(a[0], a[1], True),
    "gesvd": lambda a: singular_values(a[0], a[1], True),
    "getrf": lambda a: lu(*a),
    "gtsv": lambda dl, d, du, b: 8 * b[0] * (1 + b[1]),
    "orgqr": lambda a, taus: qr(*a),
    "ormqr": lambda a, taus, c: reflected(c[0], c[1], min(a)),
    "potrf": lambda a: cholesky(a[0]),
    "syevd": lambda a: hermitian_eigenproblem(a[0]),
    "sytrd": lambda a: 4 * a[0] ** 3 // 3,
    "trsm": lambda a, b: a[0] * b[0] * b[1],  # for either side
}
