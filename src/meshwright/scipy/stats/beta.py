"""The beta distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, log
from meshwright.scipy.special.entropies import xlog1py, xlogy
from meshwright.scipy.special.gammas import betainc, betaln
from meshwright.scipy.stats.domain import distribution


@distribution
def logpdf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the density.

    >>> round(logpdf(0.3, 2.0, 3.0).item(), 4)
    0.5676
    """
    z = (x - loc) / scale
    inside = (z >= 0) & (z <= 1)
    safe = where(inside, z, 0.5)
    value = xlogy(a - 1, safe) + xlog1py(b - 1, -safe) - betaln(a, b) - log(scale)
    return where(inside, value, -np.inf)


@distribution
def pdf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The density.

    >>> round(pdf(0.3, 2.0, 3.0).item(), 4)
    1.764
    """
    return exp(logpdf(x, a, b, loc, scale))


@distribution
def cdf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The distribution function.

    >>> round(cdf(0.3, 2.0, 3.0).item(), 4)
    0.3483
    """
    z = (x - loc) / scale
    return betainc(a, b, where(z < 0, 0.0, where(z > 1, 1.0, z)))


@distribution
def logcdf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the distribution function.

    >>> round(logcdf(0.3, 2.0, 3.0).item(), 4)
    -1.0547
    """
    return log(cdf(x, a, b, loc, scale))


@distribution
def sf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The probability of larger values.

    >>> round(sf(0.3, 2.0, 3.0).item(), 4)
    0.6517
    """
    z = 1 - (x - loc) / scale
    return betainc(b, a, where(z < 0, 0.0, where(z > 1, 1.0, z)))


@distribution
def logsf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the probability of larger values.

    >>> round(logsf(0.3, 2.0, 3.0).item(), 4)
    -0.4282
    """
    return log(sf(x, a, b, loc, scale))
