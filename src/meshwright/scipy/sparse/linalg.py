"""Iterative solvers of linear systems on pytrees of arrays (``scipy.sparse.linalg``).

They only need products with the matrix. The Krylov methods are conjugate gradients (Hestenes and Stiefel 1952),
BiCGSTAB (van der Vorst 1992) and restarted GMRES (Saad and Schultz 1986). Derivatives are solutions of other systems
(``lax.custom_linear_solve``), independent of the steps taken.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from meshwright.core import dtypes, pytree
from meshwright.errors import ArgumentError, ArgumentTypeError, ShapeError
from meshwright.flatten_util import ravel_pytree
from meshwright.ir.tracing import typeof
from meshwright.lax import custom_linear_solve, fori_loop, while_loop
from meshwright.numpy import asarray, isnan, sqrt, vdot, where, zeros, zeros_like
from meshwright.numpy.linalg import lstsq, norm

Product = Callable[[Any], Any]


def _product(matrix: Any, name: str) -> Product:
    """The function that multiplies by a matrix, which is given as a function or an array."""
    if callable(matrix):
        return matrix
    aval = typeof(matrix)
    if aval.ndim != 2 or aval.shape[0] != aval.shape[1]:
        raise ShapeError(f"{name}: A must be a function or a square matrix, got {aval}")
    return lambda x: matrix @ x


def _real_dot(x: Any, y: Any) -> Any:
    return vdot(x, y).real


def _cg(apply: Product, b: Any, x0: Any, tol: Any, atol: Any, maxiter: int, precondition: Product) -> Any:
    """Conjugate gradients on vectors."""
    least = _bound(b, tol, atol)

    def going(state: Any) -> Any:
        _, r, _, _, k = state
        return (_real_dot(r, r) > least) & (k < maxiter)

    def step(state: Any) -> Any:
        x, r, gamma, p, k = state
        product = apply(p)
        alpha = gamma / _real_dot(p, product)
        x, r = x + alpha * p, r - alpha * product
        z = precondition(r)
        new = _real_dot(r, z)
        return x, r, new, z + (new / gamma) * p, k + 1

    r = b - apply(x0)
    p = precondition(r)
    return while_loop(going, step, (x0, r, _real_dot(r, p), p, 0))[0]


def _bound(b: Any, tol: Any, atol: Any) -> Any:
    """The square of the residual's norm at which to stop."""
    square = _real_dot(b, b)
    least = where(square * tol**2 > atol**2, square * tol**2, atol**2)
    return least.astype(square.dtype)


def _bicgstab(apply: Product, b: Any, x0: Any, tol: Any, atol: Any, maxiter: int, precondition: Product) -> Any:
    """BiCGSTAB on vectors. ``k`` becomes negative where the method breaks down."""
    least = _bound(b, tol, atol)

    def going(state: Any) -> Any:
        r, k = state[1], state[-1]
        return (_real_dot(r, r) > least) & (k < maxiter) & (k >= 0)

    def step(state: Any) -> Any:
        x, r, shadow, alpha, omega, rho, p, q, k = state
        new = vdot(shadow, r)
        p = r + (new / rho * alpha / omega) * (p - omega * q)
        direction = precondition(p)
        q = apply(direction)
        alpha = new / vdot(shadow, q)
        s = r - alpha * q
        early = _real_dot(s, s) < least
        second = precondition(s)
        t = apply(second)
        omega = vdot(t, s) / vdot(t, t)
        x = where(early, x + alpha * direction, x + alpha * direction + omega * second)
        r = where(early, s, s - omega * t)
        broken = (new == 0) | (~early & ((omega == 0) | (alpha == 0)))
        return x, r, shadow, alpha, omega, new, p, q, where(broken, -1, k + 1)

    r = b - apply(x0)
    one = asarray(1, r.dtype)
    return while_loop(going, step, (x0, r, r, one, one, one, zeros_like(r), zeros_like(r), 0))[0]


def _gmres(
    apply: Product, b: Any, x0: Any, tol: Any, atol: Any, maxiter: int, precondition: Product, restart: int
) -> Any:
    """Restarted GMRES on vectors, preconditioned from the left; each round is a least squares problem."""
    # The preconditioner is on the left, so the criterion applies to the preconditioned residual.
    scaled = precondition(b)
    least = sqrt(_bound(b, tol, atol)) * where(norm(b) > 0, norm(scaled) / norm(b), 1.0)
    n = min(restart, typeof(b).size)

    def round_(state: Any) -> Any:
        x, r, size, k = state
        basis = zeros((n + 1, typeof(b).size), r.dtype).at[0].set(r / where(size > 0, size, 1))
        rows = zeros((n + 1, n), r.dtype)
        basis, rows = fori_loop(0, n, _arnoldi, (basis, rows))
        goal = zeros(n + 1, r.dtype).at[0].set(size.astype(r.dtype))
        x = x + lstsq(rows, goal)[0] @ basis[:n]
        r = precondition(b - apply(x))
        return x, r, norm(r), k + 1

    def _arnoldi(j: Any, state: Any) -> Any:
        basis, rows = state
        v = precondition(apply(basis[j]))
        weights = zeros(n + 1, v.dtype)
        for _ in range(2):  # twice is enough (Giraud and Langou)
            projection = basis.conj() @ v
            v, weights = v - projection @ basis, weights + projection
        size = norm(v)
        small = size <= np.finfo(typeof(size).dtype).eps * norm(weights)
        unit = where(small, 0, v / where(small, 1, size))
        weights = weights.at[j + 1].set(where(small, 0, size).astype(v.dtype))
        return basis.at[j + 1].set(unit), rows.at[:, j].set(weights)

    r = precondition(b - apply(x0))
    start = (x0, r, norm(r), 0)
    return while_loop(lambda s: (s[2] > least) & (s[3] < maxiter), round_, start)[0]


