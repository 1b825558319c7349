"""Multivariate normal vectors and random orthogonal matrices, from normals and a decomposition, as in JAX."""

from __future__ import annotations

from typing import Any

from meshwright.core import dtypes
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.arithmetic import add, divide, multiply
from meshwright.numpy.axes import normal_shape, static_int
from meshwright.numpy.creation import asarray
from meshwright.numpy.linalg import cholesky, diagonal, eigh, qr, svd
from meshwright.numpy.linear import matmul
from meshwright.numpy.manipulation import expand_dims, matrix_transpose
from meshwright.numpy.out_sharding import placed
from meshwright.numpy.promotion import converted, inexact, promotes_freely, result_type
from meshwright.ops.elementwise import table as ops
from meshwright.random.continuous import normal
from meshwright.random.drawing import drawn
from meshwright.random.parameters import Shape, draw_shape, float_dtype


def _factor(cov: Any, method: str) -> Any:
    """``l`` with ``l l^T = cov``."""
    if method == "cholesky":
        return cholesky(cov)
    if method == "eigh":
        values, vectors = eigh(cov)
    else:
        vectors, values, _ = svd(cov)
    return multiply(vectors, expand_dims(ops.sqrt(values), -2))


@placed
@drawn
@promotes_freely("mean", "cov", ranks=False)
def multivariate_normal(
    key: Any, mean: Any, cov: Any, shape: Shape | None = None, dtype: Any = None, method: str = "cholesky"
) -> Any:
    """Draw normal vectors with the given mean and covariance.

    Args:
      mean: shape (..., n).
      cov: shape (..., n, n), positive definite (semidefinite with ``"svd"`` and ``"eigh"``).
      shape: the shape of the result without n; by default, the leading dimensions of ``mean`` and ``cov``, broadcast.
      method: the decomposition of the covariance: ``"cholesky"`` (fastest), ``"eigh"`` or ``"svd"``.

    Returns:
      an array of shape (*shape, n); NaN with ``"cholesky"`` where a covariance is not positive definite.

    Raises:
      ArgumentError: an unknown method.
      ShapeError: ``cov`` does not fit ``mean``, or they do not broadcast to ``shape``.

    >>> multivariate_normal(PRNGKey(0), np.zeros(2), np.eye(2), (3,)).shape
    (3, 2)
    """
    if method not in ("cholesky", "eigh", "svd"):
        raise ArgumentError(f"random.multivariate_normal: method must be cholesky, eigh or svd, got {method!r}")
    target = float_dtype(inexact(result_type(mean, cov)) if dtype is None else dtype, "multivariate_normal")
    mean, cov = (converted(asarray(p), target) for p in (mean, cov))
    mean_shape, cov_shape = typeof(mean).shape, typeof(cov).shape
    if not mean_shape or cov_shape[-2:] != mean_shape[-1:] * 2:
        raise ShapeError(
            "random.multivariate_normal: expected mean of shape (..., n) and cov of shape (..., n, n), got "
            f"{mean_shape} and {cov_shape}"
        )
    sizes = draw_shape("multivariate_normal", shape, mean[..., 0], cov[..., 0, 0])
    draws = expand_dims(normal(key, (*sizes, mean_shape[-1]), target), -1)
    return add(mean, matmul(_factor(cov, method), draws)[..., 0])


@placed
@drawn
def orthogonal(key: Any, n: int, shape: Shape = (), dtype: Any = None, m: int | None = None) -> Any:
    """Draw uniformly (Haar) distributed matrices with orthonormal columns, or orthonormal rows if they are wide.

    This is the Q factor of normals, with the signs of R's diagonal moved into Q (Mezzadri 2007, "How to generate random
    matrices from the classical compact groups").

    Args:
      n, m: the numbers of rows and columns; ``m`` is ``n`` by default.
      shape: leading dimensions.
      dtype: a float or complex dtype.

    Returns:
      an array of shape (*shape, n, m); unitary for a complex ``dtype``.

    Raises:
      ArgumentError: ``n`` or ``m`` is negative.
      DTypeError: ``dtype`` is neither a float nor a complex dtype.

    >>> q = orthogonal(PRNGKey(0), 3, m=2)
    >>> np.round(abs(np.asarray(q).T @ np.asarray(q)), 3).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    target = dtypes.default_float() if dtype is None else dtypes.requested(dtype, "random.orthogonal")
    if not (dtypes.is_float(target) or dtypes.is_complex(target)):
        raise DTypeError(f"random.orthogonal: dtype must be a float or complex type, got {target}")
    rows = static_int(n, "random.orthogonal", "n")
    columns = rows if m is None else static_int(m, "random.orthogonal", "m")
    if rows < 0 or columns < 0:
        raise ArgumentError(f"random.orthogonal: n and m must not be negative, got n={rows}, m={columns}")
    sizes = normal_shape(shape, "random.orthogonal")
    q, r = qr(normal(key, (*sizes, max(rows, columns), min(rows, columns)), target))
    diagonals = diagonal(r)
    q = multiply(q, expand_dims(divide(diagonals, converted(ops.abs_(diagonals), target)), -2))
    return matrix_transpose(q) if rows < columns else q
