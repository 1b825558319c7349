"""The logistic distribution."""

from __future__ import annotations

from typing import Any

from meshwright.nn.activations import softplus
from meshwright.ops.elementwise.table import abs_, exp, log, log1p
from meshwright.ops.elementwise.table import logistic as expit
from meshwright.scipy.stats.family import Family

_of = Family(__name__, first={"ppf": "x", "isf": "x"})


@_of(0.5, gives=-1.4482)
def logpdf(z: Any) -> Any:
    z = -abs_(z)  # the density is even
    return z - 2 * softplus(z)


pdf = _of.of("pdf", exp, logpdf, 0.5, gives=0.235)
cdf = _of(0.5, gives=0.6225, name="cdf")(expit)
sf = _of(0.5, gives=0.3775, name="sf")(lambda z: expit(-z))
ppf = _of(0.7, gives=0.8473, name="ppf")(lambda q: log(q) - log1p(-q))
isf = _of(0.7, gives=-0.8473, name="isf")(lambda q: log1p(-q) - log(q))
