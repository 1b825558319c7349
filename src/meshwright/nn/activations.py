"""Activations: elementwise, in few ops, and stable for large arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.tracing import typeof
from meshwright.numpy.arithmetic import add, clip, divide, logaddexp, minimum, multiply
from meshwright.numpy.creation import asarray
from meshwright.numpy.joining import split
from meshwright.numpy.logic import where
from meshwright.numpy.makers import unary
from meshwright.numpy.promotion import aval_of, operands, promotes_freely, scalar_like
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.clamp import clamp

sigmoid = unary("sigmoid", ops.logistic, "``1 / (1 + exp(-x))``.", ("sigmoid(0.0).item()", "0.5"), True)
tanh = unary("tanh", ops.tanh, "Hyperbolic tangent.", ("tanh(0.0).item()", "0.0"), True)


def _silu(x: Any) -> Any:
    return ops.mul(x, ops.logistic(x))


silu = swish = unary("silu", _silu, "``x * sigmoid(x)``.", ("silu(0.0).item()", "0.0"), True)


def _weakly_inexact(name: str, x: Any) -> Any:
    """``x`` as a float; integers and bools become weakly typed, as if combined with a Python float."""
    exact = not dtypes.is_inexact(aval_of(x, name).dtype)
    (x,) = operands(name, (x,))
    return ops.convert(x, dtypes.default_float(), True) if exact else x


def _inexact(name: str, x: Any) -> Any:
    """``x`` as a float; only bools become weakly typed, since only they promote to a Python float's type."""
    if dtypes.is_bool(aval_of(x, name).dtype):
        return _weakly_inexact(name, x)
    return operands(name, (x,), to_inexact=True)[0]


def relu(x: Any) -> Any:
    """``max(x, 0)``, with derivative 0 at 0.

    Args:
      x: array of any shape and real dtype.

    >>> relu(-1.0).item()
    0.0
    """
    (x,) = operands("relu", (x,))
    if dtypes.is_bool(typeof(x).dtype):
        x = ops.convert(x, dtypes.default_int(), True)
    nil = scalar_like(0, x)
    if not dtypes.is_inexact(typeof(x).dtype):
        return ops.max_(x, nil)
    # The derivative of the maximum would be 1/2 at 0, and that of x at NaN.
    return ops.select(ops.gt(x, nil), x, ops.stop_gradient(ops.max_(x, nil)))


def relu6(x: Any) -> Any:
    """``min(max(x, 0), 6)``.

    >>> relu6(9.0).item()
    6.0
    """
    x = _weakly_inexact("relu6", x)
    nil, six = scalar_like(0, x), scalar_like(6, x)
    if not dtypes.is_complex(typeof(x).dtype):
        return clamp(nil, x, six)
    inside = ops.and_(ops.gt(x, nil), ops.lt(x, six))  # selects the derivative, since infinities times 0 are NaN
    return ops.select(inside, x, ops.stop_gradient(clip(x, 0.0, 6.0)))


def gelu(x: Any, approximate: bool = True) -> Any:
    """Gaussian error linear unit, ``x * Phi(x)``.

    Args:
      x: array of any shape.
      approximate: whether to use the tanh approximation (as GPT-2 and BERT do) or the error function.

    >>> gelu(0.0).item()
    0.0
    """
    (x,) = operands("gelu", (x,), to_inexact=True)
    x = ops.convert(x, typeof(x).dtype)  # the result is not weakly typed, as in JAX
    if not approximate:
        scaled = ops.mul(x, scalar_like(-np.sqrt(0.5), x))
        return ops.mul(ops.mul(x, scalar_like(0.5, x)), ops.erfc(scaled))
    # (1 + tanh u) / 2 is logistic(2u); the cubic in u is x (a + b x^2).
    a, b = 2 * np.sqrt(2 / np.pi), 2 * np.sqrt(2 / np.pi) * 0.044715
    slope = ops.add(ops.mul(ops.square(x), scalar_like(b, x)), scalar_like(a, x))
    return ops.mul(x, ops.logistic(ops.mul(x, slope)))


@promotes_freely()
def softplus(x: Any) -> Any:
    """``log(1 + exp(x))`` without overflow.

    >>> softplus(100.0).item()
    100.0
    """
    x = _inexact("softplus", x)
    return logaddexp(x, 0.0)


def log_sigmoid(x: Any) -> Any:
    """``log(sigmoid(x))`` without overflow.

    >>> log_sigmoid(100.0).item()
    -0.0
    """
    (x,) = operands("log_sigmoid", (x,), to_inexact=True)
    return ops.neg(softplus(ops.neg(x)))


@promotes_freely()
def soft_sign(x: Any) -> Any:
    """``x / (|x| + 1)``.

    >>> soft_sign(1.0).item()
    0.5
    """
    x = _inexact("soft_sign", x)
    return divide(x, add(ops.abs_(x), 1))


def _linear_above_zero(x: Any, below: Callable[[Any], Any]) -> Any:
    """``x`` above 0, else ``below(x)``, evaluated only there, so that derivatives not selected are finite."""
    above, nil = ops.gt(x, scalar_like(0, x)), scalar_like(0, x)
    return where(above, x, below(ops.select(above, nil, x)))


@promotes_freely("x", "alpha")
def elu(x: Any, alpha: Any = 1.0) -> Any:
    """``x`` above 0, ``alpha * (exp(x) - 1)`` below.

    >>> elu(2.0).item()
    2.0
    """
    x = _weakly_inexact("elu", x)
    return _linear_above_zero(x, lambda v: multiply(alpha, ops.expm1(v)))


