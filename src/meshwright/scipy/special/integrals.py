"""Exponential, sine, cosine and Fresnel integrals, and the dilogarithm.

They are fitted: near 0 without their logarithmic term, and for large arguments as the slowly varying factors of their
asymptotic forms (DLMF 6.12, 7.12, 25.12).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from scipy import special

from meshwright.ir.tracing import typeof
from meshwright.numpy.logic import where
from meshwright.numpy.manipulation import broadcast_arrays
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.expanded import constant, loop
from meshwright.ops.elementwise.table import abs_, cos, digamma, exp, lgamma, log, max_, sin
from meshwright.scipy.elementwise import elementwise
from meshwright.scipy.special.fits import fitted
from meshwright.transforms.custom_jvp import custom_jvp


# --- exponential integrals --------------------------------------------------------------------------------------
def _ei_near(x: np.ndarray) -> np.ndarray:
    """``(Ei(x) - gamma - log|x|) / x``, an entire function."""
    safe = np.where(np.abs(x) < 1e-8, 1.0, x)
    value = (special.expi(safe) - np.euler_gamma - np.log(np.abs(safe))) / safe
    return np.where(np.abs(x) < 1e-8, 1 + x / 4, value)


def _ei_far(v: np.ndarray) -> np.ndarray:
    """``x exp(-x) Ei(x)`` for ``v = 1 / x``."""
    x = 1 / np.maximum(v, 1 / 600)
    return np.where(v < 1 / 600, _asymptotic_ei(v), x * np.exp(-x) * special.expi(x))


def _asymptotic_ei(v: np.ndarray) -> np.ndarray:
    term, total = np.ones_like(v), np.ones_like(v)
    for k in range(1, 25):
        term = term * k * v
        total = total + term
    return total


def _e1_far(t: np.ndarray) -> np.ndarray:
    """``x exp(x) E1(x)`` for ``t = 1 / x``."""
    x = 1 / np.maximum(t, 1 / 600)
    return np.where(t < 1 / 600, _asymptotic_ei(-t), x * np.exp(x) * special.exp1(x))


def _e1(x: Any) -> Any:
    """E1 for positive numbers."""
    near = where(x < 2, x, 1.0)
    small = near * fitted(_ei_near, -2.0, 0.0, 40, -near) - np.euler_gamma - log(near)
    far = where(x < 2, 2.0, x)
    scaled = where(far > 8, fitted(_e1_far, 0.0, 0.125, 40, 1 / far), fitted(_e1_far, 0.125, 0.5, 40, 1 / far))
    return where(x < 2, small, where(x == np.inf, 0.0, exp(-far) / far * scaled))


def _ei_above_zero(x: Any) -> Any:
    near = where(x < 6, x, 1.0)
    small = near * fitted(_ei_near, 0.0, 6.0, 50, near) + np.euler_gamma + log(near)
    v = 1 / where(x < 6, 6.0, x)
    scaled = fitted(_ei_far, 1 / 12, 1 / 6, 40, v)
    for low, high in ((1 / 24, 1 / 12), (1 / 48, 1 / 24), (0.0, 1 / 48)):
        scaled = where(v < high, fitted(_ei_far, low, high, 40, v), scaled)
    root = exp(where(x == np.inf, 0.0, x) / 2)  # the exponential alone would overflow earlier
    large = where(x == np.inf, np.inf, root * (v * scaled) * root)
    return where(x < 6, small, large)


@custom_jvp
def _expi(x: Any) -> Any:
    value = where(x < 0, -_e1(where(x < 0, -x, 1.0)), _ei_above_zero(where(x > 0, x, 1.0)))
    return where(x == 0, -np.inf, where(x != x, x, value))


_expi.defjvps(lambda t, y, x: t * (exp(x) / x))


@elementwise
def expi(x: Any) -> Any:
    """The exponential integral Ei, the integral of ``exp(t) / t`` from minus infinity to ``x``.

    >>> round(expi(1.0).item(), 4)
    1.8951
    """
    return _expi(x)


@elementwise
def exp1(x: Any) -> Any:
    """The exponential integral E1, the integral of ``exp(-t) / t`` from ``x`` to infinity.

    >>> round(exp1(1.0).item(), 4)
    0.2194
    """
    return -_expi(-x) * where(x < 0, np.nan, 1.0)  # a factor, so that the derivative is NaN too


def _more_of_series(n: Any, x: Any, k: Any, term: Any, total: Any) -> Any:
    eps = float(ml_dtypes.finfo(typeof(x).dtype).eps)
    return abs_(term) > eps * abs_(total)


def _series_step(n: Any, x: Any, k: Any, term: Any, total: Any) -> list[Any]:
    """``-(-x)^k / (k! (k + 1 - n))``, without the term whose denominator is 0. ``term`` is ``(-x)^k / k!``."""
    k = k + 1
    term = term * -x / k
    left = k + 1 - n
    return [k, term, total - where(left == 0, 0.0, term / where(left == 0, 1.0, left))]


def _expn_series(n: Any, x: Any) -> Any:
    """The series DLMF 8.19.8, for ``n >= 1`` and ``x <= 1``."""
    one, zero = constant(1, x), constant(0, x)
    first = where(n == 1, 0.0, -1 / where(n == 1, 1.0, 1 - n))
    *_, total = loop(_more_of_series, _series_step, [n, x], [zero, one, first + zero])
    power = exp((n - 1) * log(x) - lgamma(n))
    sign = where(n - 1 - 2 * ops.floor((n - 1) / 2) == 1, -1.0, 1.0)
    return total + sign * power * (digamma(n) - log(x))


def _more_of_fraction(n: Any, x: Any, k: Any, c: Any, d: Any, value: Any, change: Any) -> Any:
    eps = 2 * float(ml_dtypes.finfo(typeof(x).dtype).eps)
    return (abs_(change - 1) > eps) & (k < 1000)


def _fraction_step(n: Any, x: Any, k: Any, c: Any, d: Any, value: Any, change: Any) -> list[Any]:
    k = k + 1
    a, b = -k * (n - 1 + k), x + n + 2 * k
    d = 1 / (b + a * d)
    c = b + a / c
    return [k, c, d, value * (c * d), c * d]


def _expn_fraction(n: Any, x: Any) -> Any:
    """The continued fraction DLMF 8.19.17 in its even form, by the method of Lentz and Thompson, for ``x >= 1``."""
    zero, d = constant(0, x), 1 / (x + n)
    *_, value, _ = loop(_more_of_fraction, _fraction_step, [n, x], [zero, constant(1e30, x), d, d, constant(2, x)])
    return exp(-x) * value


@custom_jvp
def _expn(n: Any, x: Any) -> Any:
    n, x = broadcast_arrays(n, x)
    inside = (n >= 1) & (x > 0) & (x < np.inf)
    safe = where(inside, n, 1.0)
    small = _expn_series(safe, where(inside & (x <= 1), x, 1.0))
    large = _expn_fraction(safe, where(inside & (x > 1), x, 1.0))
    value = where(x <= 1, small, large)
    value = where(n == 0, exp(-x) / x, value)
    value = where(x == 0, where(n > 1, 1 / where(n > 1, n - 1, 1.0), np.inf), value)
    value = where(x == np.inf, 0.0, value)
    return where((n >= 0) & (x >= 0), value, np.nan)


_expn.defjvps(None, lambda t, y, n, x: -t * _expn(n - 1, x))


@elementwise
def expn(n: Any, x: Any) -> Any:
    """The exponential integral E of order ``n``, the integral of ``exp(-x t) / t^n`` from 1 to infinity.

    ``n`` are nonnegative integers, with respect to which the function is not differentiable.

    >>> round(expn(2, 1.0).item(), 4)
    0.1485
    """
    return _expn(n, x)


# --- sine and cosine integrals ----------------------------------------------------------------------------------
def _si_near(u: np.ndarray) -> np.ndarray:
    x = np.sqrt(np.maximum(u, 1e-12))
    return special.sici(x)[0] / x


def _ci_near(u: np.ndarray) -> np.ndarray:
    """``(Ci(x) - gamma - log x) / x^2``."""
    x = np.sqrt(np.maximum(u, 1e-4))
    value = (special.sici(x)[1] - np.euler_gamma - np.log(x)) / (x * x)
    return np.where(u < 1e-2, -0.25 + u / 96 - u * u / 4320, value)


def _auxiliary(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``x f(x)`` and ``x^2 g(x)`` of DLMF 6.2.17, for ``v = 1 / x^2``."""
    x = 1 / np.sqrt(np.maximum(v, 1e-5))
    si, ci = special.sici(x)
    f = ci * np.sin(x) - (si - np.pi / 2) * np.cos(x)
    g = -ci * np.cos(x) - (si - np.pi / 2) * np.sin(x)
    far = v < 1e-3
    return np.where(far, _alternating(v, 0), x * f), np.where(far, _alternating(v, 1), x * x * g)


