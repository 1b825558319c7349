"""``jax.experimental.sparse.linalg``: eigenvectors of a matrix of which only products with vectors are known."""

from __future__ import annotations

from typing import Any

import meshwright.numpy as mnp
from meshwright import lax
from meshwright.core.absent import absent as _absent
from meshwright.core.expected import as_integer
from meshwright.errors import DTypeError, ShapeError
from meshwright.experimental.sparse.formats import BCSR
from meshwright.ir.tracing import typeof

__all__ = ["lobpcg_standard", "spsolve"]

__getattr__ = _absent("experimental.sparse.linalg")


def spsolve(data: Any, indices: Any, indptr: Any, b: Any, tol: float = 1e-6, reorder: int = 1) -> Any:
    """The solution of a linear system with a sparse matrix by rows, as an array like ``b``, shape (n,).

    The matrix is made dense, and takes n * n elements: there is no sparse factorization here. ``tol`` and ``reorder``,
    of factorizations on GPUs, have no effect.

    Raises:
      ShapeError: the arrays do not fit.

    Example:
      >>> from meshwright.experimental.sparse.linalg import spsolve
      >>> spsolve(mnp.array([2.0, 4.0]), mnp.array([0, 1]), mnp.array([0, 1, 2]), mnp.array([2.0, 2.0]))
      Array([1. , 0.5], dtype=float32)
    """
    right = mnp.asarray(b)
    if right.ndim != 1:
        raise ShapeError(f"spsolve: b must have one dimension, got {typeof(right)}")
    n = right.shape[0]
    return mnp.linalg.solve(BCSR((data, indices, indptr), shape=(n, n)).todense(), right)


def lobpcg_standard(A: Any, X: Any, m: int = 100, tol: Any = None) -> tuple[Any, Any, Any]:
    """The largest eigenvalues of a Hermitian matrix, and their eigenvectors, by block conjugate gradients.

    A step takes the best vectors in the span of the present ones, their residuals and their last changes (Knyazev,
    "Toward the optimal preconditioned eigensolver", 2001). The basis of that span is kept orthonormal, without which
    the method breaks down as residuals become small (Duersch et al., "A robust and efficient implementation of
    LOBPCG", 2018). Over a mesh, products are split as ``A`` is; the ``3 * k`` vectors of the basis are gathered.

    Args:
      A: a Hermitian matrix, shape (n, n), or a function that multiplies it by matrices of shape (n, j).
      X: linearly independent vectors to start from, shape (n, k), with ``3 * k <= n``.
      m: the largest number of steps.
      tol: the residual ``norm(A @ x - theta * x)`` at which a vector is taken as found, as a part of
        ``10 * n * (norm(A @ x) + abs(theta))``; the precision of the dtype if None.

    Returns:
      The eigenvalues, shape (k,), largest first; orthonormal eigenvectors, shape (n, k); and the number of steps.

    Raises:
      ShapeError: ``X`` is not such a matrix, or a product with ``A`` has not the shape of the other factor.
      DTypeError: ``X`` is not of floating point or complex numbers.

    Example:
      >>> from meshwright.experimental.sparse.linalg import lobpcg_standard
      >>> matrix, start = jnp.diag(jnp.arange(1.0, 13.0)), jnp.eye(12, 2) + 0.1
      >>> lobpcg_standard(matrix, start)[0].round(3).tolist()
      [12.0, 11.0]
    """
    start = mnp.asarray(X)
    if start.ndim != 2 or not 1 <= start.shape[1] <= start.shape[0] // 3:
        raise ShapeError(f"lobpcg_standard: X must have shape (n, k) with 1 <= k <= n / 3, got {typeof(start)}")
    if not mnp.issubdtype(start.dtype, mnp.inexact):
        raise DTypeError(f"lobpcg_standard: X must be of floating point numbers, got {typeof(start)}; use .astype")
    size, count = start.shape
    most = as_integer("lobpcg_standard: m", m)
    precision = mnp.finfo(start.dtype).eps if tol is None else tol

    def product(vectors: Any) -> Any:
        out = A(vectors) if callable(A) else A @ vectors
        if typeof(out).shape != typeof(vectors).shape:
            raise ShapeError(
                f"lobpcg_standard: the product of A and {typeof(vectors)} must have its shape, got {typeof(out)}"
            )
        return out.astype(start.dtype)

    def best(basis: Any) -> tuple[Any, Any, Any, Any]:
        """The best vectors in the span of an orthonormal basis: eigenvalues, coordinates, vectors and products."""
        images = product(basis)
        projected = basis.conj().T @ images
        values, vectors = mnp.linalg.eigh((projected + projected.conj().T) / 2)
        chosen = vectors[:, : -count - 1 : -1]
        return values[: -count - 1 : -1], chosen, basis @ chosen, images @ chosen

    def missing(theta: Any, x: Any, image: Any) -> tuple[Any, Any]:
        """Residuals, and whether some are too large still."""
        residual = image - x * theta
        scale = 10 * size * (mnp.linalg.norm(image, axis=0) + mnp.abs(theta))
        return residual, (mnp.linalg.norm(residual, axis=0) > precision * scale).any()

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        i, _, x, change, residual, _ = state
        basis, _ = mnp.linalg.qr(mnp.concatenate([x, residual, change], axis=1))
        theta, chosen, x, image = best(basis)
        return i + 1, theta, x, basis[:, count:] @ chosen[count:], *missing(theta, x, image)

    theta, _, x, image = best(mnp.linalg.qr(start)[0])
    state = (mnp.int32(0), theta, x, mnp.zeros_like(x), *missing(theta, x, image))
    steps, theta, x, *_ = lax.while_loop(lambda s: (s[0] < most) & s[-1], step, state)
    return theta, x, steps
