"""The beta distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp
from meshwright.scipy.special.entropies import xlog1py, xlogy
from meshwright.scipy.special.gammas import betainc, betaln
from meshwright.scipy.stats.family import Family, log_probability

_of = Family(__name__, "a", "b", inside=lambda a, b: (a > 0) & (b > 0))


def _clipped(z: Any) -> Any:
    return where(z < 0, 0.0, where(z > 1, 1.0, z))


@_of(0.3, 2.0, 3.0, gives=0.5676)
def logpdf(z: Any, a: Any, b: Any) -> Any:
    inside = (z >= 0) & (z <= 1)
    safe = where(inside, z, 0.5)
    return where(inside, xlogy(a - 1, safe) + xlog1py(b - 1, -safe) - betaln(a, b), -np.inf)


@_of(0.3, 2.0, 3.0, gives=0.3483)
def cdf(z: Any, a: Any, b: Any) -> Any:
    return betainc(a, b, _clipped(z))


pdf = _of.of("pdf", exp, logpdf, 0.3, 2.0, 3.0, gives=1.764)
sf = _of(0.3, 2.0, 3.0, gives=0.6517, name="sf")(
    lambda z, a, b: betainc(b, a, where(z < 0, 1.0, where(z > 1, 0.0, 1 - z)))
)
logcdf = _of.of("logcdf", log_probability, (cdf, sf), 0.3, 2.0, 3.0, gives=-1.0547)
logsf = _of.of("logsf", log_probability, (sf, cdf), 0.3, 2.0, 3.0, gives=-0.4282)
