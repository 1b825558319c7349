"""Powers have their values beside logarithms and exponentials, and pads theirs before windows."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.lowering.powers import keep_powers

SPECIAL = np.array([-np.inf, -2, -1.5, -1, -0.0, 0, 0.5, 1, 2.5, 3, np.inf, np.nan], np.float32)


@pytest.mark.parametrize("inside", [mw.jit, lambda f: f], ids=["call", "inline"])
@pytest.mark.parametrize("exponent", [None, 2.5, -0.5, 0.5, 1.5])
def test_logarithms_of_powers(exponent, inside):
    x, y = (v.ravel() for v in np.meshgrid(SPECIAL, SPECIAL if exponent is None else np.float32(exponent)))
    power = inside(lambda x, y: mnp.power(x, y if exponent is None else exponent))
    with np.errstate(all="ignore"):
        expected = np.log(np.power(x, y))
    got = mw.jit(lambda x, y: mnp.log(power(x, y)))(x, y)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_powers_of_exponentials():
    x, y = (v.ravel() for v in np.meshgrid(SPECIAL, SPECIAL))
    with np.errstate(all="ignore"):
        expected = np.power(np.exp(x), y)
    np.testing.assert_allclose(mw.jit(lambda x, y: mnp.exp(x) ** y)(x, y), expected, rtol=1e-5)


def test_other_programs_stay():
    for f in (lambda x: mnp.power(x, 2.5), lambda x: mnp.log(x) * x):
        jaxpr = mw.make_jaxpr(f)(np.float32(2))
        assert keep_powers(jaxpr) is jaxpr


@pytest.mark.parametrize("config", [[(0, 0, 1), (-1, 0, 0)], [(2, -1, 1), (-2, 1, 0)], [(1, 2, 3), (-2, -1, 0)]])
def test_a_window_of_a_pad_that_cuts_stays_in_it(config):
    """Nothing lies between the elements of one: XLA cut and padded such a row in the wrong order."""
    x = np.arange(1, 6, dtype=np.float32)[None]

    def windows(x):
        padded = lax.pad(x, np.float32(0), config)
        return lax.reduce_window(padded, np.float32(0), lax.add, (1, 2), (1, 1), ((0, 0), (1, 1)))

    np.testing.assert_array_equal(mw.jit(windows)(x), windows(x))
