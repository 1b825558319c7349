"""``meshwright.lax.linalg.qdwh``: the polar decomposition by QR-based dynamically weighted Halley iterations.

Nakatsukasa, Bai and Gygi 2010, "Optimizing Halley's iteration for computing the matrix polar decomposition". It needs
only products and QR and Cholesky factors. Six steps bring all singular values between the dtype's precision and 1 to 1.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from meshwright.api.control_flow import while_loop
from meshwright.core import dtypes
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import abs_, sqrt
from meshwright.ops.linalg.matrices import adjoint, hermitian, matmul
from meshwright.ops.linalg.polar import halley, scaled, weights
from meshwright.ops.shape.broadcast_reduce import reduce_sum


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
    u, _ = scaled(x)
    most = 10 if max_iterations is None else max_iterations
    near = float(np.cbrt(5 * eps))

    def improved(u: Any, a: float, b: float, c: float) -> tuple[Any, Any]:
        new = halley(u, a, b, c)
        new = 0.5 * hermitian(new) if is_hermitian else new
        return new, _size(new - u) <= near * _size(new)

    steps, converged = 0, np.False_
    for step in weights(eps, most):
        u, converged = improved(u, *step)
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
