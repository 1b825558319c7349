"""The von Mises distribution of angles."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.ops.elementwise.table import cos, exp, log, min_, scalar_like
from meshwright.scipy.special.bessel import i0e
from meshwright.scipy.stats.family import Family

_of = Family(__name__, "kappa", inside=lambda kappa: kappa >= 0, place=())


@_of(0.5, 2.0, gives=-0.9067)
def logpdf(x: Any, kappa: Any) -> Any:
    # At kappa = 0, the slope of i0e is the mean of those on both sides, which the slope of the last term corrects.
    return kappa * (cos(x) - 1) - log(2 * np.pi * i0e(kappa)) + 2 * min_(kappa, scalar_like(0, kappa))


pdf = _of.of("pdf", exp, logpdf, 0.5, 2.0, gives=0.4039)
