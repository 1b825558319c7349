"""The multinomial distribution of counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.creation import asarray
from meshwright.numpy.functions import exp, gammaln
from meshwright.numpy.logic import where
from meshwright.numpy.promotion import promotes_freely
from meshwright.numpy.reductions import all as all_of
from meshwright.numpy.reductions import sum as sum_of
from meshwright.scipy.special.entropies import xlogy


@promotes_freely()
def logpmf(x: Any, n: Any, p: Any) -> Any:
    """The logarithm of the probability.

    Args:
      x: counts, shape (..., k).
      n: the numbers of draws, shape (...).
      p: probabilities, shape (..., k).

    Raises:
      ShapeError: shapes do not broadcast.

    >>> round(logpmf(np.array([1, 2]), 3, np.array([0.4, 0.6])).item(), 4)
    -0.8393
    """
    x, n, p = asarray(x) + 0.0, asarray(n) + 0.0, asarray(p) + 0.0
    inside = all_of((x >= 0) & (x == x.round()), -1) & (sum_of(x, -1) == n)
    value = gammaln(n + 1) + sum_of(xlogy(x, p) - gammaln(x + 1), -1)
    return where(inside, value, -np.inf)


def pmf(x: Any, n: Any, p: Any) -> Any:
    """The probability; arguments as for :func:`logpmf`.

    >>> round(pmf(np.array([1, 2]), 3, np.array([0.4, 0.6])).item(), 4)
    0.432
    """
    return exp(logpmf(x, n, p))
