"""The Gumbel distribution of maxima, the mirror image of that of minima."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, expm1, log
from meshwright.scipy.stats.family import Family, log_probability

_of = Family(__name__, first={"ppf": "p"})


@_of(0.5, gives=-1.1065)
def logpdf(z: Any) -> Any:
    # In one program the difference of infinities may be rounded once, which makes it infinite.
    return where(z == -np.inf, np.nan, -z - exp(-z))


pdf = _of.of("pdf", exp, logpdf, 0.5, gives=0.3307)
logcdf = _of(0.5, gives=-0.6065, name="logcdf")(lambda z: -exp(-z))
logsf = _of(0.5, gives=-0.788, name="logsf")(lambda z: log_probability(-expm1(-exp(-z)), exp(-exp(-z))))
cdf = _of(0.5, gives=0.5452, name="cdf")(lambda z: exp(-exp(-z)))
sf = _of(0.5, gives=0.4548, name="sf")(lambda z: -expm1(-exp(-z)))
ppf = _of(0.3, gives=-0.1856, name="ppf")(lambda q: -log(-log(q)))
