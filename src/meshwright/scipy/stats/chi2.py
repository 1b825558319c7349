"""The chi-squared distribution with ``df`` degrees of freedom: the gamma distribution of ``df / 2``, scaled by 2."""

from __future__ import annotations

from meshwright.ops.elementwise.table import exp
from meshwright.scipy.stats import gamma
from meshwright.scipy.stats.family import Family, log_probability

_of = Family(__name__, "df", inside=lambda df: df > 0)

logpdf = _of(1.5, 3.0, gives=-1.4662, name="logpdf")(lambda z, df: gamma.logpdf(z, df / 2, scale=2))
pdf = _of.of("pdf", exp, logpdf, 1.5, 3.0, gives=0.2308)
cdf = _of(1.5, 3.0, gives=0.3177, name="cdf")(lambda z, df: gamma.cdf(z, df / 2, scale=2))
sf = _of(1.5, 3.0, gives=0.6823, name="sf")(lambda z, df: gamma.sf(z, df / 2, scale=2))
logcdf = _of.of("logcdf", log_probability, (cdf, sf), 1.5, 3.0, gives=-1.1466)
logsf = _of.of("logsf", log_probability, (sf, cdf), 1.5, 3.0, gives=-0.3823)
