"""The generalized normal distribution: ``exp(-|x|^beta)``."""

from __future__ import annotations

from typing import Any

from meshwright.numpy.arithmetic import power
from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import abs_, exp, lgamma, log, sign
from meshwright.scipy.special.gammas import gammainc
from meshwright.scipy.stats.family import Family

_of = Family(__name__, "beta", inside=lambda beta: beta > 0)


@_of(0.5, 1.5, gives=-0.9444)
def logpdf(z: Any, beta: Any) -> Any:
    return log(beta / 2) - lgamma(1 / beta) - power(abs_(z), beta)


pdf = _of.of("pdf", exp, logpdf, 0.5, 1.5, gives=0.3889)


@_of(0.5, 1.5, gives=0.7417)
def cdf(z: Any, beta: Any) -> Any:
    # At 0, the slope of the absolute value is zero, and that of its power may be infinite.
    away = where(z == 0, 1.0, z)
    value = 0.5 * (1 + sign(away) * gammainc(1 / beta, power(abs_(away), beta)))
    return where(z == 0, 0.5 + z * exp(logpdf(z, beta)), value)
