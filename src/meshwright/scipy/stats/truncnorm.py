"""The normal distribution truncated to [loc + a scale, loc + b scale]."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, expm1, log, log1p
from meshwright.scipy.special.normal import log_ndtr
from meshwright.scipy.stats.family import Family

_of = Family(__name__, "a", "b", inside=lambda a, b: a < b)


def _log_mass(a: Any, b: Any) -> Any:
    """The logarithm of the normal probability of [a, b], from the side of 0 where it is a difference of tails."""
    right = a > 0
    low, high = where(right, -b, a), where(right, -a, b)
    gap = log_ndtr(low) - log_ndtr(high)
    empty = gap >= 0
    gap = where(empty, -1.0, gap)
    value = where(gap > -0.7, log(-expm1(gap)), log1p(-exp(gap)))
    return where(empty, -np.inf, log_ndtr(high) + value)


def _clipped(z: Any, a: Any, b: Any) -> Any:
    return where(z < a, a, where(z > b, b, z))


@_of(0.5, -1.0, 2.0, gives=-0.8438)
def logpdf(z: Any, a: Any, b: Any) -> Any:
    value = -0.5 * (z * z + math.log(2 * np.pi)) - _log_mass(a, b)
    return where((z >= a) & (z <= b), value, -np.inf)


@_of(0.5, -1.0, 2.0, gives=-0.4294)
def logcdf(z: Any, a: Any, b: Any) -> Any:
    inside = _log_mass(a, _clipped(z, a, b)) - _log_mass(a, b)
    return where(z <= a, -np.inf, where(z >= b, 0.0, inside))


@_of(0.5, -1.0, 2.0, gives=-1.0523)
def logsf(z: Any, a: Any, b: Any) -> Any:
    inside = _log_mass(_clipped(z, a, b), b) - _log_mass(a, b)
    return where(z <= a, 0.0, where(z >= b, -np.inf, inside))


pdf = _of.of("pdf", exp, logpdf, 0.5, -1.0, 2.0, gives=0.4301)
cdf = _of.of("cdf", exp, logcdf, 0.5, -1.0, 2.0, gives=0.6509)
sf = _of.of("sf", exp, logsf, 0.5, -1.0, 2.0, gives=0.3491)
