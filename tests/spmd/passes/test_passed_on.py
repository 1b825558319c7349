"""What leaves control flow as it came: read from before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright import lax
from meshwright.spmd.passes.passed_on import passed_on

X, Y = np.arange(4, dtype=np.float32), np.ones(4, np.float32)


def branches(x: Any, y: Any) -> Any:
    return lax.cond(x[0] > 0, lambda a, b: (b, a), lambda a, b: (b, b), x, y)


def same_value(x: Any, y: Any) -> Any:
    return lax.cond(x[0] > 0, lambda a, b: (a, a + y), lambda a, b: (b, b), y, y)


def loop(x: Any, y: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, s: (s[0], s[0] * s[1]), (y, x))


def steps(x: Any, y: Any) -> Any:
    return lax.scan(lambda s, row: ((s[0], s[1] + row), row), (y, x[0]), x)[0]


def until(x: Any, y: Any) -> Any:
    return lax.while_loop(lambda s: s[1].sum() < 9, lambda s: (s[0], s[1] + s[0]), (y, x))


def inside(x: Any, y: Any) -> Any:
    """A branch that goes around a loop, which only carries the same."""
    return lax.cond(x[0] > 0, loop, lambda x, y: (y, x), x, y)


@pytest.mark.parametrize("f", [branches, same_value, loop, steps, until, inside], ids=lambda f: f.__name__)
def test_what_is_passed_on(f: Any) -> None:
    jaxpr = mw.make_jaxpr(f)(X, Y)
    after = passed_on(jaxpr)
    passed, made = after.jaxpr.outvars
    assert passed is after.jaxpr.invars[1] and made in after.jaxpr.eqns[-1].outvars
    for new, old in zip(mw.core.eval_jaxpr(after.jaxpr, after.consts, X, Y), f(X, Y)):
        np.testing.assert_array_equal(new, old)


def test_a_loop_that_never_runs() -> None:
    jaxpr = mw.make_jaxpr(lambda x, y: lax.while_loop(lambda s: s[2] < 0, lambda s: (s[1], s[0], s[2] + 1), (x, y, 0)))
    after = passed_on(jaxpr(X, Y)).jaxpr
    assert after.outvars[:2] == after.invars


def test_what_is_exchanged_stays() -> None:
    jaxpr = mw.make_jaxpr(lambda x, y: lax.fori_loop(0, 3, lambda _, s: (s[1], s[0]), (x, y)))(X, Y)
    assert passed_on(jaxpr) is jaxpr


@pytest.mark.parametrize("start,limit,step,trips", [
    (0, 7, 2, 4),
    (3, 3, 1, 0),
    (np.float32(0), np.float32(0.5), np.float32(1), None),
    (np.int8(0), np.int8(100), np.int8(99), None),  # 198 is no int8
])  # fmt: skip
def test_trips_that_are_known(start: Any, limit: Any, step: Any, trips: int | None) -> None:
    jaxpr = mw.make_jaxpr(lambda: lax.while_loop(lambda n: n < limit, lambda n: n + step, start))().jaxpr
    assert jaxpr.eqns[0].op.trips(jaxpr.eqns[0].invars) == trips


def test_a_loop_that_counts_in_fractions_runs() -> None:
    jaxpr = mw.make_jaxpr(lambda x: lax.while_loop(lambda s: s[0] < 0.5, lambda s: (s[0] + 1, s[1] * 2), (0.0, x)))(Y)
    assert passed_on(jaxpr) is jaxpr
