"""Modified Bessel functions of integer order, as Chebyshev series of their values times ``exp(-|x|)``.

These are smooth in ``x`` up to 8, and beyond, times ``sqrt(x)``, in ``1/x`` (DLMF 10.40.1); polynomials of degree 30
are then exact to the last digit. The coefficients are computed once from SciPy's values at many more Chebyshev points
than there are coefficients, so that rounding errors of the values, which add up at the ends of a range, cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.polynomial.chebyshev import chebinterpolate

from meshwright.core.late import LateModule
from meshwright.core.records import dataclass
from meshwright.ir.contract import ArrayLike, Value
from meshwright.ir.op import Dual, Tangent
from meshwright.ir.reading import reads
from meshwright.ops.elementwise.expanded import Expanded, chebyshev
from meshwright.ops.elementwise.table import (
    abs_,
    add,
    div,
    exp,
    integer_pow,
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

special = LateModule("scipy.special")


#: number of Chebyshev points
POINTS = 400


@cache
def _near(order: int) -> np.ndarray:
    """Coefficients of ``ive(order, x) / x**order`` in ``x/4 - 1``; this has no zero, so small values keep their
    digits."""
    return chebinterpolate(lambda t: special.ive(order, 4 * (t + 1)) / (4 * (t + 1)) ** order, POINTS)[:31]


@cache
def _far(order: int) -> np.ndarray:
    """Coefficients of ``sqrt(x) ive(order, x)`` in ``16/x - 1``, beyond 8."""
    return chebinterpolate(lambda t: special.ive(order, 16 / (t + 1)) * np.sqrt(16 / (t + 1)), POINTS)[:26]


def _below(order: int, size: Any) -> Any:
    small = min_(size, scalar_like(8, size))
    return chebyshev(_near(order), sub(div(small, scalar_like(4, size)), scalar_like(1, size)))


def _above(order: int, size: Any) -> Any:
    large = max_(size, scalar_like(8, size))
    return div(chebyshev(_far(order), sub(div(scalar_like(16, size), large), scalar_like(1, size))), sqrt(large))


@dataclass(frozen=True)
class _Scaled(Expanded):
    """Base class: ``exp(-abs(x)) I_n(x)`` of order ``n``."""

    accepts: ClassVar[tuple[str, ...]] = ("f",)
    order: ClassVar[int]

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        (x,), (t,) = primals, tangents
        y = self.bind(x)
        return y, mul(t, sub(_slope(scaled_bessel, self.order, x), mul(sign(x), y)))

    def expand(self, x: Value) -> Value:
        size, odd = abs_(x), self.order % 2
        near, far = mul(integer_pow(x, self.order), _below(self.order, size)), _above(self.order, size)
        if not self.order:
            near = min_(near, scalar_like(1, x))  # its value at 0, which rounding must not exceed
        return select(le(size, scalar_like(8, x)), near, mul(sign(x), far) if odd else far)


def _of_order(order: int, class_name: str, result: float) -> type[_Scaled]:
    name = f"bessel_i{order}e"
    doc = f"""Modified Bessel function of order {order}, times ``exp(-abs(x))``.

    Example:
      >>> round(float(lax.{name}(np.float32(1))), 4)
      {result}
    """
    members = {"order": order, "name": name, "__doc__": doc, "__module__": __name__}
    return dataclass(frozen=True)(type(class_name, (_Scaled,), members))


BesselI0e = _of_order(0, "BesselI0e", 0.4658)
BesselI1e = _of_order(1, "BesselI1e", 0.2079)


@dataclass(frozen=True)
class BesselIe(_Scaled):
    """Modified Bessel function of any order, times ``exp(-abs(x))``, needed for derivatives of the others."""

    order: int  # type: ignore[misc]
    name: ClassVar[str] = "bessel_ie"


def scaled_bessel(order: int) -> Expanded:
    """The op of this order."""
    return (bessel_i0e, bessel_i1e)[order] if order < 2 else BesselIe(order)


@dataclass(frozen=True)
class BesselI(Expanded):
    """Modified Bessel function of any order."""

    order: int
    name: ClassVar[str] = "bessel_i"
    accepts: ClassVar[tuple[str, ...]] = ("f",)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        (x,), (t,) = primals, tangents
        return self.bind(x), mul(t, _slope(BesselI, self.order, x))

    def expand(self, x: Value) -> Value:
        half = exp(mul(abs_(x), scalar_like(0.5, x)))  # exp(abs(x)) overflows before the product does
        return mul(half, mul(half, scaled_bessel(self.order).expand(x)))


def _slope(of_order: Callable[[int], Expanded], order: int, x: Any) -> Any:
    """The derivative of ``I_n`` by DLMF 10.29.1, which does not divide by ``x``; factors that are constant here are
    included."""
    above = of_order(order + 1)(x)
    return mul(add(of_order(order - 1)(x), above), scalar_like(0.5, x)) if order else above


bessel_i0e: Expanded = BesselI0e()
bessel_i1e: Expanded = BesselI1e()


@reads("chlo.bessel_i1e")
def _read_bessel_i1e(r: Any) -> Any:
    return bessel_i1e(*r.operands)
