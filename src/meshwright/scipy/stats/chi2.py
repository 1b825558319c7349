"""The chi-squared distribution with ``df`` degrees of freedom."""

from __future__ import annotations

from typing import Any

from meshwright.ops.elementwise.table import exp, log
from meshwright.scipy.stats import gamma
from meshwright.scipy.stats.domain import distribution


@distribution
def logpdf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the density.

    >>> round(logpdf(1.5, 3.0).item(), 4)
    -1.4662
    """
    return gamma.logpdf(x, df / 2, loc, 2 * scale)


@distribution
def pdf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The density.

    >>> round(pdf(1.5, 3.0).item(), 4)
    0.2308
    """
    return exp(logpdf(x, df, loc, scale))


@distribution
def cdf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The distribution function.

    >>> round(cdf(1.5, 3.0).item(), 4)
    0.3177
    """
    return gamma.cdf(x, df / 2, loc, 2 * scale)


@distribution
def logcdf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the distribution function.

    >>> round(logcdf(1.5, 3.0).item(), 4)
    -1.1466
    """
    return log(cdf(x, df, loc, scale))


@distribution
def sf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The probability of larger values.

    >>> round(sf(1.5, 3.0).item(), 4)
    0.6823
    """
    return gamma.sf(x, df / 2, loc, 2 * scale)


@distribution
def logsf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the probability of larger values.

    >>> round(logsf(1.5, 3.0).item(), 4)
    -0.3823
    """
    return log(sf(x, df, loc, scale))
