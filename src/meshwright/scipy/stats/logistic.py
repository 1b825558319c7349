"""The logistic distribution."""

from __future__ import annotations

from typing import Any

from meshwright.nn.activations import softplus
from meshwright.ops.elementwise.table import abs_, exp, log, log1p
from meshwright.ops.elementwise.table import logistic as expit
from meshwright.scipy.stats.domain import distribution


@distribution
def logpdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the density.

    >>> round(logpdf(0.5).item(), 4)
    -1.4482
    """
    z = -abs_((x - loc) / scale)  # the density is even
    return z - 2 * softplus(z) - log(scale)


@distribution
def pdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The density.

    >>> round(pdf(0.5).item(), 4)
    0.235
    """
    return exp(logpdf(x, loc, scale))


@distribution
def cdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The distribution function.

    >>> round(cdf(0.5).item(), 4)
    0.6225
    """
    return expit((x - loc) / scale)


@distribution
def sf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The probability of larger values.

    >>> round(sf(0.5).item(), 4)
    0.3775
    """
    return expit((loc - x) / scale)


@distribution
def ppf(q: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The quantile of probability ``q``.

    >>> round(ppf(0.7).item(), 4)
    0.8473
    """
    return (log(q) - log1p(-q)) * scale + loc


@distribution
def isf(q: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The value that is exceeded with probability ``q``.

    >>> round(isf(0.7).item(), 4)
    -0.8473
    """
    return (log1p(-q) - log(q)) * scale + loc
