"""The Poisson distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core.absent import absent as _absent
from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, floor, lgamma
from meshwright.scipy.special.entropies import xlogy
from meshwright.scipy.special.gammas import gammaincc
from meshwright.scipy.stats.family import Family

_of = Family(__name__, "mu", inside=lambda mu: mu >= 0, place=("loc",), first={"cdf": "k"})


@_of(2, 1.5, gives=-1.3822)
def logpmf(x: Any, mu: Any) -> Any:
    inside = (x >= 0) & (x == floor(x))
    x = where(inside, x, 0.0)
    return where(inside, xlogy(x, mu) - lgamma(x + 1) - mu, -np.inf)


pmf = _of.of("pmf", exp, logpmf, 2, 1.5, gives=0.251)


@_of(2, 1.5, gives=0.8088)
def cdf(x: Any, mu: Any) -> Any:
    return where(x < 0, 0.0, gammaincc(floor(where(x < 0, 0.0, x)) + 1, mu))


__getattr__ = _absent("scipy.stats.poisson")
