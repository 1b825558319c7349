"""Derivatives and values far from 0 are neither 0 nor infinite where the type holds them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import nn
from meshwright.scipy import special

SLOPES = [
    (mnp.exp2, 1024.0000000000002, 2 * math.log(2) * 2.0**1023),
    (mnp.exp2, -1000.0, math.log(2) * 2.0**-1000),
    (mnp.expm1, -40.0, math.exp(-40)),
    (mnp.expm1, -700.0, math.exp(-700)),
    (nn.elu, -300.0, math.exp(-300)),
    (nn.celu, -300.0, math.exp(-300)),
    (nn.selu, -300.0, 1.0507009873554805 * 1.6732632423543772 * math.exp(-300)),
]


def _of_logistic(order: int, x: float) -> float:
    """A derivative of ``1 / (1 + exp(-x))``."""
    a, b = 1 / (1 + math.exp(-x)), 1 / (1 + math.exp(x))
    return a * b * (1, b - a, (b - a) ** 2 - 2 * a * b)[order - 1]


def _of_tanh(order: int, x: float) -> float:
    y, s = math.tanh(x), 1 / math.cosh(x) ** 2
    return s * (1, -2 * y, 4 * y * y - 2 * s)[order - 1]


SIGMOIDS = [
    (mnp.tanh, 0, _of_tanh),
    (nn.sigmoid, 0, _of_logistic),
    (special.expit, 0, _of_logistic),
    (nn.softplus, 1, _of_logistic),
    (nn.log_sigmoid, 1, lambda order, x: -((-1) ** (order + 1)) * _of_logistic(order, -x)),
]


@pytest.mark.parametrize(("f", "done", "expected"), SIGMOIDS, ids=lambda v: getattr(v, "__name__", ""))
@pytest.mark.parametrize("x", [0.0, 1e-300, 0.3, 0.999, 1.0, 3.0])
def test_sigmoids(f, done, expected, x):
    """Three derivatives on both sides, up to where values are nearly 1."""
    for _ in range(done):
        f = mw.grad(f)
    with mw.enable_x64(True):
        for order in (1, 2, 3):
            f = mw.grad(f)
            for signed in (x, -x):
                np.testing.assert_allclose(f(signed), expected(order, signed), rtol=1e-11)


@pytest.mark.parametrize("x", [0.0, 1e-300, 2.0, -3.0, 90.0])
def test_slopes_of_bessel_functions(x):
    """DLMF 10.29.5, by SciPy's values."""
    s = scipy.special
    i = [s.i0(x), s.i1(x), s.iv(2, x), s.iv(3, x)]
    slopes = [(special.i0, 1, i[1]), (special.i0, 2, (i[0] + i[2]) / 2), (special.i1, 1, (i[0] + i[2]) / 2),
              (special.i1, 2, (3 * i[1] + i[3]) / 4)]  # fmt: skip
    with mw.enable_x64(True):
        for f, order, expected in slopes:
            for _ in range(order):
                f = mw.grad(f)
            np.testing.assert_allclose(f(x), expected, rtol=1e-12)


@pytest.mark.parametrize("x", [1e3, 5e3, 1e4, 1e5, 1e16, math.inf])
def test_zeta_of_large_exponents(x):
    """The first of its terms, which falls to nothing, is 1, or grows beyond what the type holds."""
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        with mw.enable_x64(True), np.errstate(over="ignore"):
            got = special.zeta(mnp.array(x, dtype), mnp.array([0.5, 1.0, 2.0, 1000.0], dtype))
        assert np.asarray(got, "float64").tolist() == [math.inf, 1, 0, 0]


@pytest.mark.parametrize(("f", "x", "expected"), SLOPES, ids=lambda v: getattr(v, "__name__", str(v)))
@pytest.mark.parametrize("compiled", [mw.jit, lambda f: f], ids=["jit", "eager"])
def test_slopes(f, x, expected, compiled):
    with mw.enable_x64(True):
        np.testing.assert_allclose(compiled(mw.grad(f))(x), expected, rtol=1e-12)


@pytest.mark.parametrize(("x", "dtype"), [(713.0, "float64"), (90.0, "float32")])
def test_bessel_functions(x, dtype):
    """exp(x) is infinite; Hankel's expansion for large x, of which five terms are enough."""
    for f, order, odd in ((special.i0, 0, False), (special.i1, 1, True), (mnp.i0, 0, False)):
        terms, term = 1.0, 1.0
        for k in range(1, 6):
            term *= -(4 * order**2 - (2 * k - 1) ** 2) / (k * 8 * x)
            terms += term
        expected = math.exp(x - math.log(2 * math.pi * x) / 2) * terms
        with mw.enable_x64(True):
            got = [np.asarray(f(np.asarray(s * x, dtype))) for s in (1, -1)]
        rtol = 1e-5 if dtype == "float32" else 1e-12
        np.testing.assert_allclose(got, [expected, -expected if odd else expected], rtol=rtol)
