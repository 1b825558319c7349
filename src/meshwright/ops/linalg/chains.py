"""The number of kernels that a GPU runs in sequence for algorithms on dense matrices.

cuSOLVER is closed source, so these are the steps of the algorithms (G. Golub and C. Van Loan, "Matrix Computations",
4th edition, 2013, sections 3.4 to 3.5, 4.2.9, 5.2.2, 8.3 and 8.5). Pivots and reflections become known column by
column; all else proceeds by blocks of columns. Times on an H200 are within a quarter of these (docs/targets.md).
"""

from __future__ import annotations

from collections.abc import Callable

#: columns processed by one kernel, where they do not depend on each other
BLOCK = 32
#: the largest side of matrices for which GPUs compute singular values with Jacobi's method
JACOBI = 1024
#: the largest side of matrices of which one kernel processes a batch, for eigenvalues or singular values
SMALL = 32
#: matrices are factored together if the batch has at least one matrix per this many rows
TOGETHER = 128


def blocks(n: int, kernels: int) -> int:
    """``kernels`` for each block of ``n`` columns."""
    return kernels * -(-n // BLOCK)


def cholesky(n: int) -> int:
    """The triangle of a block, the rows below it, and the rest of the matrix."""
    return blocks(n, 3)


def pivots(m: int, n: int) -> int:
    """LU: kernels process panels of columns; each column takes half the time of a kernel start (from a profile on an
    H100: 13 panels of 2,048 columns, 4.1 ms)."""
    return -(-min(m, n) // 2)


def reflectors(m: int, n: int) -> int:
    """QR: the reflection of a column is known once the previous ones have been applied to it."""
    return min(m, n)


def orthogonal(columns: int) -> int:
    """The product of reflections: within each block, and with the rest."""
    return blocks(columns, 2)


def hermitian(n: int) -> int:
    """Tridiagonalization: for each column, a product with the matrix, and its reflection."""
    return 2 * n


def singular_values(m: int, n: int) -> int:
    """Jacobi's method, with about as many sweeps as the logarithm of the size, in whose rounds all columns are paired;
    for large matrices bidiagonalization, with reflections from both sides."""
    k = min(m, n)
    return (k - 1) * max(1, (k - 1).bit_length()) if max(m, n) <= JACOBI else 4 * k


def _one_by_one(steps: Callable[..., int], small: int = SMALL) -> Callable[..., int]:
    """Matrices above a size are processed one after the other."""
    return lambda problems, *cores: steps(*cores) * (problems if max(cores[0]) > small else 1)


def _together(steps: Callable[..., int]) -> Callable[..., int]:
    """Matrices are processed one after the other, unless there are many relative to their rows."""
    return lambda problems, *cores: steps(*cores) * (problems if cores[0][0] > TOGETHER * problems else 1)


def _at_once(steps: Callable[..., int]) -> Callable[..., int]:
    return lambda problems, *cores: steps(*cores)


_LU, _CHOLESKY = _together(lambda a: pivots(*a)), _at_once(lambda a: cholesky(a[0]))
_HERMITIAN, _SINGULAR = _one_by_one(lambda a: hermitian(a[0])), _one_by_one(lambda a, *_: singular_values(*a))
_DIAGONALS = _at_once(lambda *cores: 2 * max(1, (cores[3][0] - 1).bit_length()))  # cyclic reduction, and back
_TRIANGULAR = _at_once(lambda a, b: blocks(a[0], 2))

#: by names of ops and LAPACK kernels; functions of the number of problems and the operand sizes of one
CHAINS: dict[str, Callable[..., int]] = {
    "cholesky": _CHOLESKY,
    "eigh": _HERMITIAN,
    "geqrf": _together(lambda a: reflectors(*a)),
    "gesdd": _SINGULAR,
    "gesvd": _SINGULAR,
    "getrf": _LU,
    "gtsv": _DIAGONALS,
    "lu": _LU,
    "orgqr": _one_by_one(lambda a, taus: orthogonal(a[1]), 0),
    "ormqr": _one_by_one(lambda a, taus, c: orthogonal(min(a)), 0),
    "potrf": _CHOLESKY,
    "qr": _together(lambda a: reflectors(*a) + orthogonal(min(a))),
    "svd": _SINGULAR,
    "syevd": _HERMITIAN,
    "sytrd": _HERMITIAN,
    "triangular_solve": _TRIANGULAR,
    "tridiagonal_solve": _DIAGONALS,
    "trsm": _TRIANGULAR,
}
