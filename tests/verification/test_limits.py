"""Loops that need not end, in programs that are verified for inputs that were drawn."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.errors import VerificationError
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.verification.limits import MOST_RUNS, limited

MESH = mw.AbstractMesh((4,), ("x",))
X = NamedSharding(MESH, P("x"))


def fixed_point(a, b):
    """``x = tanh(a x) + b`` until the sum of x is infinite, which it never is; twice, in a scan."""

    def forever(x):
        return lax.while_loop(lambda s: s[1] > -1.0, again, (x, mnp.float32(1)))

    def again(state):
        x = mnp.tanh(a @ state[0]) / 2 + b
        return x, mnp.sum(mnp.abs(x))

    x, sums = lax.scan(lambda x, _: forever(x), b, None, length=2)
    return mnp.sum(x, 0), sums


def partitioned(function, *args):
    return mw.jit(function, in_shardings=(X,) * len(args)).lower(*args).partition(MESH)


def run(jaxpr, *args):
    return [np.asarray(x) for x in eval_jaxpr(jaxpr, jaxpr.consts, *args)]


def test_a_loop_that_never_ends_is_verified_up_to_the_limit():
    part = partitioned(fixed_point, np.ones((8, 8), np.float32), np.ones((8, 3), np.float32))
    found = part.verify()
    assert found.outputs and "1,000 runs" in str(found)
    assert "while" in str(part.jaxpr)  # the program is as it was


def test_mistakes_after_the_limit_are_found(monkeypatch):
    """The loops of both programs end; where the results of one are changed, this is still said."""
    part = partitioned(lambda x: fixed_point(x @ x.T, x)[0] + 1, np.ones((8, 3), np.float32))
    eqns = part.part.jaxpr.jaxpr.eqns
    last = eqns[-1]
    assert last.op.name == "add"
    wrong = last.replace(invars=[last.invars[0], last.invars[0]])
    monkeypatch.setattr(part.part.jaxpr.jaxpr, "eqns", [*eqns[:-1], wrong])
    with pytest.raises(VerificationError, match="differs from the unpartitioned program"):
        part.verify()


@pytest.mark.parametrize("start, runs", [(0, MOST_RUNS), (-7, MOST_RUNS), (2_000_000_000, None)])
def test_a_loop_ends_at_the_limit_or_before(start, runs):
    most = 2_000_000_123
    loop = trace_to_jaxpr(lambda x: [lax.while_loop(lambda s: s != most, lambda s: s + 1, x)], [typeof(np.int32(0))])
    assert run(limited(loop), np.int32(start)) == [most if runs is None else start + runs]


def test_nested_loops_end():
    def fun(x):
        inner = lambda x: lax.while_loop(lambda s: s >= 0, lambda s: s + 1, x)  # noqa: E731
        outer = lax.while_loop(lambda s: s >= 0, lambda s: inner(s) * 0 + s + 2, x)
        return [lax.cond(x > 3, inner, lambda x: x, x), outer, mw.vmap(inner)(mnp.stack([x, -x, x + 5]))]

    alone, outer, many = run(limited(trace_to_jaxpr(fun, [typeof(np.int32(0))]), 10), np.int32(4))
    assert (alone, outer, many.tolist()) == (14, 24, [14, -4, 19])


def test_loops_that_count_have_no_limit():
    def fun(n, x):
        once = lax.while_loop(lambda s: s < 5000, lambda s: 1 + s, n)
        return [once, lax.fori_loop(0, 5000, lambda i, s: s + 1, x), lax.fori_loop(2, n, lambda i, s: s + i, x)]

    jaxpr = trace_to_jaxpr(fun, [typeof(np.int32(0))] * 2)
    assert limited(jaxpr) is jaxpr


def counting(dtype, limit, step):
    """A loop that counts up in a dtype, from 0 to a limit: a number, or the argument of the program if it is None."""

    def fun(n):
        most = n if limit is None else limit
        return [lax.while_loop(lambda i: i < most, lambda i: i + np.asarray(step, dtype), n * 0)]

    return trace_to_jaxpr(fun, [typeof(np.zeros((), dtype))])


@pytest.mark.parametrize(
    "dtype, limit, step", [("int8", 127, 1), ("int8", 121, 7), ("uint32", 9, 2), ("int32", None, 1)]
)
def test_loops_that_reach_their_limit_have_no_other(dtype, limit, step):
    jaxpr = counting(dtype, limit, step)
    assert limited(jaxpr) is jaxpr


@pytest.mark.parametrize("dtype, limit, step", [("int8", 127, 2), ("int8", 122, 7), ("int32", None, 2)])
def test_loops_whose_counter_may_miss_the_limit_have_one(dtype, limit, step):
    """Beyond the largest integer, which is after 127 in int8, they would start from the smallest again."""
    jaxpr = counting(dtype, limit, step)
    assert limited(jaxpr) is not jaxpr
    run(limited(jaxpr), np.asarray(5, dtype))


def test_loops_up_to_random_bits_end():
    """Unsigned integers are drawn among all that there are."""
    most = np.uint32(4_000_000_000)
    assert run(limited(counting("uint32", None, 1)), most) == [MOST_RUNS]


@pytest.mark.parametrize("step", [lambda i: i + 3, lambda i: 3 + i])
def test_the_number_of_runs_is_known_whichever_way_the_sum_is_written(step):
    jaxpr = trace_to_jaxpr(lambda x: [lax.while_loop(lambda s: s[0] < 8, lambda s: (step(s[0]), s[1]), (0, x))[1]], [
        typeof(np.float32(0))
    ])  # fmt: skip
    (loop,) = (e for e in jaxpr.eqns if e.op.name == "while")
    assert loop.op.trips(loop.invars) == 3


@pytest.mark.parametrize(
    "test, step",
    [
        (lambda i, n: i < n, 0), (lambda i, n: i < n, -1), (lambda i, n: i > n, -1), (lambda i, n: i <= n, 1),
        (lambda i, n: (i < n) & (i < 9), 1),
    ],
)  # fmt: skip
def test_loops_that_do_not_count_up_have_one(test, step):
    def fun(n):
        return [lax.while_loop(lambda i: test(i, n), lambda i: i + step, n * 0)]

    jaxpr = trace_to_jaxpr(fun, [typeof(np.int32(0))])
    assert limited(jaxpr) is not jaxpr
    assert [abs(x) <= 10 for x in run(limited(jaxpr, 10), np.int32(3))] == [True]
