"""Cauchy's distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import atan2, exp, log, log1p, scalar_like, tan
from meshwright.scipy.stats.domain import distribution


def _upper(distance: Any, scale: Any) -> Any:
    """The angle seen from above, exact far away; atan2 takes equal shapes."""
    z = distance / scale
    return atan2(scalar_like(1, z), z) / np.pi


@distribution
def logpdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the density.

    >>> round(logpdf(0.5).item(), 4)
    -1.3679
    """
    z = (x - loc) / scale
    return -log(np.pi * scale) - log1p(z * z)


@distribution
def pdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The density.

    >>> round(pdf(0.5).item(), 4)
    0.2546
    """
    return exp(logpdf(x, loc, scale))


@distribution
def cdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The distribution function.

    >>> round(cdf(0.5).item(), 4)
    0.6476
    """
    return _upper(loc - x, scale)


@distribution
def logcdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the distribution function.

    >>> round(logcdf(0.5).item(), 4)
    -0.4345
    """
    return log(_upper(loc - x, scale))


@distribution
def sf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The probability of larger values.

    >>> round(sf(0.5).item(), 4)
    0.3524
    """
    return _upper(x - loc, scale)


@distribution
def logsf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the probability of larger values.

    >>> round(logsf(0.5).item(), 4)
    -1.0429
    """
    return log(_upper(x - loc, scale))


@distribution
def ppf(q: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The quantile of probability ``q``.

    >>> round(ppf(0.7).item(), 4)
    0.7265
    """
    inner = loc + scale * tan(np.pi * (q - 0.5))
    return where(q == 0, -np.inf, where(q == 1, np.inf, inner))


@distribution
def isf(q: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The value that is exceeded with probability ``q``.

    >>> round(isf(0.7).item(), 4)
    -0.7265
    """
    inner = loc + scale * tan(np.pi * (0.5 - q))
    return where(q == 0, np.inf, where(q == 1, -np.inf, inner))
