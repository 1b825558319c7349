"""The generalized normal distribution: ``exp(-|x|^beta)``."""

from __future__ import annotations

from typing import Any

from meshwright.numpy.arithmetic import power
from meshwright.ops.elementwise.table import abs_, exp, lgamma, log, sign
from meshwright.scipy.special.gammas import gammainc
from meshwright.scipy.stats.domain import distribution


@distribution
def logpdf(x: Any, beta: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The logarithm of the density.

    >>> round(logpdf(0.5, 1.5).item(), 4)
    -0.9444
    """
    z = abs_((x - loc) / scale)
    return log(beta / 2) - lgamma(1 / beta) - power(z, beta) - log(scale)


@distribution
def pdf(x: Any, beta: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The density.

    >>> round(pdf(0.5, 1.5).item(), 4)
    0.3889
    """
    return exp(logpdf(x, beta, loc, scale))


@distribution
def cdf(x: Any, beta: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """The distribution function.

    >>> round(cdf(0.5, 1.5).item(), 4)
    0.7417
    """
    z = (x - loc) / scale
    return 0.5 * (1 + sign(z) * gammainc(1 / beta, power(abs_(z), beta)))
