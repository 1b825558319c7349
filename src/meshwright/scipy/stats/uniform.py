"""The uniform distribution on [loc, loc + scale]."""

from __future__ import annotations

import numpy as np

from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import exp
from meshwright.scipy.stats.family import Family

_of = Family(__name__)

logpdf = _of(0.5, 0.0, 2.0, gives=-0.6931, name="logpdf")(lambda z: where((z >= 0) & (z <= 1), 0.0, -np.inf))
pdf = _of.of("pdf", exp, logpdf, 0.5, gives=1.0)
cdf = _of(0.25, gives=0.25, name="cdf")(lambda z: where(z < 0, 0.0, where(z > 1, 1.0, z)))
ppf = _of(0.25, gives=0.25, name="ppf")(lambda q: q)
