"""Elementwise functions of the array library that define their own derivatives.

Their computation selects between cases (equal operands, a remainder of zero, the origin), and the derivative of a
selected constant is zero. So each function states its partial derivatives, which hold everywhere and are differentiable
again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.records import dataclass
from meshwright.ir.contract import ArrayLike, Value
from meshwright.ir.op import CONSTANT, Dual, Tangent
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.base import Partial
from meshwright.ops.elementwise.expanded import Expanded, constant
from meshwright.ops.elementwise.table import (
    abs_,
    add,
    and_,
    ceil,
    complex_,
    cos,
    div,
    eq,
    exp,
    imag,
    is_finite,
    log1p,
    logistic,
    lt,
    max_,
    mul,
    ne,
    neg,
    or_,
    real,
    rem,
    round_half_even,
    scalar_like,
    select,
    sin,
    sub,
)


@dataclass(frozen=True)
class StraightThrough(Expanded):
    """``value`` with the derivative of ``x``. Of two ways to compute a function, it takes values from one and
    derivatives from the other (named after Bengio et al. 2013, "Estimating or propagating gradients")."""

    name: ClassVar[str] = "straight_through"
    accepts: ClassVar[tuple[str, ...]] = ("fc", "fc")
    partials: ClassVar[tuple[Partial, ...]] = (CONSTANT, lambda t, y, value, x: t)

    def expand(self, value: Value, x: Value) -> Value:
        return value


@dataclass(frozen=True)
class FloorRemainder(Expanded):
    """The remainder of ``a / b`` rounded down, which has the sign of ``b`` even if it is zero."""

    name: ClassVar[str] = "floor_remainder"
    accepts: ClassVar[tuple[str, ...]] = ("f", "f")
    partials: ClassVar[tuple[Partial, ...]] = (
        lambda t, y, a, b: t,
        lambda t, y, a, b: neg(mul(t, _floored_quotient(a, b, y))),
    )

    def expand(self, a: Value, b: Value) -> Value:
        r, nil = rem(a, b), scalar_like(0, a)
        crosses = and_(ne(lt(r, nil), lt(b, nil)), ne(r, nil))
        zero = select(lt(b, nil), constant(-0.0, b), constant(0, b))
        return select(eq(r, nil), zero, select(crosses, add(r, b), r))


def _floored_quotient(a: Any, b: Any, remainder: Any) -> Any:
    """``floor(a / b)``, exact where rounding ``a / b`` may reach the next integer."""
    once = select(eq(remainder, a), constant(0, a), constant(-1, a))
    beyond = and_(eq(abs_(b), scalar_like(np.inf, b)), is_finite(a))
    return select(beyond, once, round_half_even(div(sub(a, remainder), b)))


@dataclass(frozen=True)
class LogAddExp(Expanded):
    """``log(exp(a) + exp(b))`` without overflow."""

    name: ClassVar[str] = "logaddexp"
    accepts: ClassVar[tuple[str, ...]] = ("fc", "fc")
    partials: ClassVar[tuple[Partial, ...]] = (
        lambda t, y, a, b: mul(t, _share(a, b, y)),
        lambda t, y, a, b: mul(t, _share(b, a, y)),
    )

    def expand(self, a: Value, b: Value) -> Value:
        top, gap = max_(a, b), sub(a, b)
        far = select(eq(top, a), neg(gap), gap)
        # The difference of equal infinities is NaN; their sum is the infinity (or NaN) itself.
        return principal(select(ne(gap, gap), _without_gap(a, b), add(top, log1p(exp(far)))))


def _without_gap(a: Any, b: Any) -> Any:
    """The sum where ``a - b`` is NaN. For different complex infinities, the angle is unknown."""
    if not dtypes.is_complex(typeof(a).dtype):
        return add(a, b)
    lowest = scalar_like(-np.inf, real(a))
    known = or_(eq(a, b), and_(eq(real(a), lowest), eq(real(b), lowest)))
    nan = constant(np.nan, real(a))
    return select(known, a, complex_(nan, nan))


def principal(x: Any) -> Any:
    """A complex logarithm with its imaginary part, which products or sums may move, in (-pi, pi]."""
    if not dtypes.is_complex(typeof(x).dtype):
        return x
    turn, half = scalar_like(2 * np.pi, imag(x)), scalar_like(np.pi, imag(x))
    turns = ceil(div(sub(imag(x), half), turn))
    inside = select(eq(turns, scalar_like(0, turns)), imag(x), sub(imag(x), mul(turns, turn)))
    return complex_(real(x), inside)


def _share(a: Any, b: Any, y: Any) -> Any:
    """``exp(a - y)``, the fraction of ``a`` in the sum; one half for equal infinities."""
    if dtypes.is_complex(typeof(y).dtype):
        return exp(sub(a, y))
    gap = sub(a, b)
    return logistic(select(and_(eq(a, b), ne(gap, gap)), scalar_like(0, gap), gap))


@dataclass(frozen=True)
class SincDerivative(Expanded):
    """The derivative of the given ``order`` of ``sin(pi x) / (pi x)``; order 0 is the function itself, 1 at 0.

    Uses its power series near 0. Elsewhere, the derivatives ``s_k`` with respect to ``u = pi x`` satisfy
    ``u s_k + k s_(k-1) = sin(u + k pi/2)``, which loses no digits where ``u`` exceeds ``k``.
    """

    order: int = 0
    name: ClassVar[str] = "sinc"
    accepts: ClassVar[tuple[str, ...]] = ("fc",)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        (x,), (t,) = primals, tangents
        return self.bind(x), mul(t, SincDerivative(self.order + 1).bind(x))

    def expand(self, x: Value) -> Value:
        u = mul(x, scalar_like(np.pi, x))
        size = abs_(u)
        near = lt(size, scalar_like(self.order + 1, size))
        one = constant(1, u)
        value = select(near, self._near(select(near, u, constant(0, u))), self._far(select(near, one, u)))
        return mul(value, scalar_like(np.pi**self.order, x))

    def _near(self, u: Any) -> Any:
        """The terms ``(-1)^m (2m)! / ((2m + 1)! (2m - k)!) u^(2m - k)``, by Horner's rule in ``u^2``."""
        k, first = self.order, (self.order + 1) // 2
        terms = [(-1) ** m / ((2 * m + 1) * math.factorial(2 * m - k)) for m in range(first, first + 12 + 2 * k)]
        total, square = constant(terms[-1], u), mul(u, u)
        for c in terms[-2::-1]:
            total = add(mul(total, square), scalar_like(c, u))
        return mul(total, u) if k % 2 else total

    def _far(self, u: Any) -> Any:
        value = div(sin(u), u)
        for k in range(1, self.order + 1):
            wave = sin(u) if k % 2 == 0 else cos(u)
            signed = neg(wave) if k % 4 in (2, 3) else wave
            value = div(sub(signed, mul(value, scalar_like(k, u))), u)
        return value


straight_through: Expanded = StraightThrough()
floor_remainder: Expanded = FloorRemainder()
logaddexp: Expanded = LogAddExp()
sinc: Expanded = SincDerivative()
