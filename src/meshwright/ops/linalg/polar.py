"""Polar decompositions by Halley's iteration, and singular values by them: products and triangular solves alone, for
hardware without a library for singular values.

The weighted iteration is that of Nakatsukasa, Bai and Gygi 2010, "Optimizing Halley's iteration for computing the
matrix polar decomposition"; singular values from polar factors are from Nakatsukasa and Higham 2013, "Stable and
efficient spectral divide and conquer algorithms for the symmetric eigenvalue decomposition and the SVD".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from meshwright.core import dtypes
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import abs_, convert, max_, mul, scalar_like, select, sqrt
from meshwright.ops.linalg.cholesky import cholesky
from meshwright.ops.linalg.eigh import eigh
from meshwright.ops.linalg.matrices import (
    adjoint,
    along_rows,
    diagonal,
    eye,
    hermitian,
    matmul,
    plus_identity,
)
from meshwright.ops.linalg.qr import qr
from meshwright.ops.linalg.triangular_solve import triangular_solve
from meshwright.ops.reduce.reductions import reduce_max
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, match_shape, reduce_sum
from meshwright.ops.shape.rearrange import rev
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim

#: the weight from which a step is done by the form that is stable for large ones
_LARGE = 100


def weights(eps: float, most: int) -> Iterator[tuple[float, float, float]]:
    """The coefficients of each step for singular values from ``eps`` to 1; they do not depend on the matrix."""
    low = eps
    for _ in range(most):
        d = float(np.cbrt(4 * (1 / low**2 - 1) / low**2))
        root = math.sqrt(1 + d)
        a = root + math.sqrt(8 - 4 * d + 8 * (2 - low**2) / (low**2 * root)) / 2
        b = (a - 1) ** 2 / 4
        c = a + b - 1
        yield a, b, c
        low = low * (a + b * low**2) / (1 + c * low**2)
        if abs(low - 1) <= 5 * eps:
            return


def halley(u: Any, a: float, b: float, c: float) -> Any:
    """One step, ``u (a + b u^H u) (1 + c u^H u)^-1``, of matrices (..., m, n)."""
    return (_by_qr if c > _LARGE else _by_cholesky)(u, a, b, c)


def _by_qr(u: Any, a: float, b: float, c: float) -> Any:
    aval = typeof(u)
    *lead, m, n = aval.shape
    one = broadcast_in_dim(eye(n, n, aval.dtype), (*lead, n, n), (len(lead), len(lead) + 1))
    rows = len(lead)
    q, _ = qr(concatenate([math.sqrt(c) * u, one], rows), full_matrices=False)
    top, bottom = slice_in_dim(q, 0, m, axis=rows), slice_in_dim(q, m, m + n, axis=rows)
    return (b / c) * u + ((a - b / c) / math.sqrt(c)) * matmul(top, adjoint(bottom))


def _by_cholesky(u: Any, a: float, b: float, c: float) -> Any:
    """With half the arithmetic."""
    factor = cholesky(plus_identity(c * matmul(adjoint(u), u)))
    right = triangular_solve(factor, adjoint(u), left_side=True, lower=True)
    right = triangular_solve(factor, right, left_side=True, lower=True, transpose_a=True, conjugate_a=True)
    return (b / c) * u + (a - b / c) * adjoint(right)


def scaled(x: Any) -> tuple[Any, Any]:
    """Matrices divided by a bound of their largest singular values, and the bounds (...); zero ones as they are."""
    ndim = typeof(x).ndim
    sums = [reduce_max(reduce_sum(abs_(x), (d,)), (ndim - 2,)) for d in (ndim - 1, ndim - 2)]
    bound = mul(sqrt(sums[0]), sqrt(sums[1]))  # whose product may be infinite
    bound = select(bound > 0, bound, scalar_like(1, bound))
    whole = broadcast_in_dim(bound, typeof(x).shape, range(ndim - 2))
    return x / convert(whole, typeof(x).dtype), bound


def singular_values(a: Any, *, compute_uv: bool = True, full_matrices: bool = False) -> list[Any]:
    """The singular value decompositions ``[s, u, vh]`` of matrices (..., m, n), or ``[s]``.

    A polar factor turns ``a`` into a Hermitian matrix, whose eigenvalues are the singular values.
    """
    *_, m, n = typeof(a).shape
    if m < n:
        s, *vectors = singular_values(adjoint(a), compute_uv=compute_uv, full_matrices=full_matrices)
        return [s, *(adjoint(v) for v in reversed(vectors))]
    rows = typeof(a).ndim - 2
    small, bound = scaled(a)
    outer = None
    if m > n:
        outer, small = qr(small, full_matrices=full_matrices)
        small = slice_in_dim(small, 0, n, axis=rows)
    u = small
    eps = float(ml_dtypes.finfo(dtypes.real_of(typeof(a).dtype)).eps)
    for step in weights(eps, 10):
        u = halley(u, *step)
    vectors, values = eigh(0.5 * hermitian(matmul(adjoint(u), small)))
    last = typeof(values).ndim - 1
    descending = rev(max_(values, scalar_like(0, values)), (last,))
    s = mul(descending, broadcast_in_dim(bound, typeof(values).shape, range(last)))
    if not compute_uv:
        return [s]
    v = rev(vectors, (rows + 1,))
    left = _orthonormal(matmul(u, v))
    if outer is not None:
        inner, rest = (slice_in_dim(outer, i, j, axis=rows + 1) for i, j in ((0, n), (n, typeof(outer).shape[-1])))
        left = concatenate([matmul(inner, left), rest], rows + 1)
    return [s, left, adjoint(v)]


def _orthonormal(x: Any) -> Any:
    """``x`` with orthonormal columns: those that are so already stay, others follow these in any direction. Columns of
    singular values below the precision are not orthonormal."""
    q, r = qr(x, full_matrices=False)
    pivot = diagonal(r)
    aval = typeof(pivot)
    pivot = select(abs_(pivot) > 0, pivot, match_shape(np.ones((), aval.dtype), aval))
    return mul(q, along_rows(pivot / convert(abs_(pivot), aval.dtype), typeof(q).shape[-2]))
