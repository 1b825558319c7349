"""The negative binomial distribution: failures before the success number ``n``."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, floor, log
from meshwright.scipy.special.entropies import xlog1py, xlogy
from meshwright.scipy.special.gammas import betaln
from meshwright.scipy.stats.domain import distribution


@distribution
def logpmf(k: Any, n: Any, p: Any, loc: Any = 0.0) -> Any:
    """The logarithm of the probability.

    >>> round(logpmf(2, 3, 0.4).item(), 4)
    -1.9788
    """
    x = k - loc
    inside = (x >= 0) & (x == floor(x))
    x = where(inside, x, 0.0)
    ways = -log(n + x) - betaln(n, x + 1)
    return where(inside, ways + xlogy(n, p) + xlog1py(x, -p), -np.inf)


@distribution
def pmf(k: Any, n: Any, p: Any, loc: Any = 0.0) -> Any:
    """The probability.

    >>> round(pmf(2, 3, 0.4).item(), 4)
    0.1382
    """
    return exp(logpmf(k, n, p, loc))
