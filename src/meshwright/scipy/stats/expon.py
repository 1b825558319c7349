"""The exponential distribution."""

from __future__ import annotations

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp, expm1, log, log1p
from meshwright.scipy.stats.family import Family

_of = Family(__name__)

logpdf = _of(0.5, gives=-0.5, name="logpdf")(lambda z: where(z < 0, -np.inf, -z))
pdf = _of.of("pdf", exp, logpdf, 0.5, gives=0.6065)
cdf = _of(0.5, gives=0.3935, name="cdf")(lambda z: -expm1(-where(z < 0, 0.0, z)))
logcdf = _of(0.5, gives=-0.9328, name="logcdf")(lambda z: where(z < 0, -np.inf, log(-expm1(-where(z < 0, 1.0, z)))))
logsf = _of(0.5, gives=-0.5, name="logsf")(lambda z: where(z < 0, 0.0, -z))
sf = _of.of("sf", exp, logsf, 0.5, gives=0.6065)
ppf = _of(0.5, gives=0.6931, name="ppf")(lambda q: -log1p(-q))
