"""Gumbel's distribution of maxima."""

from __future__ import annotations

from typing import Any

from meshwright.ops.elementwise.table import exp, expm1, log
from meshwright.scipy.stats.domain import distribution


@distribution
def logpdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the density.

    >>> round(logpdf(0.5).item(), 4)
    -1.1065
    """
    z = (loc - x) / scale
    return z - exp(z) - log(scale)


@distribution
def pdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The density.

    >>> round(pdf(0.5).item(), 4)
    0.3307
    """
    return exp(logpdf(x, loc, scale))


@distribution
def logcdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the distribution function.

    >>> round(logcdf(0.5).item(), 4)
    -0.6065
    """
    z = (loc - x) / scale
    return -exp(z)


@distribution
def logsf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the probability of larger values.

    >>> round(logsf(0.5).item(), 4)
    -0.788
    """
    z = (loc - x) / scale
    return log(-expm1(-exp(z)))


@distribution
def cdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The distribution function.

    >>> round(cdf(0.5).item(), 4)
    0.5452
    """
    z = (loc - x) / scale
    return exp(-exp(z))


@distribution
def sf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The probability of larger values.

    >>> round(sf(0.5).item(), 4)
    0.4548
    """
    z = (loc - x) / scale
    return -expm1(-exp(z))


@distribution
def ppf(q: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The quantile of probability ``q``.

    >>> round(ppf(0.3).item(), 4)
    -0.1856
    """
    return loc - scale * log(-log(q))
