"""The beta-binomial distribution: binomial, with a probability that has a beta distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, floor, log
from meshwright.scipy.special.gammas import betaln
from meshwright.scipy.stats.family import Family, is_count

_of = Family(__name__, "n", "a", "b", inside=lambda n, a, b: is_count(n) & (a > 0) & (b > 0), place=("loc",))


@_of(2, 5, 1.5, 2.0, gives=-1.5459)
def logpmf(x: Any, n: Any, a: Any, b: Any) -> Any:
    inside = (x >= 0) & (x <= n) & (x == floor(x))
    x = where(inside, x, 0.0)
    ways = -log(n + 1) - betaln(n - x + 1, x + 1)
    return where(inside, ways + betaln(x + a, n - x + b) - betaln(a, b), -np.inf)


pmf = _of.of("pmf", exp, logpmf, 2, 5, 1.5, 2.0, gives=0.2131)
