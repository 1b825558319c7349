"""Derivatives and values far from 0 are neither 0 nor infinite where the type holds them."""

from __future__ import annotations

import math

import numpy as np
import pytest

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