@promotes_freely("x", "alpha")
def celu(x: Any, alpha: Any = 1.0) -> Any:
    """``x`` above 0, ``alpha * (exp(x / alpha) - 1)`` below.

    >>> celu(2.0).item()
    2.0
    """
    x = _weakly_inexact("celu", x)
    nil = scalar_like(0, x)
    # A maximum and a minimum share the derivative at 0, so second derivatives there are those of JAX.
    return add(ops.max_(x, nil), multiply(alpha, ops.expm1(ops.min_(x, nil) / alpha)))


@promotes_freely()
def selu(x: Any) -> Any:
    """Self-normalizing unit (Klambauer et al. 2017): a scaled :func:`elu`.

    >>> selu(0.0).item()
    0.0
    """
    return multiply(1.0507009873554805, elu(x, 1.6732632423543772))


@promotes_freely("x", "negative_slope")
def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Any:
    """``x`` above 0, ``negative_slope * x`` below.

    >>> leaky_relu(-2.0, 0.5).item()
    -1.0
    """
    (x,) = operands("leaky_relu", (x,))
    return where(ops.ge(x, scalar_like(0, x)), x, multiply(x, negative_slope))


@promotes_freely()
def hard_tanh(x: Any) -> Any:
    """``x`` clamped to the range from -1 to 1.

    >>> hard_tanh(3.0).item()
    1.0
    """
    (x,) = operands("hard_tanh", (x,))
    if not dtypes.is_inexact(typeof(x).dtype):
        return minimum(x, 1) if dtypes.is_unsigned(typeof(x).dtype) else clip(x, -1, 1)
    one = scalar_like(1, x)
    return ops.select(ops.gt(x, one), one, ops.select(ops.lt(x, ops.neg(one)), ops.neg(one), x))


@promotes_freely()
def hard_sigmoid(x: Any) -> Any:
    """``relu6(x + 3) / 6``.

    >>> hard_sigmoid(0.0).item()
    0.5
    """
    x = _weakly_inexact("hard_sigmoid", x)
    return ops.div(relu6(ops.add(x, scalar_like(3, x))), scalar_like(6, x))


@promotes_freely()
def hard_silu(x: Any) -> Any:
    """``x * hard_sigmoid(x)``.

    >>> hard_silu(3.0).item()
    3.0
    """
    return multiply(x, hard_sigmoid(x))


hard_swish = hard_silu


def mish(x: Any) -> Any:
    """``x * tanh(softplus(x))``.

    >>> mish(0.0).item()
    0.0
    """
    x = _inexact("mish", x)
    return ops.mul(x, ops.tanh(softplus(x)))


@promotes_freely("x", "b")
def squareplus(x: Any, b: Any = 4) -> Any:
    """``(x + sqrt(x**2 + b)) / 2``.

    >>> squareplus(0.0).item()
    1.0
    """
    if dtypes.is_bool(aval_of(x, "squareplus").dtype):
        x = asarray(x, dtypes.int32)  # the dtype of a squared bool
    x, b = operands("squareplus", (x, b), to_inexact=True)
    return ops.div(ops.add(x, ops.sqrt(ops.add(ops.square(x), b))), scalar_like(2, x))


def glu(x: Any, axis: int = -1) -> Any:
    """Gated linear unit: the first half along ``axis`` times the sigmoid of the second.

    >>> glu(np.ones((2, 4))).shape
    (2, 2)
    """
    first, second = split(x, 2, axis)
    return multiply(first, sigmoid(second))


def identity(x: Any) -> Any:
    """``x`` itself.

    >>> identity(3.0).item()
    3.0
    """
    return asarray(x)


def sparse_plus(x: Any) -> Any:
    """0 below -1, ``x`` above 1, ``(x + 1)**2 / 4`` between: a softplus that reaches zero.

    >>> sparse_plus(0.0).item()
    0.25
    """
    x = _weakly_inexact("sparse_plus", x)
    one = scalar_like(1, x)
    between = ops.mul(ops.square(ops.add(x, one)), scalar_like(0.25, x))
    return where(ops.le(x, -one), scalar_like(0, x), ops.select(ops.ge(x, one), x, between))


def sparse_sigmoid(x: Any) -> Any:
    """0 below -1, 1 above 1, ``(x + 1) / 2`` between: the derivative of :func:`sparse_plus`.

    >>> sparse_sigmoid(0.5).item()
    0.75
    """
    x = _weakly_inexact("sparse_sigmoid", x)
    half = scalar_like(0.5, x)
    return clip(ops.mul(ops.add(x, scalar_like(1, x)), half), 0.0, 1.0)


def log1mexp(x: Any) -> Any:
    """``log(1 - exp(-x))`` for positive ``x``, precise near 0 and for large ``x`` (Maechler 2012).

    >>> round(log1mexp(1.0).item(), 4)
    -0.4587
    """
    (x,) = operands("log1mexp", (x,), to_inexact=True)
    small = ops.lt(x, scalar_like(np.log(2), x))
    # Each branch gets only arguments in its domain, so that no derivative is inf * 0.
    one = scalar_like(1, x)
    near, far = where(small, x, one), where(small, one, x)
    return ops.select(small, ops.log(ops.neg(ops.expm1(ops.neg(near)))), ops.log1p(ops.neg(ops.exp(ops.neg(far)))))
