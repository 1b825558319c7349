"""The gamma distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, lgamma, log
from meshwright.scipy.special.entropies import xlogy
from meshwright.scipy.special.gammas import gammainc, gammaincc
from meshwright.scipy.stats.domain import distribution


@distribution
def logpdf(x: Any, a: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the density.

    >>> round(logpdf(1.5, 2.0).item(), 4)
    -1.0945
    """
    z = (x - loc) / scale
    safe = where(z < 0, 1.0, z)
    value = xlogy(a - 1, safe) - safe - lgamma(a) - log(scale)
    return where(z < 0, -np.inf, value)


@distribution
def pdf(x: Any, a: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The density.

    >>> round(pdf(1.5, 2.0).item(), 4)
    0.3347
    """
    return exp(logpdf(x, a, loc, scale))


@distribution
def cdf(x: Any, a: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The distribution function.

    >>> round(cdf(1.5, 2.0).item(), 4)
    0.4422
    """
    z = (x - loc) / scale
    return gammainc(a, where(z < 0, 0.0, z))


@distribution
def logcdf(x: Any, a: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the distribution function.

    >>> round(logcdf(1.5, 2.0).item(), 4)
    -0.8161
    """
    return log(cdf(x, a, loc, scale))


@distribution
def sf(x: Any, a: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The probability of larger values.

    >>> round(sf(1.5, 2.0).item(), 4)
    0.5578
    """
    z = (x - loc) / scale
    return gammaincc(a, where(z < 0, 0.0, z))


@distribution
def logsf(x: Any, a: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the probability of larger values.

    >>> round(logsf(1.5, 2.0).item(), 4)
    -0.5837
    """
    return log(sf(x, a, loc, scale))
