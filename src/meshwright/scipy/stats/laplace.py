"""Laplace's distribution."""

from __future__ import annotations

from typing import Any

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import abs_, exp, log
from meshwright.scipy.stats.domain import distribution


@distribution
def logpdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the density.

    >>> round(logpdf(0.5).item(), 4)
    -1.1931
    """
    return -abs_((x - loc) / scale) - log(2 * scale)


@distribution
def pdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The density.

    >>> round(pdf(0.5).item(), 4)
    0.3033
    """
    return exp(logpdf(x, loc, scale))


@distribution
def cdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The distribution function.

    >>> round(cdf(0.5).item(), 4)
    0.6967
    """
    z = (x - loc) / scale
    half = 0.5 * exp(-abs_(z))
    return where(z <= 0, half, 1 - half)
