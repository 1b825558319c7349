"""The Gumbel distribution of minima."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, expm1, log, log1p
from meshwright.scipy.stats.family import Family, log_probability

_of = Family(__name__, first={"ppf": "p"})


@_of(0.5, gives=-1.1487)
def logpdf(z: Any) -> Any:
    # In one program the difference of infinities may be rounded once, which makes it infinite.
    return where(z == np.inf, np.nan, z - exp(z))


pdf = _of.of("pdf", exp, logpdf, 0.5, gives=0.317)
logsf = _of(0.5, gives=-1.6487, name="logsf")(lambda z: -exp(z))
logcdf = _of(0.5, gives=-0.2136, name="logcdf")(lambda z: log_probability(-expm1(-exp(z)), exp(-exp(z))))
sf = _of(0.5, gives=0.1923, name="sf")(lambda z: exp(-exp(z)))
cdf = _of(0.5, gives=0.8077, name="cdf")(lambda z: -expm1(-exp(z)))
ppf = _of(0.3, gives=-1.0309, name="ppf")(lambda q: log(-log1p(-q)))
