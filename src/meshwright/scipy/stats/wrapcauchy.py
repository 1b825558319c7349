"""The wrapped Cauchy distribution of angles from 0 to 2 pi."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import cos, exp, log, log1p
from meshwright.scipy.stats.domain import distribution


@distribution
def logpdf(x: Any, c: Any) -> Any:
    """The logarithm of the density.

    >>> round(logpdf(0.5, 0.4).item(), 4)
    -1.2312
    """
    inside = (x >= 0) & (x <= 2 * np.pi) & (c > 0) & (c < 1)
    safe = where(inside, c, 0.5)
    value = log1p(-safe * safe) - log(2 * np.pi) - log(1 + safe * safe - 2 * safe * cos(x))
    return where((c > 0) & (c < 1), where(inside, value, -np.inf), np.nan)


@distribution
def pdf(x: Any, c: Any) -> Any:
    """The density.

    >>> round(pdf(0.5, 0.4).item(), 4)
    0.2919
    """
    return exp(logpdf(x, c))
