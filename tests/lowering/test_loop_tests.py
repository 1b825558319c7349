"""Loops run as often as their tests say, whatever their step, though XLA counts some of them wrongly."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright import lax
from meshwright.ir.jaxpr import all_eqns
from meshwright.lowering.loop_tests import keep_counts

BOUNDS = [(0, 1, 2), (0, 1, 7), (-3, 0, 2), (-1, 2, 2), (-3, -1, 16), (0, 8, 7), (0, 0, 3), (5, 6, 9), (-2, 5, 1)]


def runs(L, start, end, step, is_below):
    def body(carry):
        return carry[0] + np.int32(step), carry[1] + 1

    return L.while_loop(lambda carry: is_below(carry[0], end), body, (np.int32(start), np.int32(0)))


TESTS = {
    "i < n": lambda i, n: i < n,
    "n > i": lambda i, n: np.int32(n) > i,
    "and": lambda i, n: (i < n) & (i < n + 100),
}


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_loops_run_as_often_as_their_tests_say(bounds, test):
    start, end, step = bounds
    i, n = mw.jit(lambda: runs(lax, start, end, step, TESTS[test]))()
    assert int(n) == len(range(start, end, step)) and int(i) == start + step * int(n)


def test_bounds_that_only_folding_makes_known():
    def run(x):
        zero = x - x
        return lax.while_loop(lambda c: c[0] < zero + 1, lambda c: (c[0] + 2, c[1] + 1), (zero, zero))

    assert [int(v) for v in mw.jit(run)(np.int32(7))] == [2, 1]


def test_loaded_programs():
    text = jax.jit(lambda: runs(jax.lax, -3, 0, 2, TESTS["i < n"])).lower().as_text()
    assert [int(v) for v in mw.load(text)()] == [1, 2]


def test_loops_in_loops():
    def outer(i, total):
        return total + runs(lax, 0, 1, 2, TESTS["i < n"])[1]

    assert int(mw.jit(lambda n: lax.fori_loop(0, n, outer, np.int32(0)))(np.int32(5))) == 5


def test_what_counts_in_ones_is_left_alone():
    def counted(n, x):
        return lax.fori_loop(0, n, lambda i, v: v * 2, x)

    jaxpr = mw.make_jaxpr(counted)(np.int32(3), 1.0)
    assert keep_counts(jaxpr) is jaxpr
    loaded = mw.load(
        jax.jit(lambda n, x: jax.lax.fori_loop(0, n, lambda i, v: v * 2, x)).lower(np.int32(3), 1.0).as_text()
    )
    assert all(keep_counts(loaded.jaxpr) is loaded.jaxpr for _ in "1")
    (test,) = [e.op.bodies()[0] for e in all_eqns(jaxpr.jaxpr) if e.op.name == "while"]
    assert [e.op.name for e in test.jaxpr.eqns] == ["lt"]
