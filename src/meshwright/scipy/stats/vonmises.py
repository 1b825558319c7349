"""Von Mises's distribution of angles."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.ops.elementwise.table import cos, exp, log
from meshwright.scipy.special.bessel import i0e
from meshwright.scipy.stats.family import Family

_of = Family(__name__, "kappa", inside=lambda kappa: kappa >= 0, place=())


@_of(0.5, 2.0, gives=-0.9067)
def logpdf(x: Any, kappa: Any) -> Any:
    return kappa * (cos(x) - 1) - log(2 * np.pi * i0e(kappa))


pdf = _of.of("pdf", exp, logpdf, 0.5, 2.0, gives=0.4039)
