"""The regularized incomplete beta function, by the continued fraction of DLMF 8.17.22.

The fraction is evaluated forwards by the method of Lentz and Thompson (Thompson and Barnett 1986, "Coulomb and Bessel
functions of complex arguments and order"), on the side of the mean where it converges quickly:
``I_x(a, b) = 1 - I_{1-x}(b, a)``. Its factor ``x^a (1 - x)^b / B(a, b)`` is computed without cancellation (Loader 2000,
"Fast and accurate computation of binomial probabilities").
"""

from __future__ import annotations

from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from meshwright.core.records import dataclass
from meshwright.ir.op import Unknown
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.base import Partial
from meshwright.ops.elementwise.expanded import Expanded, constant, loop
from meshwright.ops.elementwise.table import abs_, exp, is_finite, lgamma, log, log1p, max_, min_, select, sqrt
from meshwright.ops.special.incomplete_gamma import LARGE, minus_log, stirling_error

#: maximum number of pairs of terms of the fraction, which needs about sqrt(max(a, b)) of them
_MOST_STEPS = 20_000


def _factor(a: Any, b: Any, x: Any, rest: Any) -> Any:
    """``x^a (1 - x)^b / B(a, b)``; ``rest`` is ``1 - x``."""
    large, small = max_(a, b), min_(a, b)
    of_large, of_small = select(a >= b, x, rest), select(a >= b, rest, x)
    floor = constant(LARGE, a)
    safe, other = max_(large, floor), max_(small, floor)
    total = safe + other
    # Both are large: the distance of x from the mean, a / (a + b).
    u, v = (of_large * total - safe) / safe, (of_small * total - other) / other
    fall = safe * minus_log(u, 1 + u) + other * minus_log(v, of_small * total / other)
    error = stirling_error(total) - stirling_error(safe) - stirling_error(other)
    both = exp(error - fall) * sqrt(safe / total * other / (2 * np.pi))
    # One is large: log Gamma(small + large) - log Gamma(large) by their Stirling series.
    total = safe + small
    grown = (safe - 0.5) * log1p(small / safe) - small + stirling_error(total) - stirling_error(safe)
    one = exp(small * log(of_small * total) + safe * _log_of(of_large, of_small) + grown - lgamma(small))
    shift = lgamma(a + b) - lgamma(a) - lgamma(b)
    none = exp(a * _log_of(x, rest) + b * _log_of(rest, x) + shift)
    return select(small >= LARGE, both, select(large >= LARGE, one, none))


def _log_of(x: Any, rest: Any) -> Any:
    """``log(x)``, given also ``1 - x``."""
    return select(x < 0.5, log(x), log1p(-rest))


def _nonzero(x: Any) -> Any:
    tiny = float(ml_dtypes.finfo(typeof(x).dtype).tiny)
    return select(abs_(x) < tiny, constant(tiny, x), x)


def _unfinished(a: Any, b: Any, x: Any, m: Any, c: Any, d: Any, value: Any, change: Any) -> Any:
    eps = 2 * float(ml_dtypes.finfo(typeof(x).dtype).eps)
    return (abs_(change - 1) > eps) & (m < _MOST_STEPS)


def _two_terms(a: Any, b: Any, x: Any, m: Any, c: Any, d: Any, value: Any, change: Any) -> list[Any]:
    even = a + 2 * m
    term = -(a + m) / even * ((a + b + m) / (even + 1)) * x
    c, d = _nonzero(1 + term / c), 1 / _nonzero(1 + term * d)
    value = value * (c * d)
    m = m + 1
    even = a + 2 * m
    term = m / (even - 1) * ((b - m) / even) * x
    c, d = _nonzero(1 + term / c), 1 / _nonzero(1 + term * d)
    return [m, c, d, value * (c * d), c * d]


def _fraction(a: Any, b: Any, x: Any) -> Any:
    """``I_x(a, b) a B(a, b) / (x^a (1 - x)^b)``, where x is not far above the mean."""
    one, zero = constant(1, x), constant(0, x)
    *_, value, _ = loop(_unfinished, _two_terms, [a, b, x], [zero, one, zero, one, constant(2, x)])
    return 1 / value


def _density(a: Any, b: Any, x: Any) -> Any:
    """``x^(a - 1) (1 - x)^(b - 1) / B(a, b)``."""
    shift = lgamma(a + b) - lgamma(a) - lgamma(b)
    left = select(a == 1, constant(0, x), (a - 1) * log(x))
    right = select(b == 1, constant(0, x), (b - 1) * log1p(-x))
    return exp(left + right + shift)


@dataclass(frozen=True)
class Betainc(Expanded):
    """The regularized incomplete beta function I_x(a, b), for arrays of one shape.

    NaN for negative a or b, and x outside [0, 1]; differentiable only with respect to ``x``.

    Example:
      >>> round(float(lax.betainc(np.float32(1), np.float32(2), np.float32(0.5))), 4)
      0.75
    """

    name: ClassVar[str] = "betainc"
    accepts: ClassVar[tuple[str, ...]] = ("f", "f", "f")
    partials: ClassVar[tuple[Partial, ...]] = (
        Unknown("a"),
        Unknown("b"),
        lambda t, y, a, b, x: t * _density(a, b, x),
    )

    def expand(self, a: Any, b: Any, x: Any) -> Any:
        inside = (a > 0) & (b > 0) & is_finite(a) & is_finite(b) & (x > 0) & (x < 1)
        one, half = constant(1, x), constant(0.5, x)
        a_, b_, x_ = select(inside, a, one), select(inside, b, one), select(inside, x, half)
        upper = x_ > (a_ + 1) / (a_ + b_ + 2)
        rest = 1 - x_
        first, second = select(upper, b_, a_), select(upper, a_, b_)
        near, far = select(upper, rest, x_), select(upper, x_, rest)
        value = _factor(first, second, near, far) / first * _fraction(first, second, near)
        value = select(upper, 1 - value, value)
        # The limits: all weight is at 0 for a = 0 or b = inf, at 1 for b = 0 or a = inf.
        at_zero, at_one = (a == 0) | (b == np.inf), (b == 0) | (a == np.inf)
        value = select((x == 0) | (at_one & (x < 1)), constant(0, x), value)
        value = select((x == 1) | (at_zero & (x > 0)), one, value)
        defined = (a >= 0) & (b >= 0) & (x >= 0) & (x <= 1) & ~(at_zero & at_one)
        return select(defined, value, constant(np.nan, x))


betainc = Betainc()


def log_beta(a: Any, b: Any) -> Any:
    """The logarithm of ``Gamma(a) Gamma(b) / Gamma(a + b)``, without cancellation for a large parameter."""
    # Not maximum and minimum: their derivatives at equal arguments are 1/2, which makes second derivatives wrong.
    large, small = select(a >= b, a, b), select(a >= b, b, a)
    is_large = large >= LARGE
    safe = select(is_large, large, constant(LARGE, large))  # so that the slope is 1 also at LARGE
    total = safe + small
    grown = (safe - 0.5) * log1p(small / safe) + small * (log(total) - 1)
    near = lgamma(small) - grown - stirling_error(total) + stirling_error(safe)
    return select(is_large & (small > -0.5 * large), near, lgamma(a) + lgamma(b) - lgamma(a + b))
