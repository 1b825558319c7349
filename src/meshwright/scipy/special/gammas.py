"""The gamma function and related functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from meshwright.errors import ArgumentError
from meshwright.numpy.creation import asarray
from meshwright.numpy.functions import digamma, gammaln
from meshwright.numpy.logic import where
from meshwright.numpy.promotion import promotes_freely
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import exp, floor, lgamma
from meshwright.ops.special.incomplete_beta import betainc as _betainc
from meshwright.ops.special.incomplete_beta import log_beta
from meshwright.ops.special.incomplete_gamma import igamma, igammac
from meshwright.scipy.elementwise import as_weak, elementwise


def _sign(x: Any) -> Any:
    """The sign of the gamma function: -1 between -1 and 0, -3 and -2, ...; NaN at its poles."""
    low = floor(x)
    odd = low - 2 * floor(low / 2) == 1
    sign = where((x < 0) & odd, -1.0, 1.0)
    pole = (x < 0) & (low == x)
    typed = 0 * ops.stop_gradient(where(x != x, x, 0.0))
    return where(pole | (x == -np.inf) | (x != x), np.nan, sign) + typed


@elementwise
def gammasgn(x: Any) -> Any:
    """The sign of the gamma function; NaN at its poles, and at 0 the sign of the zero.

    >>> gammasgn(-0.5).item()
    -1.0
    """
    return _signed(x)


def _signed(x: Any) -> Any:
    return where((x == 0) & (1 / where(x == 0, x, 1.0) < 0), -1.0, _sign(x))


def _gamma(x: Any) -> Any:
    at_zero = 1 / where(x == 0, x, 1.0)
    return where(x == 0, at_zero, _sign(x) * exp(lgamma(x)))


@elementwise
def gamma(x: Any) -> Any:
    """The gamma function, NaN at negative integers.

    >>> round(gamma(5.0).item(), 4)
    24.0
    """
    return _gamma(x)


@elementwise
def loggamma(x: Any) -> Any:
    """The logarithm of the gamma function for positive numbers; NaN for others.

    >>> round(loggamma(5.0).item(), 4)
    3.1781
    """
    return gammaln(x) * where(x > 0, 1.0, np.nan)  # a factor, so that the derivative is NaN too


def factorial(n: Any, exact: bool = False) -> Any:
    """``n!``, as a float; 0 for negative numbers.

    Args:
      n: array or number.
      exact: must be False, as in JAX.

    Raises:
      ArgumentError: ``exact`` is True.

    >>> round(factorial(5).item(), 3)
    120.0
    """
    if exact:
        raise ArgumentError("factorial: exact=True would need integers of any size; use math.factorial")
    return _factorial(n)


@elementwise
def _factorial(n: Any) -> Any:
    return where(n < 0, 0.0, exp(lgamma(where(n < 0, 0.0, n) + 1)))


@elementwise
def betaln(a: Any, b: Any) -> Any:
    """The logarithm of the beta function, for positive arguments.

    >>> round(betaln(2.0, 3.0).item(), 4)
    -2.4849
    """
    return as_weak(log_beta(a, b), a, b)


@elementwise
def beta(a: Any, b: Any) -> Any:
    """The beta function, ``gamma(a) gamma(b) / gamma(a + b)``.

    >>> round(beta(2.0, 3.0).item(), 5)
    0.08333
    """
    return _signed(a) * _signed(b) * _sign(a + b) * exp(log_beta(a, b))


@elementwise
def betainc(a: Any, b: Any, x: Any) -> Any:
    """The regularized incomplete beta function; only differentiable with respect to ``x``.

    >>> round(betainc(1.0, 2.0, 0.5).item(), 4)
    0.75
    """
    return _betainc(a, b, x)


@elementwise
def gammainc(a: Any, x: Any) -> Any:
    """The regularized lower incomplete gamma function.

    >>> round(gammainc(1.0, 2.0).item(), 5)
    0.86466
    """
    return igamma(a, x)


@elementwise
def gammaincc(a: Any, x: Any) -> Any:
    """The regularized upper incomplete gamma function.

    >>> round(gammaincc(1.0, 2.0).item(), 5)
    0.13534
    """
    return igammac(a, x)


@elementwise
def polygamma(n: Any, x: Any) -> Any:
    """The derivative of order ``n`` of :func:`digamma`; not differentiable with respect to ``n``.

    >>> round(polygamma(1, 1.0).item(), 4)
    1.6449
    """
    return ops.polygamma(n, x)


def zeta(x: Any, q: Any = None) -> Any:
    """The Hurwitz zeta function, the sum of ``(n + q)^-x`` for n from 0; without ``q``, the Riemann zeta function.

    Args:
      x: array or number above 1.
      q: array or number that broadcasts with ``x``; by default 1.

    Raises:
      ShapeError, DTypeError: shapes do not broadcast, or dtypes do not promote.

    >>> round(zeta(2.0).item(), 4)
    1.6449
    """
    return _zeta(x, 1.0 if q is None else q)


@elementwise
def _zeta(x: Any, q: Any) -> Any:
    return ops.zeta(x, q)


@elementwise
def poch(z: Any, m: Any) -> Any:
    """The Pochhammer symbol, ``gamma(z + m) / gamma(z)``.

    >>> round(poch(2.0, 3.0).item(), 3)
    24.0
    """
    value = _sign(z) * _sign(z + m) * exp(lgamma(z + m) - lgamma(z))
    # At a pole only: elsewhere the value moves with m.
    pole = (z <= 0) & (floor(z) == z)
    return where((m == 0) & (pole | (z == np.inf) | (z != z)), 1.0, value)


def comb(N: Any, k: Any, *, repetition: bool = False) -> Any:
    """The number of ways to choose ``k`` of ``N`` things; with ``repetition``, a thing may be chosen several times.

    Args:
      N, k: arrays or numbers that broadcast together.

    Raises:
      ShapeError, DTypeError: shapes do not broadcast, or dtypes do not promote.

    >>> round(comb(5, 2).item(), 3)
    10.0
    """
    if not repetition:
        return _comb(N, k)
    return where(asarray(k) == 0, _comb(N, 0), _comb(asarray(N) + k - 1, k))  # nothing is chosen of nothing in one way


@elementwise
def _comb(n: Any, k: Any) -> Any:
    inside = (k >= 0) & (n >= k) & (n >= 0)
    n, k = where(inside, n, 1.0), where(inside, k, 0.0)
    return where(inside, exp(-ops.log(n + 1) - betaln(n - k + 1, k + 1)), 0.0)


@promotes_freely()
def multigammaln(a: Any, d: int) -> Any:
    """The logarithm of the multivariate gamma function of dimension ``d``.

    Args:
      a: array of numbers above ``(d - 1) / 2``.
      d: a positive integer.

    Raises:
      ArgumentError: ``d`` is not a positive integer.

    >>> round(multigammaln(2.0, 1).item(), 5)
    0.0
    """
    if int(d) != d or d < 1:
        raise ArgumentError(f"multigammaln: d must be a positive integer, got {d}")
    total = d * (d - 1) / 4 * float(np.log(np.pi))
    for i in range(int(d)):
        total = total + gammaln(asarray(a) - i / 2)
    return total


def bernoulli(n: int) -> Any:
    """The Bernoulli numbers 0 to ``n``, shape (n + 1,).

    Raises:
      ArgumentError: ``n`` is negative.

    >>> [round(b, 4) for b in bernoulli(2).tolist()]
    [1.0, -0.5, 0.1667]
    """
    if int(n) != n or n < 0:
        raise ArgumentError(f"bernoulli: n must be an integer that is not negative, got {n}")
    return asarray(special.bernoulli(max(int(n), 2))[: int(n) + 1])


__all__ = [
    "bernoulli", "beta", "betainc", "betaln", "comb", "digamma", "factorial", "gamma", "gammainc", "gammaincc",
    "gammaln", "gammasgn", "loggamma", "multigammaln", "poch", "polygamma", "zeta",
]  # fmt: skip
