"""Functions of matrices and Sylvester's equation, by Schur forms.

A function of a triangular matrix follows from its diagonal, one superdiagonal after the other (Parlett's recurrence;
Higham 2008, "Functions of matrices"). For Sylvester's equation: Bartels and Stewart 1972, "Solution of the matrix
equation AX + XB = C".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes

from meshwright.core import dtypes
from meshwright.errors import ArgumentError, ShapeError
from meshwright.lax import fori_loop
from meshwright.numpy import linalg
from meshwright.numpy.arithmetic import sqrt
from meshwright.numpy.creation import arange, zeros_like
from meshwright.numpy.linalg.operands import inexact_operands, square
from meshwright.numpy.logic import where
from meshwright.numpy.ranges import diag, eye
from meshwright.numpy.reductions import all as all_of
from meshwright.scipy.linalg.decompositions import schur
from meshwright.transforms.autodiff import jvp


def _by_superdiagonals(t: Any, first: Any, entries: Callable[[Any], Any]) -> Any:
    """The triangular matrix with diagonal ``first``; ``entries(f)`` computes the next superdiagonal from the others."""
    n = t.shape[-1]
    offset = arange(n)[None, :] - arange(n)[:, None]
    return fori_loop(1, n, lambda d, f: where(offset == d, entries(f), f), diag(first))


def sqrtm(A: Any, blocksize: int = 1) -> Any:
    """The principal square root of a square matrix, complex.

    Args:
      A: shape (n, n).
      blocksize: must be 1.

    Raises:
      ArgumentError: another ``blocksize``.
      ShapeError: ``A`` is not a square matrix.

    >>> sqrtm(np.array([[4.0, 0.0], [0.0, 9.0]])).real.tolist()
    [[2.0, 0.0], [0.0, 3.0]]
    """
    if blocksize > 1:
        raise ArgumentError(f"sqrtm: blocks are not supported; leave blocksize at 1, not {blocksize}")
    t, z = schur(square("sqrtm", A), "complex")
    roots = sqrt(diag(t))
    sums = roots[:, None] + roots[None, :]
    safe = where(sums == 0, 1, sums)
    f = _by_superdiagonals(t, roots, lambda f: (t - f @ f) / safe)
    return z @ f @ z.T.conj()


def funm(A: Any, func: Callable[[Any], Any], disp: bool = True) -> Any:
    """Apply an elementwise function to a square matrix with distinct eigenvalues, as a matrix function.

    Args:
      A: shape (n, n).
      func: an elementwise function of arrays.
      disp: if False, also return an estimate of the relative error, in the 1-norm.

    Raises:
      ShapeError: ``A`` is not a square matrix.

    >>> funm(np.array([[1.0, 0.0], [0.0, 2.0]]), lambda x: x**2).real.tolist()
    [[1.0, 0.0], [0.0, 4.0]]
    """
    a = square("funm", A)
    t, z = schur(a, "complex")
    values = diag(t)
    gaps = values[None, :] - values[:, None]
    tiny = float(ml_dtypes.finfo(dtypes.real_of(t.dtype)).eps)
    safe = where(abs(gaps) <= tiny * abs(values[None, :]), tiny, gaps)
    f = _by_superdiagonals(t, func(values), lambda f: (t @ f - f @ t) / safe)
    result = z @ f @ z.T.conj()
    if not dtypes.is_complex(a.dtype):
        result = where(
            all_of(abs(result.imag) <= 1000 * tiny * (1 + abs(result).max())), result.real.astype(result.dtype), result
        )
    if disp:
        return result
    off = abs(gaps + eye(a.shape[-1], dtype=gaps.dtype)).min()
    size = linalg.norm(t, 1)
    error = where(off < tiny, 1.0, tiny * size / off)
    return result, where(error > 1, 1.0, error)


def expm_frechet(A: Any, E: Any, *, method: str | None = None, compute_expm: bool = True) -> Any:
    """``(expm(A), L)``, where L is the derivative of the matrix exponential at A in direction E; or L alone.

    Args:
      A, E: shape (..., n, n).
      method: has no effect.
      compute_expm: whether to return ``expm(A)`` too.

    Raises:
      ShapeError: the matrices are not square, or have different shapes.

    >>> expm_frechet(np.zeros((2, 2)), np.eye(2), compute_expm=False).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    a, e = inexact_operands("expm_frechet", A, E)
    if a.shape != e.shape:
        raise ShapeError(f"expm_frechet: A and E must have one shape, got {a.shape} and {e.shape}")
    value, slope = jvp(linalg.expm, (a,), (e,))
    return (value, slope) if compute_expm else slope


def solve_sylvester(A: Any, B: Any, C: Any, *, method: str = "schur", tol: float = 1e-8) -> Any:
    """Solve Sylvester's equation ``A X + X B = C`` for ``X``.

    Args:
      A: shape (m, m).
      B: shape (n, n).
      C: shape (m, n).
      method: ``schur``, or ``eigen``, for diagonalizable matrices.
      tol: has no effect.

    Raises:
      ShapeError: the shapes do not fit each other.
      ArgumentError: another ``method``.

    >>> solve_sylvester(np.array([[2.0]]), np.array([[3.0]]), np.array([[10.0]])).tolist()
    [[2.0]]
    """
    a, b, c = inexact_operands("solve_sylvester", A, B, C)
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != a.shape[1] or b.shape[0] != b.shape[1]:
        raise ShapeError(f"solve_sylvester: A and B must be square matrices, got shapes {a.shape} and {b.shape}")
    if c.shape != (a.shape[0], b.shape[0]):
        raise ShapeError(f"solve_sylvester: C has shape {c.shape}, expected {(a.shape[0], b.shape[0])}")
    if method not in ("schur", "eigen"):
        raise ArgumentError(f"solve_sylvester: method must be schur or eigen, got {method!r}")
    real = not dtypes.is_complex(c.dtype)
    if method == "eigen":
        (p, u), (q, v) = linalg.eig(a), linalg.eig(b)
        inner = linalg.solve(u, c.astype(u.dtype)) @ v / (p[:, None] + q[None, :])
        x = u @ inner @ linalg.inv(v)
        return x.real if real else x
    (r, u), (s, v) = schur(a, "complex"), schur(b, "complex")
    right = u.T.conj() @ c.astype(u.dtype) @ v
    unit = eye(a.shape[0], dtype=r.dtype)

    def column(k: Any, y: Any) -> Any:
        known = right[:, k] - y @ s[:, k]
        return y.at[:, k].set(linalg.solve_triangular(r + s[k, k] * unit, known))

    x = u @ fori_loop(0, b.shape[0], column, zeros_like(right)) @ v.T.conj()
    return x.real if real else x