def _alternating(v: np.ndarray, first: int, step: int = 1) -> np.ndarray:
    """``sum (-v)^k m!`` for m = 2 k + first; with ``step`` 2 the double factorial of 4 k + first."""
    term, total = np.ones_like(v), np.ones_like(v)
    for k in range(1, 15):
        top = 2 * step * k + first
        term = -v * term * top * (top - step)
        total = total + term
    return total


def _part(pair: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], i: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda v: pair(v)[i]


_f, _g = _part(_auxiliary, 0), _part(_auxiliary, 1)


def _sici_above_zero(x: Any) -> tuple[Any, Any]:
    near = where(x < 6, x, 1.0)
    si = near * fitted(_si_near, 0.0, 36.0, 40, near * near)
    ci = np.euler_gamma + log(near) + near * near * fitted(_ci_near, 0.0, 36.0, 40, near * near)
    far = where((x < 6) | (x == np.inf), 6.0, x)
    v = 1 / (far * far)
    f, g = fitted(_f, 0.0, 1 / 36, 60, v) / far, fitted(_g, 0.0, 1 / 36, 60, v) * v
    si_far = np.pi / 2 - f * cos(far) - g * sin(far)
    ci_far = f * sin(far) - g * cos(far)
    end = x == np.inf
    return (
        where(x < 6, si, where(end, np.pi / 2, si_far)),
        where(x < 6, ci, where(end, 0.0, ci_far)),
    )


