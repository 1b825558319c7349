"""Student's t distribution with ``df`` degrees of freedom."""

from __future__ import annotations

from typing import Any

from meshwright.ops.elementwise.table import exp, log, log1p
from meshwright.scipy.special.gammas import betaln
from meshwright.scipy.stats.domain import distribution


@distribution
def logpdf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the density.

    >>> round(logpdf(0.5, 3.0).item(), 4)
    -1.161
    """
    z = (x - loc) / scale
    normalizer = betaln(0.5, df / 2) + 0.5 * log(df) + log(scale)
    return -(df + 1) / 2 * log1p(z * z / df) - normalizer


@distribution
def pdf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The density.

    >>> round(pdf(0.5, 3.0).item(), 4)
    0.3132
    """
    return exp(logpdf(x, df, loc, scale))
