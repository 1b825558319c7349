"""The wrapped Cauchy distribution of angles from 0 to 2 pi."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import cos, exp, log, log1p
from meshwright.scipy.stats.family import Family

_of = Family(__name__, "c", inside=lambda c: (c > 0) & (c < 1), place=())


@_of(0.5, 0.4, gives=-1.2312)
def logpdf(x: Any, c: Any) -> Any:
    c = where((c > 0) & (c < 1), c, 0.5)
    value = log1p(-c * c) - math.log(2 * np.pi) - log(1 + c * c - 2 * c * cos(x))
    return where((x >= 0) & (x <= 2 * np.pi), value, -np.inf)


pdf = _of.of("pdf", exp, logpdf, 0.5, 0.4, gives=0.2919)
