"""The geometric distribution: the number of trials until the first success."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, floor, log
from meshwright.scipy.special.entropies import xlog1py
from meshwright.scipy.stats.family import Family

_of = Family(__name__, "p", inside=lambda p: (p > 0) & (p <= 1), place=("loc",))


@_of(2, 0.3, gives=-1.5606)
def logpmf(x: Any, p: Any) -> Any:
    inside = (x >= 1) & (x == floor(x))
    return where(inside, xlog1py(where(inside, x, 1.0) - 1, -p) + log(p), -np.inf)


pmf = _of.of("pmf", exp, logpmf, 2, 0.3, gives=0.21)
