"""The uniform distribution on [loc, loc + scale]."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, log
from meshwright.scipy.stats.domain import distribution


@distribution
def logpdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the density.

    >>> round(logpdf(0.5, 0.0, 2.0).item(), 4)
    -0.6931
    """
    z = (x - loc) / scale
    return where((z >= 0) & (z <= 1), -log(scale), -np.inf)


@distribution
def pdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The density.

    >>> round(pdf(0.5).item(), 4)
    1.0
    """
    return exp(logpdf(x, loc, scale))


@distribution
def cdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The distribution function.

    >>> round(cdf(0.25).item(), 4)
    0.25
    """
    z = (x - loc) / scale
    return where(z < 0, 0.0, where(z > 1, 1.0, z))


@distribution
def ppf(q: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The quantile of probability ``q``.

    >>> round(ppf(0.25).item(), 4)
    0.25
    """
    return where((q >= 0) & (q <= 1), q * scale + loc, np.nan)
