"""The incomplete gamma functions and their derivatives, by a series or by quadrature of a tail.

With ``D = x^a e^-x / Gamma(a + 1)``, each of them is D times a moderate factor, which one core function computes:

- Where ``x < a`` or ``x < 1``, ``P = D S`` by the power series of DLMF 8.7.1, whose terms are all positive.
- Otherwise, and for large ``a``, the smaller of ``P`` and ``Q = 1 - P`` is a tail of the density, truncated where it
  falls below the dtype's precision, by Gauss-Legendre quadrature. The idea is from Numerical Recipes (3rd edition,
  6.2), which uses it only for large ``a``; truncated according to the density itself, it works everywhere.

The derivative with respect to ``a`` is that of the terms of the series, or ``log t - digamma(a)`` under the integral. D
is computed without cancellation (Loader 2000, "Fast and accurate computation of binomial probabilities").
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from meshwright.core.records import dataclass
from meshwright.ir.op import Unknown
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.ops.control.while_loop import While
from meshwright.ops.elementwise.base import Partial
from meshwright.ops.elementwise.expanded import Expanded, constant, loop, polynomial
from meshwright.ops.elementwise.table import abs_, digamma, exp, is_finite, lgamma, log, max_, min_, select, sqrt
from meshwright.ops.indexing.dynamic_slice import dynamic_index_in_dim
from meshwright.ops.reduce.reductions import reduce_or

#: from here on, Stirling's series is accurate to working precision
LARGE = 10.0
#: from here on, the lower tail is integrated, since the series would need more than a hundred terms
_MANY_TERMS = 100.0
#: Stirling's series for log Gamma (DLMF 5.11.1): the coefficients of 1/a, 1/a^3, ...
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)


def stirling_error(a: Any) -> Any:
    """``log Gamma(a) - ((a - 1/2) log a - a + log(2 pi) / 2)`` for ``a`` of at least ten."""
    return polynomial(_STIRLING, 1 / (a * a)) / a


def log_minus_digamma(a: Any) -> Any:
    """``log a - digamma(a)`` for ``a`` of at least ten (DLMF 5.11.2)."""
    square = 1 / (a * a)
    return 0.5 / a + square * polynomial([(2 * n + 1) * c for n, c in enumerate(_STIRLING)], square)


def minus_log(u: Any, ratio: Any) -> Any:
    """``u - log(ratio)``, where ``ratio`` is ``1 + u``, without cancellation for small ``u``."""
    # log(1 + u) = 2 atanh(r) for r = u / (2 + u), and u - 2 r = u r.
    r = u / (2 + u)
    square = r * r
    near = u * r - 2 * r * square * polynomial([1 / n for n in (3, 5, 7, 9, 11, 13, 15)], square)
    return select(abs_(r) < 0.1, near, u - log(ratio))


def _scale(a: Any, x: Any) -> Any:
    """``D``."""
    safe = max_(a, constant(LARGE, a))
    fall = safe * minus_log((x - safe) / safe, x / safe) + stirling_error(safe)
    small = exp(a * log(x) - x - lgamma(a + 1))
    return select(a >= LARGE, exp(-fall) / sqrt(2 * np.pi * safe), small)


def _shift(a: Any, x: Any) -> Any:
    """``log x - digamma(a + 1)``."""
    safe = max_(a, constant(LARGE, a))
    u = (x - safe) / safe
    large = u - minus_log(u, x / safe) + log_minus_digamma(safe) - 1 / safe
    return select(a >= LARGE, large, log(x) - digamma(a + 1))


# --- the series ---------------------------------------------------------------------------------------------
def _unfinished(a: Any, x: Any, n: Any, term: Any, harmonic: Any, total: Any, slope: Any) -> Any:
    """Whether the series need more terms: always while the terms still grow (``a + n < x``), however small they are."""
    eps = float(ml_dtypes.finfo(typeof(x).dtype).eps)
    large = (term > eps * total) | (term * harmonic > -eps * slope)
    return ((x > a + n) & is_finite(x)) | large


def _next_term(a: Any, x: Any, n: Any, term: Any, harmonic: Any, total: Any, slope: Any) -> list[Any]:
    n = n + 1
    term = term * x / (a + n)
    harmonic = harmonic + 1 / (a + n)
    return [n, term, harmonic, total + term, slope - term * harmonic]


def _series(a: Any, x: Any) -> tuple[Any, Any]:
    """``P / D``, the sum of terms ``x^n / ((a + 1) ... (a + n))``, and ``dP/da / D``: the derivative of a term is minus
    the term times ``1 / (a + 1) + ... + 1 / (a + n)``."""
    zero, one = constant(0, x), constant(1, x)
    *_, total, slope = loop(_unfinished, _next_term, [a, x], [zero, one, zero, one, zero])
    return total, slope + total * _shift(a, x)


# --- the tails ----------------------------------------------------------------------------------------------
@cache
def _nodes(dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, float]:
    """Nodes and weights on [0, 1], and the decrease of the exponent at which the tail is truncated."""
    wide = dtype == np.float64
    x, w = np.polynomial.legendre.leggauss(64 if wide else 28)
    return ((x + 1) / 2).astype(dtype), (w / 2).astype(dtype), 38.0 if wide else 18.0


def _above(b: Any, x: Any, fall: float) -> Any:
    """The fraction of ``x`` beyond which ``t^b e^-t`` has decreased at least by the factor ``exp(-fall)``.

    By ``log(1 + u) <= u - u^2 / (2 (1 + u))``, it is the solution of a quadratic equation for u.
    """
    b = max_(b, constant(0, b))
    first, second = x - b / 2, x - b - fall
    root = sqrt(second * second + 4 * fall * first)
    return select(second > 0, 2 * fall / (second + root), (root - second) / (2 * first))


def _below(b: Any, x: Any, fall: float) -> Any:
    """The fraction of ``x`` in the lower tail, as a negative number, by ``-log(1 - v) >= v + v^2 / 2``."""
    root = sqrt((b - x) * (b - x) + 2 * fall * max_(b, constant(1, b)))
    return -min_(2 * fall / (b - x + root), constant(1, b))


def _tail(a: Any, x: Any, upper: Any, mask: Any) -> tuple[Any, Any]:
    """The tail above or below ``x``, and its derivative, both divided by D."""
    places, weights, fall = _nodes(typeof(x).dtype)
    # Where the mask is false, use harmless numbers; if it is false everywhere, the loop does not run.
    a, x = select(mask, a, constant(1, a)), select(mask, x, constant(1, x))
    share = select(upper, _above(a - 1, x, fall), _below(a - 1, x, fall))
    shift = _shift(a, x) + 1 / a
    needed = reduce_or(mask, range(typeof(mask).ndim))
    first = select(needed, np.int32(0), np.int32(len(places)))

    def again(number: Any, total: Any, slope: Any) -> list[Any]:
        return [number < len(places)]

    def step(places: Any, weights: Any, a: Any, x: Any, share: Any, shift: Any,
             number: Any, total: Any, slope: Any) -> list[Any]:  # fmt: skip
        place, weight = (dynamic_index_in_dim(v, number, 0, False) for v in (places, weights))
        u = share * place
        curved = minus_log(u, 1 + u)
        density = weight * exp((a - 1 - x) * u - (a - 1) * curved)
        return [number + 1, total + density, slope + density * (u - curved + shift)]

    consts = [places, weights, a, x, share, shift]
    carry = [first, constant(0, x), constant(0, x)]
    types = [typeof(v).strong() for v in (*consts, *carry)]
    op = While(trace_to_jaxpr(step, types), len(consts), trace_to_jaxpr(again, types[len(consts) :]), 0)
    _, total, slope = op.bind(*consts, *carry)
    scale = a * abs_(share)
    return scale * total, scale * slope


# --- all of them --------------------------------------------------------------------------------------------
def _core(a: Any, x: Any) -> tuple[Any, Any, Any]:
    """Whether the following is for P rather than Q, its value, and its derivative with respect to ``a``, both divided
    by D."""
    # Outside the domain the series may not end, nor the tails be finite; results there are not used.
    inside = _defined(a, x) & is_finite(a) & is_finite(x)
    a, x = select(inside, a, constant(1, a)), select(inside, x, constant(1, x))
    lower = (x < a) | (x < 1)
    summed = lower & (a < _MANY_TERMS)
    tail = ~summed & inside
    value, slope = _series(select(summed, a, constant(1, a)), select(summed, x, constant(0, x)))
    other, other_slope = _tail(a, x, ~lower, tail)
    return lower, select(summed, value, other), select(summed, slope, other_slope)


def _defined(a: Any, x: Any) -> Any:
    """Whether neither is negative or NaN, and not both are zero or infinite."""
    return (a >= 0) & (x >= 0) & ((a > 0) | (x > 0)) & (is_finite(a) | is_finite(x))


def _chosen(a: Any, x: Any, value: Any, at_zero: float, at_infinity: float) -> Any:
    """``value``, with its limits for ``x`` (those for ``a`` are swapped), and NaN outside the domain."""
    nan, zero, infinity = (constant(v, x) for v in (np.nan, at_zero, at_infinity))
    value = select((x == 0) | (a == np.inf), zero, value)
    value = select((x == np.inf) | (a == 0), infinity, value)
    return select(_defined(a, x), value, nan)


def _slope_of_x(t: Any, y: Any, a: Any, x: Any) -> Any:
    """The derivative of P with respect to x is the density."""
    return t * gamma_density(a, x)


@dataclass(frozen=True)
class GammaDensity(Expanded):
    """``x^(a - 1) e^-x / Gamma(a)``."""

    name: ClassVar[str] = "gamma_density"
    accepts: ClassVar[tuple[str, ...]] = ("f", "f")
    partials: ClassVar[tuple[Partial, ...]] = (
        lambda t, y, a, x: t * y * (log(x) - digamma(a)),
        lambda t, y, a, x: t * y * ((a - 1) / x - 1),
    )

    def expand(self, a: Any, x: Any) -> Any:
        edge = select(a < 1, constant(np.inf, x), select(a == 1, constant(1, x), constant(0, x)))
        value = select(x == 0, edge, a * _scale(a, x) / x)
        return select(x == np.inf, constant(0, x), value)


@dataclass(frozen=True)
class Igamma(Expanded):
    """The regularized lower incomplete gamma function P(a, x), for arrays of one shape.

    NaN for negative operands.

    Example:
      >>> round(float(lax.igamma(np.float32(1), np.float32(2))), 5)
      0.86466
    """

    name: ClassVar[str] = "igamma"
    accepts: ClassVar[tuple[str, ...]] = ("f", "f")
    partials: ClassVar[tuple[Partial, ...]] = (lambda t, y, a, x: t * igamma_grad_a(a, x), _slope_of_x)

    def expand(self, a: Any, x: Any) -> Any:
        lower, value, _ = _core(a, x)
        value = _scale(a, x) * value
        return _chosen(a, x, select(lower, value, 1 - value), 0, 1)


@dataclass(frozen=True)
class Igammac(Expanded):
    """The regularized upper incomplete gamma function Q(a, x) = 1 - P(a, x), for arrays of one shape.

    Example:
      >>> round(float(lax.igammac(np.float32(1), np.float32(2))), 5)
      0.13534
    """

    name: ClassVar[str] = "igammac"
    accepts: ClassVar[tuple[str, ...]] = ("f", "f")
    partials: ClassVar[tuple[Partial, ...]] = (
        lambda t, y, a, x: -(t * igamma_grad_a(a, x)),
        lambda t, y, a, x: -_slope_of_x(t, y, a, x),
    )

    def expand(self, a: Any, x: Any) -> Any:
        lower, value, _ = _core(a, x)
        value = _scale(a, x) * value
        return _chosen(a, x, select(lower, 1 - value, value), 1, 0)


@dataclass(frozen=True)
class IgammaGradA(Expanded):
    """The derivative of P(a, x) with respect to ``a``, for arrays of one shape.

    Example:
      >>> round(float(lax.igamma_grad_a(np.float32(1), np.float32(2))), 4)
      -0.2208
    """

    name: ClassVar[str] = "igamma_grad_a"
    accepts: ClassVar[tuple[str, ...]] = ("f", "f")
    partials: ClassVar[tuple[Partial, ...]] = (
        Unknown("a", "it is a derivative by a already"),
        lambda t, y, a, x: t * gamma_density(a, x) * (log(x) - digamma(a)),
    )

    def expand(self, a: Any, x: Any) -> Any:
        lower, _, slope = _core(a, x)
        return _chosen(a, x, _scale(a, x) * select(lower, slope, -slope), 0, 0)


@dataclass(frozen=True)
class RandomGammaGrad(Expanded):
    """The derivative of a Gamma(a, 1) variate of value ``x`` with respect to ``a`` at a fixed quantile: ``-(dP/da) /
    (dP/dx)`` (Figurnov et al. 2018, "Implicit reparameterization gradients").

    Example:
      >>> round(float(lax.random_gamma_grad(np.float32(1), np.float32(2))), 4)
      1.6317
    """

    name: ClassVar[str] = "random_gamma_grad"
    accepts: ClassVar[tuple[str, ...]] = ("f", "f")
    partials: ClassVar[tuple[Partial, ...]] = (
        Unknown("a", "it is a derivative by a already"),
        Unknown("x", "the second derivative of a sample by its parameter is not implemented"),
    )

    def expand(self, a: Any, x: Any) -> Any:
        lower, _, slope = _core(a, x)
        # D cancels, so that nothing underflows.
        value = x / a * select(lower, -slope, slope)
        return select(_defined(a, x), select(x == 0, constant(0, x), value), constant(np.nan, x))


gamma_density: Expanded = GammaDensity()
igamma: Expanded = Igamma()
igammac: Expanded = Igammac()
igamma_grad_a: Expanded = IgammaGradA()
random_gamma_grad: Expanded = RandomGammaGrad()
