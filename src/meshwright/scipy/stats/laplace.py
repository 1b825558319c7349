"""The Laplace distribution."""

from __future__ import annotations

import math
from typing import Any

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import abs_, exp
from meshwright.scipy.stats.family import Family

_of = Family(__name__)

logpdf = _of(0.5, gives=-1.1931, name="logpdf")(lambda z: -abs_(z) - math.log(2))
pdf = _of.of("pdf", exp, logpdf, 0.5, gives=0.3033)


@_of(0.5, gives=0.6967)
def cdf(z: Any) -> Any:
    half = 0.5 * exp(where(z <= 0, z, -z))  # not of the absolute value, whose slope at 0 has another sign
    return where(z <= 0, half, 1 - half)
