"""The exponential distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, expm1, log, log1p
from meshwright.scipy.stats.domain import distribution


@distribution
def logpdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the density.

    >>> round(logpdf(0.5).item(), 4)
    -0.5
    """
    z = (x - loc) / scale
    return where(z < 0, -np.inf, -z - log(scale))


@distribution
def pdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The density.

    >>> round(pdf(0.5).item(), 4)
    0.6065
    """
    return exp(logpdf(x, loc, scale))


@distribution
def cdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The distribution function.

    >>> round(cdf(0.5).item(), 4)
    0.3935
    """
    z = (x - loc) / scale
    return where(z < 0, 0.0, -expm1(-where(z < 0, 0.0, z)))


@distribution
def logcdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the distribution function.

    >>> round(logcdf(0.5).item(), 4)
    -0.9328
    """
    z = (x - loc) / scale
    return where(z < 0, -np.inf, log(-expm1(-where(z < 0, 1.0, z))))


@distribution
def sf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The probability of larger values.

    >>> round(sf(0.5).item(), 4)
    0.6065
    """
    z = (x - loc) / scale
    return where(z < 0, 1.0, exp(-where(z < 0, 0.0, z)))


@distribution
def logsf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the probability of larger values.

    >>> round(logsf(0.5).item(), 4)
    -0.5
    """
    z = (x - loc) / scale
    return where(z < 0, 0.0, -z)


@distribution
def ppf(q: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The quantile of probability ``q``.

    >>> round(ppf(0.5).item(), 4)
    0.6931
    """
    return where((q >= 0) & (q <= 1), loc - scale * log1p(-q), np.nan)
