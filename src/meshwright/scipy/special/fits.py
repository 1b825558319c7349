"""Smooth functions of one variable as Chebyshev series, with coefficients computed once from SciPy's values.

The domain of a function is split into intervals. On each, divided by a factor that contains its growth and
singularities, a polynomial of moderate degree is exact to the last digit (Clenshaw 1962, "Chebyshev series for
mathematical functions", tabulated such coefficients).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebinterpolate

from meshwright.ops.elementwise.clamp import clamp
from meshwright.ops.elementwise.expanded import chebyshev
from meshwright.ops.elementwise.table import scalar_like

Function = Callable[[Any], Any]


@cache
def _coefficients(f: Function, low: float, high: float, degree: int) -> np.ndarray:
    coefficients = chebinterpolate(lambda t: f(low + (high - low) * (t + 1) / 2), degree)
    needed = np.flatnonzero(np.abs(coefficients) > 1e-18 * np.max(np.abs(coefficients)))
    return coefficients[: needed[-1] + 1]


def fitted(f: Function, low: float, high: float, degree: int, x: Any) -> Any:
    """The fit of ``f`` on [low, high]; outside, the value at the nearer end.

    >>> round(float(fitted(np.exp, 0.0, 1.0, 12, np.float32(0.5))), 4)
    1.6487
    """
    inside = clamp(scalar_like(low, x), x, scalar_like(high, x))
    return chebyshev(_coefficients(f, low, high, degree), (inside - low) * (2 / (high - low)) - 1)
