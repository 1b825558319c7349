"""The binomial distribution with a probability that has a beta distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, floor, log
from meshwright.scipy.special.gammas import betaln
from meshwright.scipy.stats.domain import distribution


@distribution
def logpmf(k: Any, n: Any, a: Any, b: Any, loc: Any = 0.0) -> Any:
    """The logarithm of the probability.

    >>> round(logpmf(2, 5, 1.5, 2.0).item(), 4)
    -1.5459
    """
    x = k - loc
    inside = (x >= 0) & (x <= n) & (x == floor(x))
    x = where(inside, x, 0.0)
    ways = -log(n + 1) - betaln(n - x + 1, x + 1)
    return where(inside, ways + betaln(x + a, n - x + b) - betaln(a, b), -np.inf)


@distribution
def pmf(k: Any, n: Any, a: Any, b: Any, loc: Any = 0.0) -> Any:
    """The probability.

    >>> round(pmf(2, 5, 1.5, 2.0).item(), 4)
    0.2131
    """
    return exp(logpmf(k, n, a, b, loc))
