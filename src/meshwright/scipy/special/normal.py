"""Error functions and the normal distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special

from meshwright.numpy.functions import erf, erfc
from meshwright.numpy.functions import erf_inv as erfinv
from meshwright.numpy.logic import where
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import abs_, exp, log, log1p, sqrt
from meshwright.scipy.elementwise import elementwise
from meshwright.scipy.special.fits import fitted
from meshwright.transforms.custom_jvp import custom_jvp

_ROOT_TWO = float(np.sqrt(2))
_ROOT_TWO_PI = float(np.sqrt(2 * np.pi))
_TWO_BY_ROOT_PI = float(2 / np.sqrt(np.pi))


# --- scaled error functions -------------------------------------------------------------------------------------
def _scaled_tail(t: np.ndarray) -> np.ndarray:
    """``(1 + 2 x) erfcx(x)`` for ``t = 4 / (4 + x)``, which is smooth up to infinity (Schonfelder 1978)."""
    x = 4 / np.maximum(t, 1e-300) - 4
    at_infinity = 2 / math.sqrt(np.pi)
    return np.where(t < 1e-14, at_infinity, (1 + 2 * x) * special.erfcx(x))


def _erfcx_above_zero(x: Any) -> Any:
    finite = where(x == np.inf, 0.0, x)
    value = fitted(_scaled_tail, 0.0, 1.0, 30, 4 / (4 + finite)) / (1 + 2 * finite)
    return where(x == np.inf, 0.0, value)


@custom_jvp
def _erfcx(x: Any) -> Any:
    above = _erfcx_above_zero(abs_(x))
    return where(x < 0, 2 * exp(x * x) - above, above)


def _scaled_tail_slope(t: np.ndarray) -> np.ndarray:
    """``(1 + 2 x)^2 erfcx'(x)`` for ``t = 4 / (4 + x)``."""
    x = 4 / np.maximum(t, 1e-300) - 4
    v = 1 / np.maximum(x, 50.0) ** 2
    far = -((2 + 1 / np.maximum(x, 50.0)) ** 2) * (1 - 1.5 * v + 3.75 * v**2 - 13.125 * v**3) / math.sqrt(np.pi)
    near = np.minimum(x, 50.0)
    return np.where(x < 50, (1 + 2 * near) ** 2 * (2 * near * special.erfcx(near) - _TWO_BY_ROOT_PI), far)


def _erfcx_slope(x: Any) -> Any:
    """The derivative. For positive ``x``, the terms of ``2 x erfcx(x) - 2 / sqrt(pi)`` nearly cancel.

    So the slope is fitted, on an interval that is larger than necessary, so that there is a slope at its end.
    """
    size = where(abs_(x) == np.inf, 0.0, abs_(x))
    slope = fitted(_scaled_tail_slope, 0.0, 1.05, 30, 4 / (4 + size)) / (1 + 2 * size) / (1 + 2 * size)
    below = where(x < 0, x, 0.0)
    return where(x == np.inf, 0.0, where(x < 0, 4 * below * exp(below * below), 0.0) + slope)


_erfcx.defjvps(lambda t, y, x: t * _erfcx_slope(x))


@elementwise
def erfcx(x: Any) -> Any:
    """The scaled complementary error function ``exp(x^2) erfc(x)``, which does not underflow.

    >>> erfcx(0.0).item()
    1.0
    """
    return _erfcx(x)


def _dawson_near(u: np.ndarray) -> np.ndarray:
    x = np.sqrt(np.maximum(u, 1e-30))
    return special.dawsn(x) / x


def _dawson_far(v: np.ndarray) -> np.ndarray:
    """``x F(x)`` for ``v = 1 / x^2``."""
    x = 1 / np.sqrt(np.maximum(v, 1e-30))
    return x * special.dawsn(x)


@custom_jvp
def _dawsn(x: Any) -> Any:
    size = abs_(x)
    large = where(size < 5, 5.0, size)
    near = fitted(_dawson_near, 0.0, 25.0, 60, where(size < 5, x * x, 0.0))
    far = fitted(_dawson_far, 0.0, 0.04, 40, 1 / (large * large)) / large
    return where(size < 5, x * near, where(x < 0, -far, far))


def _dawson_far_slope(v: np.ndarray) -> np.ndarray:
    """``x^2 F'(x)`` for ``v = 1 / x^2``."""
    x = 1 / np.sqrt(np.maximum(v, 1e-4))
    series = -0.5 - 0.75 * v - 1.875 * v**2 - 6.5625 * v**3
    return np.where(v < 1e-4, series, x * x * (1 - 2 * x * special.dawsn(x)))


def _dawsn_slope(y: Any, x: Any) -> Any:
    """The derivative. For large ``x``, the formula ``1 - 2 x F(x)`` is not used, as its terms nearly cancel."""
    size = abs_(x)
    large = where(size < 5, 5.0, size)
    far = fitted(_dawson_far_slope, 0.0, 0.042, 40, 1 / (large * large)) / large / large
    return where(size < 5, 1 - 2 * where(size < 5, x * y, 0.0), far)


_dawsn.defjvps(lambda t, y, x: t * _dawsn_slope(y, x))


@elementwise
def dawsn(x: Any) -> Any:
    """Dawson's integral, ``exp(-x^2)`` times the integral of ``exp(t^2)`` from 0 to ``x``.

    >>> dawsn(0.0).item()
    0.0
    """
    return _dawsn(x)


