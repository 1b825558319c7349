"""The normal distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshwright.ops.elementwise.table import exp
from meshwright.scipy.special.normal import log_ndtr, ndtr, ndtri
from meshwright.scipy.stats.family import Family

_of = Family(__name__)


@_of(0.5, gives=-1.0439)
def logpdf(z: Any) -> Any:
    return -0.5 * (z * z + math.log(2 * np.pi))


pdf = _of.of("pdf", exp, logpdf, 0.5, gives=0.3521)
cdf = _of(0.5, gives=0.6915, name="cdf")(ndtr)
logcdf = _of(0.5, gives=-0.3689, name="logcdf")(log_ndtr)
sf = _of(0.5, gives=0.3085, name="sf")(lambda z: ndtr(-z))
logsf = _of(0.5, gives=-1.1759, name="logsf")(lambda z: log_ndtr(-z))
ppf = _of(0.7, gives=0.5244, name="ppf")(ndtri)
isf = _of(0.7, gives=-0.5244, name="isf")(lambda q: -ndtri(q))
