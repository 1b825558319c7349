"""The Pareto distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, expm1, log, log1p
from meshwright.scipy.stats.family import Family, log_probability

_of = Family(__name__, "b", inside=lambda b: b > 0)


@_of(1.5, 2.0, gives=-0.5232)
def logpdf(z: Any, b: Any) -> Any:
    return where(z < 1, -np.inf, log(b) - (b + 1) * log(where(z < 1, 1.0, z)))


pdf = _of.of("pdf", exp, logpdf, 1.5, 2.0, gives=0.5926)
logsf = _of(1.5, 2.0, gives=-0.8109, name="logsf")(lambda z, b: -b * log(where(z < 1, 1.0, z)))
sf = _of.of("sf", exp, logsf, 1.5, 2.0, gives=0.4444)
cdf = _of.of("cdf", lambda logsf: -expm1(logsf), logsf, 1.5, 2.0, gives=0.5556)


@_of(1.5, 2.0, gives=-0.5878)
def logcdf(z: Any, b: Any) -> Any:
    beyond = -b * log(where(z < 1, 2.0, z))
    return where(z < 1, -np.inf, log_probability(-expm1(beyond), exp(beyond)))


ppf = _of(0.5, 2.0, gives=1.4142, name="ppf")(lambda q, b: exp(-log1p(-q) / b))
