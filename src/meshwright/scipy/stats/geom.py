"""The geometric distribution: the number of trials until the first success."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, floor, log
from meshwright.scipy.special.entropies import xlog1py
from meshwright.scipy.stats.domain import distribution


@distribution
def logpmf(k: Any, p: Any, loc: Any = 0.0) -> Any:
    """The logarithm of the probability.

    >>> round(logpmf(2, 0.3).item(), 4)
    -1.5606
    """
    x = k - loc
    inside = (x >= 1) & (x == floor(x))
    x = where(inside, x, 1.0)
    return where(inside, xlog1py(x - 1, -p) + log(p), -np.inf)


@distribution
def pmf(k: Any, p: Any, loc: Any = 0.0) -> Any:
    """The probability.

    >>> round(pmf(2, 0.3).item(), 4)
    0.21
    """
    return exp(logpmf(k, p, loc))
