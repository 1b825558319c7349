"""The gamma distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, lgamma
from meshwright.scipy.special.entropies import xlogy
from meshwright.scipy.special.gammas import gammainc, gammaincc
from meshwright.scipy.stats.family import Family, log_probability

_of = Family(__name__, "a", inside=lambda a: a > 0)


@_of(1.5, 2.0, gives=-1.0945)
def logpdf(z: Any, a: Any) -> Any:
    safe = where(z < 0, 1.0, z)
    return where(z < 0, -np.inf, xlogy(a - 1, safe) - safe - lgamma(a))


pdf = _of.of("pdf", exp, logpdf, 1.5, 2.0, gives=0.3347)
cdf = _of(1.5, 2.0, gives=0.4422, name="cdf")(lambda z, a: gammainc(a, where(z < 0, 0.0, z)))
sf = _of(1.5, 2.0, gives=0.5578, name="sf")(lambda z, a: gammaincc(a, where(z < 0, 0.0, z)))
logcdf = _of.of("logcdf", log_probability, (cdf, sf), 1.5, 2.0, gives=-0.8161)
logsf = _of.of("logsf", log_probability, (sf, cdf), 1.5, 2.0, gives=-0.5837)
