"""The normal distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.ops.elementwise.table import exp, log
from meshwright.scipy.special.normal import log_ndtr, ndtr, ndtri
from meshwright.scipy.stats.domain import distribution


@distribution
def logpdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the density.

    >>> round(logpdf(0.5).item(), 4)
    -1.0439
    """
    z = (x - loc) / scale
    return -0.5 * (z * z + np.log(2 * np.pi)) - log(scale)


@distribution
def pdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The density.

    >>> round(pdf(0.5).item(), 4)
    0.3521
    """
    return exp(logpdf(x, loc, scale))


@distribution
def cdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The distribution function.

    >>> round(cdf(0.5).item(), 4)
    0.6915
    """
    return ndtr((x - loc) / scale)


@distribution
def logcdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the distribution function.

    >>> round(logcdf(0.5).item(), 4)
    -0.3689
    """
    return log_ndtr((x - loc) / scale)


@distribution
def sf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The probability of larger values.

    >>> round(sf(0.5).item(), 4)
    0.3085
    """
    return ndtr((loc - x) / scale)


@distribution
def logsf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the probability of larger values.

    >>> round(logsf(0.5).item(), 4)
    -1.1759
    """
    return log_ndtr((loc - x) / scale)


@distribution
def ppf(q: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The quantile of probability ``q``.

    >>> round(ppf(0.7).item(), 4)
    0.5244
    """
    return ndtri(q) * scale + loc


@distribution
def isf(q: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The value that is exceeded with probability ``q``.

    >>> round(isf(0.7).item(), 4)
    -0.5244
    """
    return -ndtri(q) * scale + loc