def _solved(
    name: str, method: Callable[..., Any], matrix: Any, b: Any, x0: Any, tol: Any, atol: Any, maxiter: Any,
    preconditioner: Any, symmetric: bool,
) -> tuple[Any, None]:  # fmt: skip
    """Apply ``method`` to the leaves of ``b`` as one vector.

    Raises:
      ArgumentTypeError: ``x0`` and ``b`` have different tree structures.
      ShapeError: they have different shapes.
    """
    start = pytree.map(zeros_like, b) if x0 is None else x0
    if pytree.structure(start) != pytree.structure(b):
        raise ArgumentTypeError(f"{name}: x0 and b must be trees of one structure")
    shapes = [[typeof(v).shape for v in pytree.leaves(t)] for t in (start, b)]
    if shapes[0] != shapes[1]:
        raise ShapeError(f"{name}: arrays in x0 and b must have equal shapes, got {shapes[0]} and {shapes[1]}")
    vector, back = ravel_pytree(pytree.map(_inexact, b))
    first = ravel_pytree(pytree.map(_inexact, start))[0].astype(vector.dtype)
    product, precondition = (
        (lambda v, f=f: ravel_pytree(f(back(v)))[0]) for f in (_product(matrix, name), preconditioner or (lambda v: v))
    )
    steps = 10 * vector.size if maxiter is None else int(maxiter)

    def solve(apply: Product, rhs: Any, condition: Product = precondition) -> Any:
        return method(apply, rhs, first, tol, atol, steps, condition)

    solution = custom_linear_solve(product, vector, solve, solve, symmetric)
    return back(solution), None


def _inexact(x: Any) -> Any:
    x = asarray(x)
    return x if dtypes.is_inexact(x.dtype) else x.astype(dtypes.default_float())


def cg(
    A: Any, b: Any, x0: Any = None, *, tol: Any = 1e-5, atol: Any = 0.0, maxiter: int | None = None, M: Any = None
) -> tuple[Any, None]:
    """Solve ``A x = b`` for Hermitian positive definite ``A``, by conjugate gradients; returns ``(x, None)``.

    Args:
      A: a linear function from pytrees like ``b`` to such pytrees, or a matrix.
      b: an array or a pytree of arrays.
      x0: the starting point, by default zeros.
      tol, atol: stop when the residual's norm is at most ``max(tol * norm(b), atol)``.
      maxiter: the maximum number of steps, by default 10 times the number of unknowns.
      M: the preconditioner: a function that approximates the inverse of ``A``, Hermitian and positive definite.

    Raises:
      ShapeError, ArgumentTypeError: the arguments do not fit each other.

    >>> cg(np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([5.0, 4.0]))[0].round(4).tolist()
    [1.0, 1.0]
    """
    return _solved("cg", _cg, A, b, x0, tol, atol, maxiter, M, True)


def bicgstab(
    A: Any, b: Any, x0: Any = None, *, tol: Any = 1e-5, atol: Any = 0.0, maxiter: int | None = None, M: Any = None
) -> tuple[Any, None]:
    """Solve ``A x = b`` for any square ``A``, by BiCGSTAB; returns ``(x, None)``. Arguments are those of :func:`cg`.

    Raises:
      ShapeError, ArgumentTypeError: the arguments do not fit each other.

    >>> bicgstab(np.array([[4.0, 1.0], [2.0, 3.0]]), np.array([5.0, 5.0]))[0].round(4).tolist()
    [1.0, 1.0]
    """
    return _solved("bicgstab", _bicgstab, A, b, x0, tol, atol, maxiter, M, False)


def gmres(
    A: Any, b: Any, x0: Any = None, *, tol: Any = 1e-5, atol: Any = 0.0, restart: int = 20, maxiter: int | None = None,
    M: Any = None, solve_method: str = "batched",
) -> tuple[Any, Any]:  # fmt: skip
    """Solve ``A x = b`` for any square ``A``, by restarted GMRES; returns ``(x, info)``.

    ``info`` is 0, or -1 if ``x`` is NaN. Other arguments are those of :func:`cg`.

    Args:
      restart: the number of products per round; more need more memory.
      maxiter: the maximum number of rounds.
      solve_method: ``"batched"`` or ``"incremental"``, which are the same here.

    Raises:
      ArgumentError: another method.
      ShapeError, ArgumentTypeError: the arguments do not fit each other.

    >>> gmres(np.array([[4.0, 1.0], [2.0, 3.0]]), np.array([5.0, 5.0]))[0].round(4).tolist()
    [1.0, 1.0]
    """
    if solve_method not in ("batched", "incremental"):
        raise ArgumentError(f"gmres: solve_method must be 'batched' or 'incremental', got {solve_method!r}")
    method = partial(_gmres, restart=int(restart))
    x, _ = _solved("gmres", method, A, b, x0, tol, atol, maxiter, M, False)
    return x, where(isnan(norm(ravel_pytree(x)[0])), -1, 0)


__all__ = ["bicgstab", "cg", "gmres"]
