"""The Bernoulli distribution of 0 and 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp
from meshwright.scipy.special.entropies import xlog1py, xlogy
from meshwright.scipy.stats.domain import distribution


@distribution
def logpmf(k: Any, p: Any, loc: Any = 0.0) -> Any:
    """The logarithm of the probability.

    >>> round(logpmf(1, 0.3).item(), 4)
    -1.204
    """
    x = k - loc
    inside = (x == 0) | (x == 1)
    x = where(inside, x, 0.0)
    value = xlogy(x, p) + xlog1py(1 - x, -p)
    return where((p >= 0) & (p <= 1), where(inside, value, -np.inf), np.nan)


@distribution
def pmf(k: Any, p: Any, loc: Any = 0.0) -> Any:
    """The probability.

    >>> round(pmf(1, 0.3).item(), 4)
    0.3
    """
    return exp(logpmf(k, p, loc))


@distribution
def cdf(x: Any, p: Any, loc: Any = 0.0) -> Any:
    """The distribution function.

    >>> round(cdf(0, 0.3).item(), 4)
    0.7
    """
    z = x - loc
    value = where(z < 0, 0.0, where(z < 1, 1 - p, 1.0))
    return where((p >= 0) & (p <= 1), value, np.nan)


@distribution
def ppf(q: Any, p: Any, loc: Any = 0.0) -> Any:
    """The quantile of probability ``q``.

    >>> round(ppf(0.9, 0.3).item(), 4)
    1.0
    """
    value = where(q <= 1 - p, 0.0, 1.0) + loc
    return where((p >= 0) & (p <= 1) & (q >= 0) & (q <= 1), value, np.nan)
