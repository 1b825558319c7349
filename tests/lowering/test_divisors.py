"""Integers that the compiler would divide by 0 end no process."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.lowering.divisors import keep_divisors

DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "int4", "uint4"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_known_to_be_zero(dtype):
    """As XLA's code has it where it is not known: -1, or the dividend as the remainder."""
    with mw.enable_x64(dtype.endswith("64")):
        x, three = mnp.arange(4).astype(dtype), np.asarray(mnp.full(4, 3, dtype))

        @mw.jit
        def known(x):
            zero = x - x
            return [op(y, zero) for op in (lax.div, lax.rem) for y in (three, zero, x)] + [lax.div(three, x)]

        quotients, remainders, last = np.split(np.stack([np.asarray(v).astype(int) for v in known(x)]), [3, 6])
        assert (quotients == np.asarray(~mnp.zeros((), dtype)).astype(int)).all()
        np.testing.assert_array_equal(remainders, [three.astype(int), [0] * 4, np.arange(4)])
        np.testing.assert_array_equal(last[0], [quotients[0, 0], 3, 1, 1])


@pytest.mark.parametrize("transform", [mw.jit, mw.vmap, lambda f: lambda x: lax.map(f, x)], ids=["jit", "vmap", "map"])
def test_in_functions_of_the_library(transform):
    x = np.array([3, -5, 0], np.int32)
    for f in (mnp.floor_divide, mnp.remainder, mnp.fmod, lambda a, b: mnp.divmod(a, b)[0]):
        got = mw.jit(transform(lambda v, f=f: f(7, v - v)))(x)
        np.testing.assert_array_equal(got, transform(lambda v, f=f: f(7, v))(np.zeros(3, np.int32)))


def test_in_the_body_of_a_reduction():
    x = np.array([8, 2, 2], np.int32)
    got = mw.jit(lambda x: lax.reduce(x, np.int32(7), lambda a, b: lax.max(lax.div(a, b - b), b), (0,)))(x)
    assert got == 2


@pytest.mark.parametrize("divided", [
    lambda x: lax.div(x, np.int32(2)), lambda x: lax.rem(x, mnp.full(4, 3, np.int32)), lambda x: x // 2,
    lambda x: x / (x - x),
], ids=["number", "repeated", "operator", "floats"])  # fmt: skip
def test_other_divisors_stay(divided):
    jaxpr = mw.make_jaxpr(divided)(np.arange(4, dtype=np.int32))
    assert keep_divisors(jaxpr) is jaxpr
