"""Modified Bessel functions of orders 0 and 1, times ``exp(-|x|)``, as Chebyshev sums.

Both are smooth in ``x`` up to 8, and beyond, times ``sqrt(x)``, in ``1/x`` (DLMF 10.40.1): there polynomials of degree
30 are exact to the last digit. Their coefficients are computed, once, from SciPy's values at Chebyshev points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.polynomial.chebyshev import chebinterpolate

from meshwright.core.late import LateModule
from meshwright.ir.reading import reads
from meshwright.ops.elementwise import (
    Partial,
    abs_,
    add,
    div,
    eq,
    le,
    max_,
    min_,
    mul,
    scalar_like,
    select,
    sign,
    sqrt,
    sub,
)
from meshwright.ops.expanded import Expanded, chebyshev, constant

special = LateModule("scipy.special")


@cache
def _near(f: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Coefficients of ``f`` in ``x/4 - 1``."""
    return chebinterpolate(lambda t: f(4 * (t + 1)), 30)


@cache
def _far(f: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Coefficients of ``sqrt(x) f`` in ``16/x - 1``, beyond 8."""
    return chebinterpolate(lambda t: f(16 / (t + 1)) * np.sqrt(16 / (t + 1)), 25)


def _below(f: Callable[[np.ndarray], np.ndarray], size: Any) -> Any:
    small = min_(size, scalar_like(8, size))
    return chebyshev(_near(f), sub(div(small, scalar_like(4, size)), scalar_like(1, size)))


def _above(f: Callable[[np.ndarray], np.ndarray], size: Any) -> Any:
    large = max_(size, scalar_like(8, size))
    return div(chebyshev(_far(f), sub(div(scalar_like(16, size), large), scalar_like(1, size))), sqrt(large))


def _i1e_by_x(x: np.ndarray) -> np.ndarray:
    """``i1e(x) / x``, which has no zero, so that small values keep their digits."""
    return np.where(x == 0, 0.5, special.i1e(x) / np.where(x == 0, 1, x))


def _slope_of_i1e(t: Any, y: Any, x: Any) -> Any:
    """DLMF 10.29.2; the quotient ``y / x`` is 1/2 at 0."""
    zero = eq(x, scalar_like(0, x))
    quotient = select(zero, constant(0.5, x), div(y, select(zero, constant(1, x), x)))
    return mul(t, sub(bessel_i0e(x), add(quotient, mul(sign(x), y))))


@dataclass(frozen=True)
class BesselI0e(Expanded):
    """Modified Bessel function of order 0, times ``exp(-abs(x))``.

    Example:
      >>> round(float(lax.bessel_i0e(np.float32(1))), 4)
      0.4658
    """

    name: ClassVar[str] = "bessel_i0e"
    accepts: ClassVar[tuple[str, ...]] = ("f",)
    partials: ClassVar[tuple[Partial, ...]] = (lambda t, y, x: mul(t, sub(bessel_i1e(x), mul(sign(x), y))),)

    def expand(self, x: Any) -> Any:
        size = abs_(x)
        return select(le(size, scalar_like(8, x)), _below(special.i0e, size), _above(special.i0e, size))


@dataclass(frozen=True)
class BesselI1e(Expanded):
    """Modified Bessel function of order 1, times ``exp(-abs(x))``.

    Example:
      >>> round(float(lax.bessel_i1e(np.float32(1))), 4)
      0.2079
    """

    name: ClassVar[str] = "bessel_i1e"
    accepts: ClassVar[tuple[str, ...]] = ("f",)
    partials: ClassVar[tuple[Partial, ...]] = (_slope_of_i1e,)

    def expand(self, x: Any) -> Any:
        size = abs_(x)
        near = mul(x, _below(_i1e_by_x, size))
        return select(le(size, scalar_like(8, x)), near, mul(sign(x), _above(special.i1e, size)))


bessel_i0e: Expanded = BesselI0e()
bessel_i1e: Expanded = BesselI1e()


@reads("chlo.bessel_i1e")
def _read_bessel_i1e(r: Any) -> Any:
    return bessel_i1e(*r.operands)
