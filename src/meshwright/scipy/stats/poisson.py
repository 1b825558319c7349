"""Poisson's distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, floor, lgamma
from meshwright.scipy.special.entropies import xlogy
from meshwright.scipy.special.gammas import gammaincc
from meshwright.scipy.stats.domain import distribution


@distribution
def logpmf(k: Any, mu: Any, loc: Any = 0.0) -> Any:
    """The logarithm of the probability.

    >>> round(logpmf(2, 1.5).item(), 4)
    -1.3822
    """
    x = k - loc
    inside = (x >= 0) & (x == floor(x))
    x = where(inside, x, 0.0)
    return where(inside, xlogy(x, mu) - lgamma(x + 1) - mu, -np.inf)


@distribution
def pmf(k: Any, mu: Any, loc: Any = 0.0) -> Any:
    """The probability.

    >>> round(pmf(2, 1.5).item(), 4)
    0.251
    """
    return exp(logpmf(k, mu, loc))


@distribution
def cdf(x: Any, mu: Any, loc: Any = 0.0) -> Any:
    """The distribution function.

    >>> round(cdf(2, 1.5).item(), 4)
    0.8088
    """
    z = x - loc
    return where(z < 0, 0.0, gammaincc(floor(where(z < 0, 0.0, z)) + 1, mu))
