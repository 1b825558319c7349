"""Kernel density estimation with normal distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.pytree_classes import register_pytree_node_class
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.nn.normalization import logsumexp
from meshwright.numpy.creation import asarray, full, zeros
from meshwright.numpy.functions import exp, log
from meshwright.numpy.linalg import cholesky, diagonal, solve_triangular
from meshwright.numpy.manipulation import atleast_1d, atleast_2d, moveaxis
from meshwright.numpy.reductions import sum as sum_of
from meshwright.numpy.statistics import cov
from meshwright.random import choice, multivariate_normal, split


def _floats(what: str, x: Any) -> Any:
    x = asarray(x)
    if dtypes.is_complex(x.dtype):
        raise DTypeError(f"gaussian_kde: {what} must be real, got {x.dtype}; stack .real and .imag as two dimensions")
    return x.astype(dtypes.inexact(x.dtype))


@register_pytree_node_class
class gaussian_kde:
    """A kernel density estimate: the mean of normal distributions around the points of a sample.

    Args:
      dataset: n points of d dimensions, shape (d, n), or (n,).
      bw_method: the bandwidth: ``scott`` (default), ``silverman``, or a factor for the sample's covariance.
      weights: the weights of the points, shape (n,), by default equal.

    Raises:
      ShapeError: the weights have another shape.
      ArgumentError: there are fewer than two points, or ``bw_method`` is unknown.

    >>> estimate = gaussian_kde(np.array([0.0, 1.0, 3.0]))
    >>> round(estimate(1.0).item(), 4)
    0.219
    """

    def __init__(self, dataset: Any, bw_method: Any = None, weights: Any = None) -> None:
        self.dataset = atleast_2d(_floats("dataset", dataset))
        if self.dataset.size < 2:
            raise ArgumentError(f"gaussian_kde: expected two points or more, got shape {self.dataset.shape}")
        if weights is None:
            self.weights = full((self.n,), 1 / self.n, self.dataset.dtype)
        else:
            given = atleast_1d(_floats("weights", weights))
            if given.shape != (self.n,):
                raise ShapeError(f"gaussian_kde: weights must have shape ({self.n},), got {given.shape}")
            self.weights = given / sum_of(given)
        self.neff = 1 / sum_of(self.weights**2)
        factor = self._factor(bw_method)
        self.covariance = atleast_2d(cov(self.dataset, aweights=self.weights)) * factor**2

    @property
    def d(self) -> int:
        """The number of dimensions of the points."""
        return self.dataset.shape[0]

    @property
    def n(self) -> int:
        """The number of points."""
        return self.dataset.shape[1]

    def _factor(self, method: Any) -> Any:
        if method is None or method == "scott":
            return self.neff ** (-1 / (self.d + 4))
        if method == "silverman":
            return (self.neff * (self.d + 2) / 4) ** (-1 / (self.d + 4))
        if isinstance(method, (int, float)):
            return float(method)
        raise ArgumentError(f"gaussian_kde: bw_method must be scott, silverman or a number, got {method!r}")

    def tree_flatten(self) -> tuple[Any, None]:
        """The arrays, as children of a pytree."""
        return (self.dataset, self.weights, self.neff, self.covariance), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Any) -> gaussian_kde:
        """The inverse of :meth:`tree_flatten`."""
        kde = object.__new__(cls)
        kde.dataset, kde.weights, kde.neff, kde.covariance = children
        return kde

    def logpdf(self, x: Any) -> Any:
        """The logarithm of the estimate, shape (m,), at points of shape (d, m), or (m,)."""
        points = atleast_2d(_floats("the points", x))
        if points.shape[0] != self.d:
            if points.shape != (1, self.d):
                raise ShapeError(f"gaussian_kde: points must have {counted(self.d, 'row')}, got shape {points.shape}")
            points = points.T
        factor = cholesky(self.covariance)
        ours, theirs = (solve_triangular(factor, v, lower=True) for v in (self.dataset, points))
        distances = sum_of((theirs[:, :, None] - ours[:, None, :]) ** 2, 0)
        size = sum_of(log(diagonal(factor))) + self.d / 2 * math.log(2 * np.pi)
        return logsumexp(log(self.weights)[None] - distances / 2, axis=1) - size

    def pdf(self, x: Any) -> Any:
        """The estimate at points, as for :meth:`logpdf`."""
        return exp(self.logpdf(x))

    __call__ = evaluate = pdf

    def resample(self, key: Any, shape: tuple[int, ...] = ()) -> Any:
        """Draw points from the estimated distribution, shape (d, *shape)."""
        first, second = split(key)
        chosen = self.dataset[:, choice(first, self.n, shape, p=self.weights)]
        zero = zeros(self.d, self.covariance.dtype)
        return chosen + moveaxis(multivariate_normal(second, zero, self.covariance, shape, self.dataset.dtype), -1, 0)
