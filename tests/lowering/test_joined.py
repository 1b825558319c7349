"""Reductions over one dimension in place of several: which are, what XLA makes of them, and their values."""

import re

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.ir.jaxpr import all_eqns
from meshwright.lowering.joined import join_reduced_dims

RNG = np.random.default_rng(4)


@pytest.mark.parametrize("reduce", ["sum", "max", "min"])
@pytest.mark.parametrize("shape, axes, joined", [
    ((8, 64, 64), (0, 1), True),
    ((2, 8, 32, 64), (1, 2), True),
    ((8, 8, 8, 64), (2, 0, 1), True),
    ((64, 512), (0,), False),  # one dimension
    ((64, 16, 32), (1, 2), False),  # nothing behind them
    ((64, 4, 16, 8), (0, 2), False),  # not neighbours
    ((4, 8, 16), (0, 1), False),  # small
])  # fmt: skip
def test_neighbouring_dimensions_are_reduced_as_one(reduce, shape, axes, joined):
    x = RNG.integers(-40, 40, size=shape).astype(np.float32)
    jaxpr = mw.make_jaxpr(lambda x: getattr(mnp, reduce)(x, axes))(x)
    after = join_reduced_dims(jaxpr)
    (op,) = (e.op for e in all_eqns(after.jaxpr) if e.op.name == f"reduce_{reduce}")
    assert after.out_avals == jaxpr.out_avals and len(op.axes) == (1 if joined else len(axes))
    np.testing.assert_array_equal(mw.jit(lambda x: getattr(mnp, reduce)(x, axes))(x), getattr(x, reduce)(axes))


def test_xla_does_not_take_the_reshape_into_the_sum_again():
    x = RNG.integers(-40, 40, size=(8, 64, 64)).astype(np.float32)
    for total in (lambda x: x.sum((0, 1)), lambda x: x.reshape(512, 64).sum(0)):
        text = mw.jit(total).lower(x).compile().as_text("virtual")
        windows = [line for line in text.splitlines() if re.search(r" reduce(-window)?\(", line)]
        assert windows and not any("f32[8,64,64]" in line or "f32[1," in line for line in windows)
        np.testing.assert_array_equal(mw.jit(total)(x), x.sum((0, 1)))


def test_special_values_come_through():
    x = np.zeros((8, 64, 64), np.float32)
    x[3, 5, 0], x[1, 2, 1], x[7, 63, 2] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(mw.jit(lambda x: x.sum((0, 1)))(x), x.sum((0, 1)))
    np.testing.assert_array_equal(mw.jit(lambda x: x.max((0, 1)))(x), x.max((0, 1)))
