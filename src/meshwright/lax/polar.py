"""``meshwright.lax.linalg.qdwh``: the polar decomposition by QR-based dynamically weighted Halley iterations.

Nakatsukasa, Bai and Gygi 2010, "Optimizing Halley's iteration for computing the matrix polar decomposition". It needs
only products and QR and Cholesky factors. Six steps bring all singular values between the dtype's precision and 1 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from meshwright.api.control_flow import while_loop
from meshwright.core import dtypes
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import abs_, convert, scalar_like, select, sqrt
from meshwright.ops.linalg.cholesky import cholesky
from meshwright.ops.linalg.matrices import adjoint, eye, hermitian, matmul, plus_identity
from meshwright.ops.linalg.qr import qr
from meshwright.ops.linalg.triangular_solve import triangular_solve
from meshwright.ops.reduce.reductions import reduce_max
from meshwright.ops.shape.broadcast_reduce import reduce_sum
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim


def _weights(eps: float, most: int) -> Iterator[tuple[float, float, float]]:
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


def _by_qr(u: Any, a: float, b: float, c: float) -> Any:
    """One step, in a form that is stable for large weights."""
    m, n = typeof(u).shape
    q, _ = qr(concatenate([math.sqrt(c) * u, eye(n, n, typeof(u).dtype)], 0), full_matrices=False)
    top, bottom = slice_in_dim(q, 0, m), slice_in_dim(q, m, m + n)
    return (b / c) * u + ((a - b / c) / math.sqrt(c)) * matmul(top, adjoint(bottom))


def _by_cholesky(u: Any, a: float, b: float, c: float) -> Any:
    """One step with half the arithmetic."""
    factor = cholesky(plus_identity(c * matmul(adjoint(u), u)))
    right = triangular_solve(factor, adjoint(u), left_side=True, lower=True)
    right = triangular_solve(factor, right, left_side=True, lower=True, transpose_a=True, conjugate_a=True)
    return (b / c) * u + (a - b / c) * adjoint(right)


def _size(x: Any) -> Any:
    """The Frobenius norm."""
    return sqrt(reduce_sum(abs_(x) * abs_(x), (0, 1)))


def _counted(count: Any, step: tuple[Any, Any]) -> tuple[Any, Any, Any]:
    return step[0], count + 1, step[1]


def qdwh(
    x: Any, *, is_hermitian: bool = False, max_iterations: int | None = None, eps: float | None = None
) -> tuple[Any, Any, Any, Any]:
    """The polar decomposition ``x = u h`` with orthonormal columns ``u`` and positive semidefinite ``h``.

    Args:
      x: shape (m, n), m >= n.
      is_hermitian: ``x`` is Hermitian; ``u`` is then exactly Hermitian too.
      max_iterations: the maximum number of steps, by default 10.
      eps: the precision to reach, by default that of the dtype.

    Returns:
      ``u`` (m, n), ``h`` (n, n), the number of steps, and whether the iteration converged.

    Raises:
      ShapeError: not a matrix, or one with more columns than rows. DTypeError: neither floating-point nor complex.

    Example:
      >>> u, h, steps, converged = lax.linalg.qdwh(mnp.array([[0.0, 2.0], [-3.0, 0.0]]))
      >>> u.round(4).tolist(), abs(h.round(4)).tolist(), bool(converged)
      ([[0.0, 1.0], [-1.0, 0.0]], [[3.0, 0.0], [0.0, 2.0]], True)
    """
    aval = typeof(x)
    if aval.ndim != 2 or aval.shape[0] < aval.shape[1]:
        raise ShapeError(f"qdwh: expected a matrix with no more columns than rows, got {aval}; transpose it")
    if not dtypes.is_inexact(aval.dtype):
        raise DTypeError(f"qdwh: expected floating-point or complex numbers, got {aval}; convert with .astype")
    precision = float(ml_dtypes.finfo(dtypes.real_of(aval.dtype)).eps)
    eps = precision if eps is None else eps
    sums = [reduce_max(reduce_sum(abs_(x), (d,)), (0,)) for d in (0, 1)]
    bound = sqrt(sums[0] * sums[1])
    u = x / convert(select(bound > 0, bound, scalar_like(1, bound)), aval.dtype)
    most = 10 if max_iterations is None else max_iterations
    near = float(np.cbrt(5 * eps))

    def improved(u: Any, a: float, b: float, c: float) -> tuple[Any, Any]:
        new = (_by_qr if c > 100 else _by_cholesky)(u, a, b, c)
        new = 0.5 * hermitian(new) if is_hermitian else new
        return new, _size(new - u) <= near * _size(new)

    steps, converged = 0, np.False_
    for weights in _weights(eps, most):
        u, converged = improved(u, *weights)
        steps += 1
    # Singular values below the precision need a few more steps, of the unweighted Halley iteration.
    u, count, converged = while_loop(
        lambda state: (state[1] < most) & ~state[2],
        lambda state: _counted(state[1], improved(state[0], 3.0, 1.0, 3.0)),
        (u, np.int32(steps), converged),
    )
    # One Newton-Schulz step restores the digits lost to rounding.
    u = 1.5 * u - 0.5 * matmul(u, matmul(adjoint(u), u))
    u = 0.5 * hermitian(u) if is_hermitian else u
    return u, 0.5 * hermitian(matmul(adjoint(u), x)), count, converged