@custom_jvp
def _si(x: Any) -> Any:
    value = _sici_above_zero(where(x == 0, 1.0, abs_(x)))[0]
    return where(x == 0, x, where(x < 0, -value, value))


@custom_jvp
def _ci(x: Any) -> Any:
    value = _sici_above_zero(where(x == 0, 1.0, abs_(x)))[1]
    return where(x == 0, -np.inf, where(x == -np.inf, np.nan, value))


def _sinc(x: Any) -> Any:
    safe = where(x == 0, 1.0, x)
    return where(x == 0, 1.0, sin(safe) / safe)


_si.defjvps(lambda t, y, x: t * _sinc(x))
_ci.defjvps(lambda t, y, x: t * (cos(x) / x))


@elementwise
def sici(x: Any) -> Any:
    """The sine and cosine integrals Si and Ci, as a pair of arrays; for negative numbers, Ci is the real part.

    >>> [round(y.item(), 4) for y in sici(1.0)]
    [0.9461, 0.3374]
    """
    return _si(x), _ci(x)


# --- Fresnel integrals ------------------------------------------------------------------------------------------
def _s_near(u: np.ndarray) -> np.ndarray:
    """``S(x) / x^3`` for ``u = x^4``."""
    x = np.maximum(u, 1e-12) ** 0.25
    return special.fresnel(x)[0] / x**3


def _c_near(u: np.ndarray) -> np.ndarray:
    x = np.maximum(u, 1e-12) ** 0.25
    return special.fresnel(x)[1] / x


