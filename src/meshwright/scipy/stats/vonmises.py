"""Von Mises's distribution of angles."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.ops.elementwise.table import cos, exp, log
from meshwright.scipy.special.bessel import i0e
from meshwright.scipy.stats.domain import distribution


@distribution
def logpdf(x: Any, kappa: Any) -> Any:
    """The logarithm of the density.

    >>> round(logpdf(0.5, 2.0).item(), 4)
    -0.9067
    """
    return kappa * (cos(x) - 1) - log(2 * np.pi * i0e(kappa))


@distribution
def pdf(x: Any, kappa: Any) -> Any:
    """The density.

    >>> round(pdf(0.5, 2.0).item(), 4)
    0.4039
    """
    return exp(logpdf(x, kappa))
