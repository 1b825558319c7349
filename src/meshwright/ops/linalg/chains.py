"""How many kernels a GPU starts for an algorithm on dense matrices, each of which waits for the one before.

cuSOLVER's code is not public: these are the steps of the algorithms (G. Golub and C. Van Loan, "Matrix Computations",
4th edition, 2013, sections 3.4 to 3.5, 4.2.9, 5.2.2, 8.3 and 8.5). Pivots, and reflections, are known column by column;
what needs neither goes on by blocks of columns. What an H200 took is within a quarter of that (docs/targets.md).
"""

from __future__ import annotations

from collections.abc import Callable

#: columns that one kernel deals with, where none has to be known before the next
BLOCK = 32
#: the largest side of matrices whose singular values Jacobi's method finds on a GPU
JACOBI = 1024
#: the largest side of matrices whose eigenvalues, or singular values, one kernel finds of many
SMALL = 32
#: rows, for each matrix of a batch, of those that are factored together
TOGETHER = 128


def blocks(n: int, kernels: int) -> int:
    """So many kernels for each block of ``n`` columns."""
    return kernels * -(-n // BLOCK)


def cholesky(n: int) -> int:
    """A block's triangle, what is below it, and the rest of the matrix."""
    return blocks(n, 3)


def pivots(m: int, n: int) -> int:
    """Of LU: its kernels hold panels of columns, each of which takes half of what starting a kernel does (an H100's
    profile: 13 panels of 2,048 columns, 4.1 ms)."""
    return -(-min(m, n) // 2)


def reflectors(m: int, n: int) -> int:
    """Of QR: each column's reflection is known when those before have been applied to it."""
    return min(m, n)


def orthogonal(columns: int) -> int:
    """The product of reflections: of a block's among each other, and with the rest."""
    return blocks(columns, 2)


def hermitian(n: int) -> int:
    """Three diagonals: of each column a product with the matrix, and its reflection."""
    return 2 * n


def singular_values(m: int, n: int) -> int:
    """By Jacobi's method, whose sweeps are about as many as the logarithm, each of rounds in which all columns meet in
    pairs; of large matrices two diagonals, by reflections from both sides."""
    k = min(m, n)
    return (k - 1) * max(1, (k - 1).bit_length()) if max(m, n) <= JACOBI else 4 * k


def _one_by_one(steps: Callable[..., int], small: int = SMALL) -> Callable[..., int]:
    """Of matrices above a size, one after the other."""
    return lambda problems, *cores: steps(*cores) * (problems if max(cores[0]) > small else 1)


def _together(steps: Callable[..., int]) -> Callable[..., int]:
    """One after the other, unless there are many for their rows."""
    return lambda problems, *cores: steps(*cores) * (problems if cores[0][0] > TOGETHER * problems else 1)


def _at_once(steps: Callable[..., int]) -> Callable[..., int]:
    return lambda problems, *cores: steps(*cores)


_LU, _CHOLESKY = _together(lambda a: pivots(*a)), _at_once(lambda a: cholesky(a[0]))
_HERMITIAN, _SINGULAR = _one_by_one(lambda a: hermitian(a[0])), _one_by_one(lambda a, *_: singular_values(*a))
_DIAGONALS = _at_once(lambda *cores: 2 * max(1, (cores[3][0] - 1).bit_length()))  # cyclic reduction, and back
_TRIANGULAR = _at_once(lambda a, b: blocks(a[0], 2))

#: by the names of ops and of LAPACK's kernels, of the number of problems and the sizes of the operands of one
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
