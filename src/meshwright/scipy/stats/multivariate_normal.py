"""The multivariate normal distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshwright.errors import ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.creation import asarray
from meshwright.numpy.functions import exp, log
from meshwright.numpy.linalg import cholesky, diagonal, solve_triangular
from meshwright.numpy.linalg.operands import inexact_operands
from meshwright.numpy.manipulation import broadcast_to
from meshwright.numpy.promotion import broadcast_shapes
from meshwright.numpy.reductions import sum as sum_of


def logpdf(x: Any, mean: Any, cov: Any, allow_singular: None = None) -> Any:
    """The logarithm of the density.

    Args:
      x: shape (..., n).
      mean: shape (..., n), or a number. If ``cov`` is a number too, the distribution has one variable, and all elements
        of ``x`` are values of it.
      cov: shape (..., n, n), positive definite; or a number, for independent variables with equal variances.
      allow_singular: not supported; must be None.

    Raises:
      ShapeError: ``cov`` does not consist of square matrices of the size of ``x``'s last dimension.

    >>> round(logpdf(np.array([0.5, 1.0]), np.zeros(2), np.eye(2)).item(), 4)
    -2.4629
    """
    operands = inexact_operands("multivariate_normal.logpdf", x, mean, cov, kernels=False)
    x, mean, cov = map(asarray, operands)
    gap = x - mean
    if not mean.shape and not cov.shape:  # of one variable, for each value
        return -0.5 * (gap * gap / cov + log(2 * np.pi * cov))
    n = gap.shape[-1]
    if not cov.shape:
        return -0.5 * (sum_of(gap * gap, -1) / cov + n * log(2 * np.pi * cov))
    if cov.ndim < 2 or cov.shape[-2:] != (n, n):
        raise ShapeError(f"multivariate_normal.logpdf: cov must have shape (..., {n}, {n}), got {typeof(cov)}")
    factor = cholesky(cov)
    lead = broadcast_shapes(gap.shape[:-1], factor.shape[:-2])
    gap = broadcast_to(gap, (*lead, n))
    if factor.ndim == 2:
        white = solve_triangular(factor, gap.reshape(-1, n).T, lower=True).T.reshape(*lead, n)
    else:
        white = solve_triangular(broadcast_to(factor, (*lead, n, n)), gap[..., None], lower=True)[..., 0]
    size = sum_of(log(diagonal(factor)), -1)
    return -0.5 * sum_of(white * white, -1) - n / 2 * math.log(2 * np.pi) - size


def pdf(x: Any, mean: Any, cov: Any) -> Any:
    """The density; arguments as for :func:`logpdf`.

    >>> round(pdf(np.array([0.5, 1.0]), np.zeros(2), np.eye(2)).item(), 4)
    0.0852
    """
    return exp(logpdf(x, mean, cov))
