"""The binomial distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, floor, log
from meshwright.scipy.special.entropies import xlog1py, xlogy
from meshwright.scipy.special.gammas import betaln
from meshwright.scipy.stats.family import Family, is_count

_of = Family(__name__, "n", "p", inside=lambda n, p: is_count(n) & (p >= 0) & (p <= 1), place=("loc",))


@_of(2, 5, 0.3, gives=-1.1754)
def logpmf(x: Any, n: Any, p: Any) -> Any:
    inside = (x >= 0) & (x <= n) & (x == floor(x))
    x = where(inside, x, 0.0)
    ways = -log(n + 1) - betaln(n - x + 1, x + 1)
    return where(inside, ways + xlogy(x, p) + xlog1py(n - x, -p), -np.inf)


pmf = _of.of("pmf", exp, logpmf, 2, 5, 0.3, gives=0.3087)
