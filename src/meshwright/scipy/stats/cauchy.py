"""The Cauchy distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import atan2, exp, log1p, scalar_like, tan
from meshwright.scipy.stats.family import Family, log_probability

_of = Family(__name__)


def _above(z: Any) -> Any:
    """``atan2(1, z) / pi``, the probability above ``z``, accurate for large ``z``; atan2 needs equal shapes."""
    return atan2(scalar_like(1, z), z) / np.pi


def _quantile(q: Any) -> Any:
    """From the nearer end, to which the distance is not rounded."""
    end = where(q < 0.5, q, 1 - q)
    tail = end < 0.25
    far = 1 / tan(np.pi * where(tail & (end > 0), end, 0.25))
    near = tan(np.pi * (where(tail, 0.5, q) - 0.5))
    return where(end == 0, where(q == 0, -np.inf, np.inf), where(tail, where(q < 0.5, -far, far), near))


logpdf = _of(0.5, gives=-1.3679, name="logpdf")(lambda z: -math.log(np.pi) - log1p(z * z))
pdf = _of.of("pdf", exp, logpdf, 0.5, gives=0.2546)
cdf = _of(0.5, gives=0.6476, name="cdf")(lambda z: _above(-z))
sf = _of(0.5, gives=0.3524, name="sf")(_above)
logcdf = _of.of("logcdf", log_probability, (cdf, sf), 0.5, gives=-0.4345)
logsf = _of.of("logsf", log_probability, (sf, cdf), 0.5, gives=-1.0429)
ppf = _of(0.7, gives=0.7265, name="ppf")(_quantile)
isf = _of(0.7, gives=-0.7265, name="isf")(lambda q: -_quantile(q))
