"""Functions such as ``x log y`` with ``0 log 0 = 0``, entropies, and logistic functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.nn import normalization
from meshwright.numpy.logic import where
from meshwright.numpy.reductions import Axis
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import abs_, expm1, is_finite, log1p
from meshwright.scipy.elementwise import as_weak, elementwise
from meshwright.scipy.special.fits import fitted
from meshwright.transforms.custom_jvp import custom_jvp


@custom_jvp
def _xlogy(x: Any, y: Any) -> Any:
    return where(x == 0, where(y != y, y, 0.0), x * ops.log(y))


_xlogy.defjvps(lambda t, out, x, y: t * ops.log(y), lambda t, out, x, y: t * (x / y))


@custom_jvp
def _xlog1py(x: Any, y: Any) -> Any:
    return where(x == 0, where(y != y, y, 0.0), x * log1p(y))


_xlog1py.defjvps(lambda t, out, x, y: t * log1p(y), lambda t, out, x, y: t * (x / (1 + y)))


@elementwise
def xlogy(x: Any, y: Any) -> Any:
    """``x log(y)``, 0 where ``x`` is 0.

    >>> xlogy(0.0, 0.0).item()
    0.0
    """
    return _xlogy(x, y)


@elementwise
def xlog1py(x: Any, y: Any) -> Any:
    """``x log(1 + y)``, 0 where ``x`` is 0.

    >>> xlog1py(0.0, -1.0).item()
    0.0
    """
    return _xlog1py(x, y)


@custom_jvp
def _entr(x: Any) -> Any:
    return where(x < 0, -np.inf, -_xlogy(x, where(x < 0, 1.0, x)))


_entr.defjvps(lambda t, out, x: t * where(x < 0, 0.0, -ops.log(where(x < 0, 1.0, x)) - 1))


@elementwise
def entr(x: Any) -> Any:
    """``-x log(x)``, the entropy of an event with probability ``x``; minus infinity for negative numbers.

    >>> entr(0.0).item()
    -0.0
    """
    return _entr(x)


@elementwise
def rel_entr(p: Any, q: Any) -> Any:
    """``p log(p / q)``; 0 where p is 0 and q is not negative, infinite where it is undefined.

    >>> rel_entr(0.0, 2.0).item()
    0.0
    """
    return _rel_entr(p, q)


def _both_positive(p: Any, q: Any) -> tuple[Any, Any, Any]:
    """Where both are positive, and both with harmless values elsewhere, so that derivatives remain finite."""
    both = (p > 0) & (q > 0)
    return both, where(both, p, 1.0), where(both, q, 1.0)


@custom_jvp
def _rel_entr(p: Any, q: Any) -> Any:
    both, a, b = _both_positive(p, q)
    value = where(both, a * (ops.log(a) - ops.log(b)), where((p == 0) & (q >= 0), 0.0, np.inf))
    return where((p != p) | (q != q), np.nan, value)


def _rel_entr_by_p(t: Any, out: Any, p: Any, q: Any) -> Any:
    both, a, b = _both_positive(p, q)
    return t * where(both, ops.log(a) - ops.log(b) + 1, 0.0)


def _rel_entr_by_q(t: Any, out: Any, p: Any, q: Any) -> Any:
    both, a, b = _both_positive(p, q)
    return t * where(both, -(a / b), 0.0)


_rel_entr.defjvps(_rel_entr_by_p, _rel_entr_by_q)


@elementwise
def kl_div(p: Any, q: Any) -> Any:
    """``p log(p / q) - p + q``, whose sum is the Kullback-Leibler divergence.

    >>> kl_div(1.0, 1.0).item()
    0.0
    """
    value = _rel_entr(p, q)
    return where(value == np.inf, np.inf, value - p + q)


@elementwise
def logit(x: Any) -> Any:
    """``log(x / (1 - x))``, the inverse of :func:`expit`.

    >>> logit(0.5).item()
    0.0
    """
    return ops.log(x) - log1p(-x)


@elementwise
def expit(x: Any) -> Any:
    """``1 / (1 + exp(-x))``, the logistic function.

    >>> expit(0.0).item()
    0.5
    """
    return ops.logistic(x)


def _box_cox(power: Any, limit: Any, times_log: Any, x: Any) -> Any:
    # Where little is raised, a quotient would lose its derivatives by the power, and at 0 has none.
    near = abs_(times_log(power, x)) < 0.5
    log_near = where(near & is_finite(limit), limit, 0.0)
    small = log_near * fitted(_mean_power, -0.6, 0.6, 24, where(near, power, 0.0) * log_near)
    safe = where(near, 1.0, power)
    value = where(near, where(is_finite(limit), small, limit), expm1(times_log(safe, x)) / safe)
    return as_weak(value, power, x)


def _mean_power(t: np.ndarray) -> np.ndarray:
    """``expm1(t) / t``."""
    return np.where(t == 0, 1.0, np.expm1(t) / np.where(t == 0, 1.0, t))


@elementwise
def boxcox(x: Any, lmbda: Any) -> Any:
    """The Box-Cox transform ``(x^lmbda - 1) / lmbda``; for ``lmbda = 0`` its limit ``log(x)``.

    >>> boxcox(3.0, 1.0).item()
    2.0
    """
    return _box_cox(lmbda, ops.log(x), _xlogy, x)


@elementwise
def boxcox1p(x: Any, lmbda: Any) -> Any:
    """:func:`boxcox` of ``1 + x``, accurate near 0.

    >>> boxcox1p(2.0, 1.0).item()
    2.0
    """
    return _box_cox(lmbda, log1p(x), _xlog1py, x)


def logsumexp(
    a: Any, axis: Axis = None, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None
) -> Any:
    """``log(sum(b * exp(a)))`` over ``axis``, without overflow.

    Args:
      a: array of any shape.
      axis: an axis, several, or None for all.
      b: weights, broadcast against ``a``; negative ones need ``return_sign``.
      keepdims: leave reduced axes with size 1.
      return_sign: return the logarithm of the sum's magnitude, and its sign.
      where: a mask of the elements to include.

    Raises:
      ShapeError, DTypeError: as for :func:`meshwright.nn.logsumexp`.

    >>> round(logsumexp(np.array([10.0, 10.0])).item(), 4)
    10.6931
    """
    return normalization.logsumexp(a, axis, b, keepdims, return_sign, where)


def softmax(x: Any, axis: Axis = None) -> Any:
    """``exp(x) / sum(exp(x))`` over ``axis``; by default over all of ``x``, as in SciPy.

    >>> softmax(np.zeros((2, 2), "float32")).tolist()
    [[0.25, 0.25], [0.25, 0.25]]
    """
    return normalization.softmax(x, axis)


def log_softmax(x: Any, axis: Axis = None) -> Any:
    """``log(softmax(x))`` over ``axis``, without overflow; by default over all of ``x``, as in SciPy.

    >>> log_softmax(np.zeros(1)).tolist()
    [0.0]
    """
    return normalization.log_softmax(x, axis)
