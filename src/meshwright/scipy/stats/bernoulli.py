"""The Bernoulli distribution of 0 and 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp
from meshwright.scipy.special.entropies import xlog1py, xlogy
from meshwright.scipy.stats.family import Family

_of = Family(__name__, "p", inside=lambda p: (p >= 0) & (p <= 1), place=("loc",), first={"cdf": "k"})


@_of(1, 0.3, gives=-1.204)
def logpmf(x: Any, p: Any) -> Any:
    inside = (x == 0) | (x == 1)
    x = where(inside, x, 0.0)
    return where(inside, xlogy(x, p) + xlog1py(1 - x, -p), -np.inf)


pmf = _of.of("pmf", exp, logpmf, 1, 0.3, gives=0.3)
cdf = _of(0, 0.3, gives=0.7, name="cdf")(lambda x, p: where(x < 0, 0.0, where(x < 1, 1 - p, 1.0)))
ppf = _of(0.9, 0.3, gives=1.0, name="ppf")(lambda q, p: where(q <= 1 - p, 0.0, 1.0))