# --- the normal distribution ------------------------------------------------------------------------------------
@elementwise
def ndtr(x: Any) -> Any:
    """The cumulative distribution function of the standard normal distribution.

    >>> ndtr(0.0).item()
    0.5
    """
    return 0.5 * ops.erfc(x / -_ROOT_TWO)


@custom_jvp
def _log_ndtr(x: Any) -> Any:
    low = where(x < 0, x, 0.0)
    below = log(_erfcx_above_zero(low / -_ROOT_TWO) / 2) - low * low / 2
    high = where(x < 0, 0.0, x)
    return where(x < 0, below, log1p(-0.5 * ops.erfc(high / _ROOT_TWO)))


def _log_ndtr_slope(y: Any, x: Any) -> Any:
    """The density divided by the distribution function, both scaled where they would underflow."""
    low, high = where(x < 0, x, 0.0), where(x < 0, 0.0, x)
    below = 2 / _ROOT_TWO_PI / _erfcx_above_zero(low / -_ROOT_TWO)
    return where(x < 0, below, exp(-high * high / 2 - where(x < 0, 0.0, y)) / _ROOT_TWO_PI)


_log_ndtr.defjvps(lambda t, y, x: t * _log_ndtr_slope(y, x))


def log_ndtr(x: Any, series_order: int = 3) -> Any:
    """The logarithm of :func:`ndtr`, accurate for large negative numbers too.

    Args:
      x: an array of any shape, or a number.
      series_order: has no effect; accepted for compatibility.

    Raises:
      DTypeError, ArgumentTypeError: ``x`` is not an array of real numbers.

    >>> round(log_ndtr(-100.0).item(), 2)
    -5005.52
    """
    return _log_ndtr_of(x)


@elementwise
def _log_ndtr_of(x: Any) -> Any:
    return _log_ndtr(x)


def _lower_quantile(log_p: Any) -> Any:
    """The quantile of ``exp(log_p)``, which is at most 1/50: its asymptotic form, improved by Newton's method."""
    square = -2 * log_p
    x = -sqrt(square - log(2 * np.pi * (square - log(2 * np.pi * square))))
    for _ in range(4):
        tail = _erfcx_above_zero(x / -_ROOT_TWO)
        error = log(tail / 2) - x * x / 2 - log_p
        x = x - error * tail * (_ROOT_TWO_PI / 2)
    return x


@custom_jvp
def _ndtri(p: Any) -> Any:
    low, high = p < 0.02, p > 0.98
    least = where(low, p, where(high, 1 - p, 0.01))
    tail = _lower_quantile(log(where(least > 0, least, 0.01)))
    tail = where(least > 0, tail, -np.inf)
    middle = _ROOT_TWO * ops.erf_inv(2 * where(low | high, 0.5, p) - 1)
    value = where(low, tail, where(high, -tail, middle))
    return where((p >= 0) & (p <= 1), value, np.nan)


_ndtri.defjvps(lambda t, y, p: t * (_ROOT_TWO_PI * exp(y * y / 2)))


@elementwise
def ndtri(p: Any) -> Any:
    """The inverse of :func:`ndtr`: quantiles of the standard normal distribution.

    >>> ndtri(0.5).item()
    0.0
    """
    return _ndtri(p)


def _owens(h: Any, a: Any) -> Any:
    """Owen's T function for ``0 <= a <= 1``, by Gauss-Legendre quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(32)
    total: Any = 0.0
    for node, weight in zip((nodes + 1) / 2, weights / 2):
        factor = 1 + (a * float(node)) * (a * float(node))
        total = total + float(weight) * exp(-0.5 * h * h * factor) / factor
    return total * a / (2 * np.pi)


@custom_jvp
def _owens_t(h: Any, a: Any) -> Any:
    h, size = abs_(h), abs_(a)
    small = _owens(h, where(size < 1, size, 1.0))
    large = where(size < 1, 1.0, size)
    # T(h, a) + T(a h, 1 / a) = (Phi(h) + Phi(a h)) / 2 - Phi(h) Phi(a h) (Owen 1956), computed with the upper tails.
    ah = where((h == 0) | (size < 1), h, h * large)
    upper, other = (0.5 * ops.erfc(v / _ROOT_TWO) for v in (h, ah))
    beyond = (upper + other) / 2 - upper * other - _owens(ah, 1 / large)
    value = where(size <= 1, small, beyond)
    return where(a < 0, -value, value)


_owens_t.defjvps(
    lambda t, y, h, a: t * (exp(-h * h / 2) * ops.erf(a * h / _ROOT_TWO) / (-2 * _ROOT_TWO_PI)),
    lambda t, y, h, a: t * (exp(-h * h * (1 + a * a) / 2) / (2 * np.pi * (1 + a * a))),
)


@elementwise
def owens_t(h: Any, a: Any) -> Any:
    """Owen's T function: the probability of ``X > h`` and ``0 < Y < a X`` for independent standard normal X and Y.

    >>> round(owens_t(0.0, 1.0).item(), 4)
    0.125
    """
    return _owens_t(h, a)


__all__ = ["dawsn", "erf", "erfc", "erfcx", "erfinv", "log_ndtr", "ndtr", "ndtri", "owens_t"]
