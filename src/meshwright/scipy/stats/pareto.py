"""Pareto's distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, expm1, log, log1p
from meshwright.scipy.stats.domain import distribution


@distribution
def logpdf(x: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the density.

    >>> round(logpdf(1.5, 2.0).item(), 4)
    -0.5232
    """
    z = (x - loc) / scale
    value = log(b) - (b + 1) * log(where(z < 1, 1.0, z)) - log(scale)
    return where(z < 1, -np.inf, value)


@distribution
def pdf(x: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The density.

    >>> round(pdf(1.5, 2.0).item(), 4)
    0.5926
    """
    return exp(logpdf(x, b, loc, scale))


@distribution
def cdf(x: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The distribution function.

    >>> round(cdf(1.5, 2.0).item(), 4)
    0.5556
    """
    return -expm1(logsf(x, b, loc, scale))


@distribution
def logcdf(x: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the distribution function.

    >>> round(logcdf(1.5, 2.0).item(), 4)
    -0.5878
    """
    return log(cdf(x, b, loc, scale))


@distribution
def sf(x: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The probability of larger values.

    >>> round(sf(1.5, 2.0).item(), 4)
    0.4444
    """
    return exp(logsf(x, b, loc, scale))


@distribution
def logsf(x: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the probability of larger values.

    >>> round(logsf(1.5, 2.0).item(), 4)
    -0.8109
    """
    z = (x - loc) / scale
    return -b * log(where(z < 1, 1.0, z))


@distribution
def ppf(q: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The quantile of probability ``q``.

    >>> round(ppf(0.5, 2.0).item(), 4)
    1.4142
    """
    return where((q >= 0) & (q <= 1), loc + scale * exp(-log1p(-q) / b), np.nan)
