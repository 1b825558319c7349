"""The normal distribution cut off outside of [loc + a scale, loc + b scale]."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, expm1, log, log1p
from meshwright.scipy.special.normal import log_ndtr
from meshwright.scipy.stats.domain import distribution


def _log_mass(a: Any, b: Any) -> Any:
    """The logarithm of the normal probability of [a, b], taken on the side of 0 where it is a difference of tails."""
    right = a > 0
    low, high = where(right, -b, a), where(right, -a, b)
    gap = log_ndtr(low) - log_ndtr(high)
    empty = gap >= 0
    gap = where(empty, -1.0, gap)
    value = where(gap > -0.7, log(-expm1(gap)), log1p(-exp(gap)))
    return where(empty, -np.inf, log_ndtr(high) + value)


@distribution
def logpdf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the density.

    >>> round(logpdf(0.5, -1.0, 2.0).item(), 4)
    -0.8438
    """
    z = (x - loc) / scale
    value = -0.5 * (z * z + np.log(2 * np.pi)) - log(scale) - _log_mass(a, b)
    return where((z >= a) & (z <= b), value, -np.inf)


@distribution
def pdf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The density.

    >>> round(pdf(0.5, -1.0, 2.0).item(), 4)
    0.4301
    """
    return exp(logpdf(x, a, b, loc, scale))


@distribution
def logcdf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the distribution function.

    >>> round(logcdf(0.5, -1.0, 2.0).item(), 4)
    -0.4294
    """
    z = (x - loc) / scale
    z = where(z < a, a, where(z > b, b, z))
    return _log_mass(a, z) - _log_mass(a, b)


@distribution
def cdf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The distribution function.

    >>> round(cdf(0.5, -1.0, 2.0).item(), 4)
    0.6509
    """
    return exp(logcdf(x, a, b, loc, scale))


@distribution
def logsf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the probability of larger values.

    >>> round(logsf(0.5, -1.0, 2.0).item(), 4)
    -1.0523
    """
    z = (x - loc) / scale
    z = where(z < a, a, where(z > b, b, z))
    return _log_mass(z, b) - _log_mass(a, b)


@distribution
def sf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The probability of larger values.

    >>> round(sf(0.5, -1.0, 2.0).item(), 4)
    0.3491
    """
    return exp(logsf(x, a, b, loc, scale))
