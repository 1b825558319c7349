"""Student's t distribution with ``df`` degrees of freedom."""

from __future__ import annotations

from typing import Any

from meshwright.ops.elementwise.table import exp, log, log1p
from meshwright.scipy.special.gammas import betaln
from meshwright.scipy.stats.family import Family

_of = Family(__name__, "df", inside=lambda df: df > 0)


@_of(0.5, 3.0, gives=-1.161)
def logpdf(z: Any, df: Any) -> Any:
    return -(df + 1) / 2 * log1p(z * z / df) - betaln(0.5, df / 2) - 0.5 * log(df)


pdf = _of.of("pdf", exp, logpdf, 0.5, 3.0, gives=0.3132)
