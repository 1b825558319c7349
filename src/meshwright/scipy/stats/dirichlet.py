"""The Dirichlet distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core.words import counted
from meshwright.errors import ShapeError
from meshwright.numpy.creation import asarray
from meshwright.numpy.functions import exp, gammaln
from meshwright.numpy.joining import concatenate
from meshwright.numpy.logic import where
from meshwright.numpy.reductions import all as all_of
from meshwright.numpy.reductions import sum as sum_of
from meshwright.scipy.special.entropies import xlogy


def logpdf(x: Any, alpha: Any) -> Any:
    """The logarithm of the density.

    Args:
      x: shape (n, ...): the probabilities along the first dimension, or all except the last one.
      alpha: shape (n,).

    Raises:
      ShapeError: ``x`` has neither ``n`` nor ``n - 1`` rows.

    >>> round(logpdf(np.array([0.2, 0.8]), np.array([2.0, 3.0])).item(), 4)
    0.4292
    """
    x, alpha = asarray(x) + 0.0, asarray(alpha) + 0.0
    if alpha.ndim != 1 or not x.shape or x.shape[0] not in (alpha.size, alpha.size - 1):
        raise ShapeError(f"dirichlet.logpdf: x of shape {x.shape} must have {counted(alpha.size, 'row')} or one less")
    if x.shape[0] != alpha.size:
        x = concatenate([x, 1 - sum_of(x, 0, keepdims=True)])
    inside = all_of(x >= 0, 0) & (abs(sum_of(x, 0) - 1) < 1e-4)
    normalizer = sum_of(gammaln(alpha)) - gammaln(sum_of(alpha))
    weights = alpha.reshape(-1, *(1,) * (x.ndim - 1)) - 1
    value = sum_of(xlogy(weights, where(inside, x, 1 / alpha.size)), 0) - normalizer
    return where(inside, value, -np.inf)


def pdf(x: Any, alpha: Any) -> Any:
    """The density; arguments as for :func:`logpdf`.

    >>> round(pdf(np.array([0.2, 0.8]), np.array([2.0, 3.0])).item(), 4)
    1.536
    """
    return exp(logpdf(x, alpha))
