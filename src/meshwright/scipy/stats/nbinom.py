"""The negative binomial distribution: the number of failures before the ``n``-th success."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, floor, log
from meshwright.scipy.special.entropies import xlog1py, xlogy
from meshwright.scipy.special.gammas import betaln
from meshwright.scipy.stats.family import Family

_of = Family(__name__, "n", "p", inside=lambda n, p: (n > 0) & (p > 0) & (p <= 1), place=("loc",))


@_of(2, 3, 0.4, gives=-1.9788)
def logpmf(x: Any, n: Any, p: Any) -> Any:
    inside = (x >= 0) & (x == floor(x))
    x = where(inside, x, 0.0)
    ways = -log(n + x) - betaln(n, x + 1)
    return where(inside, ways + xlogy(n, p) + xlog1py(x, -p), -np.inf)


pmf = _of.of("pmf", exp, logpmf, 2, 3, 0.4, gives=0.1382)