def _fresnel_auxiliary(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``pi x f(x)`` and ``pi^2 x^3 g(x)`` of DLMF 7.2.10, for ``v = 1 / (pi x^2)^2``."""
    z = 1 / np.sqrt(np.maximum(v, 1e-5))
    x = np.sqrt(z / np.pi)
    s, c = special.fresnel(x)
    f = (0.5 - s) * np.cos(z / 2) - (0.5 - c) * np.sin(z / 2)
    g = (0.5 - c) * np.cos(z / 2) + (0.5 - s) * np.sin(z / 2)
    far = v < 2e-4
    return np.where(far, _alternating(v, -1, 2), np.pi * x * f), np.where(
        far, _alternating(v, 1, 2), np.pi**2 * x**3 * g
    )


_fresnel_f, _fresnel_g = _part(_fresnel_auxiliary, 0), _part(_fresnel_auxiliary, 1)


def _fresnel_above_zero(x: Any) -> tuple[Any, Any]:
    near = where(x < 1.8, x, 1.0)
    square = near * near
    s = square * near * fitted(_s_near, 0.0, 1.8**4, 40, square * square)
    c = near * fitted(_c_near, 0.0, 1.8**4, 40, square * square)
    far = where((x < 1.8) | (x == np.inf), 1.8, x)
    z = np.pi * far * far
    top = float(1 / (np.pi * 1.8**2) ** 2)
    f = fitted(_fresnel_f, 0.0, top, 60, 1 / (z * z)) / (np.pi * far)
    g = fitted(_fresnel_g, 0.0, top, 60, 1 / (z * z)) / (np.pi * z * far)
    # Multiples of a quarter turn are subtracted from the square before it is rounded.
    rest = far - 2 * ops.floor(far / 2)
    whole = far - rest
    turns = 2 * (whole * rest)  # of the largest numbers nothing is left, and twice their whole would be infinite
    turn = np.pi / 2 * (turns + rest * rest - 4 * ops.floor(turns / 4))
    sine, cosine = sin(turn), cos(turn)
    s_far, c_far = 0.5 - f * cosine - g * sine, 0.5 + f * sine - g * cosine
    end = x == np.inf
    return where(x < 1.8, s, where(end, 0.5, s_far)), where(x < 1.8, c, where(end, 0.5, c_far))


def _odd(value: Any, x: Any) -> Any:
    return where(x < 0, -value, where(x != x, x, value))


@custom_jvp
def _fresnel_s(x: Any) -> Any:
    return _odd(_fresnel_above_zero(abs_(x))[0], x)


@custom_jvp
def _fresnel_c(x: Any) -> Any:
    return _odd(_fresnel_above_zero(abs_(x))[1], x)


_fresnel_s.defjvps(lambda t, y, x: t * sin(np.pi / 2 * x * x))
_fresnel_c.defjvps(lambda t, y, x: t * cos(np.pi / 2 * x * x))


@elementwise
def fresnel(x: Any) -> Any:
    """The Fresnel integrals S and C of ``sin(pi t^2 / 2)`` and ``cos(pi t^2 / 2)``, as a pair of arrays.

    >>> [round(y.item(), 4) for y in fresnel(1.0)]
    [0.4383, 0.7799]
    """
    return _fresnel_s(x), _fresnel_c(x)


# --- the dilogarithm --------------------------------------------------------------------------------------------
@custom_jvp
def _spence(x: Any) -> Any:
    large = x > 1.5
    y = where(large, 1 / where(large, x, 1.0), x)
    small = y < 0.5
    inner = where(small, 1 - y, y)
    middle = (1 - inner) * fitted(_spence_near, 0.5, 1.5, 40, inner)
    safe = where(small & (y > 0), y, 0.25)
    value = where(small, np.pi**2 / 6 - log(safe) * ops.log1p(-safe) - middle, middle)
    value = where(y == 0, np.pi**2 / 6, value)
    half = log(max_(x, constant(1, x)))
    value = where(large, -0.5 * half * half - value, value)
    return where(x < 0, np.nan, where(x != x, x, value))


def _spence_near(x: np.ndarray) -> np.ndarray:
    """``spence(x) / (1 - x)``."""
    gap = 1 - x
    safe = np.where(np.abs(gap) < 1e-6, 1e-6, gap)
    return np.where(np.abs(gap) < 1e-6, 1 + gap / 4, special.spence(1 - safe) / safe)


def _spence_slope_near(x: np.ndarray) -> np.ndarray:
    """``log(x) / (1 - x)``."""
    gap = 1 - x
    safe = np.where(gap == 0, 1e-9, gap)
    return np.where(gap == 0, -1.0, np.log1p(-safe) / safe)


def _spence_slope(t: Any, y: Any, x: Any) -> Any:
    near = abs_(x - 1) < 0.25
    away = where(near, 2.0, x)
    return t * where(near, fitted(_spence_slope_near, 0.7, 1.3, 30, x), log(away) / (1 - away))


_spence.defjvps(_spence_slope)


@elementwise
def spence(x: Any) -> Any:
    """Spence's function, the integral of ``log(t) / (1 - t)`` from 1 to ``x``: the dilogarithm of ``1 - x``.

    >>> round(spence(0.0).item(), 4)
    1.6449
    """
    return _spence(x)


__all__ = ["exp1", "expi", "expn", "fresnel", "sici", "spence"]
