"""Reshapes and transposes that are undone after elementwise equations are none, and send nothing."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright.ir.jaxpr import all_eqns
from meshwright.ir.passes import DEAD_CODE, INLINE, run_passes
from meshwright.ir.verify import verify
from meshwright.ops.shape.undone import undone

MESH = mw.AbstractMesh((4,), ("x",))
COLUMNS = mw.NamedSharding(MESH, P(None, "x"))
SHAPE = (6, 16)
X = np.arange(96.0, dtype=np.float32).reshape(SHAPE) / 50


def turned(x):
    return mnp.transpose(x.reshape(24, 2, 2), (1, 2, 0))


def twice(x):
    y = mnp.tanh(x.reshape(-1))
    return (y * y + 1).reshape(SHAPE), mnp.sum(y)


def chain(x):
    y = x.reshape(-1)
    for _ in range(60):  # each twice
        y = y * y + 0.25 * y
    return y.reshape(SHAPE)


#: functions of f32[6, 16], and how many of their reshapes and transposes are left
FUNCTIONS = {
    "gradient": (mw.grad(lambda x: mnp.sum(mnp.sin(turned(x)))), 0),
    "there and back": (lambda x: x.reshape(-1).reshape(SHAPE), 0),
    "numbers": (lambda x: (mnp.where(x.reshape(-1) > 1, 2.0, 0.5) * 3).reshape(SHAPE), 0),
    "of two": (lambda x: mnp.transpose(mnp.transpose(x) * mnp.transpose(mnp.cos(x))), 0),
    "needed": (twice, 2),
    "other numbers": (lambda x: (x.reshape(-1) * mnp.arange(96.0)).reshape(SHAPE), 2),
    "not undone": (lambda x: mnp.sin(x.reshape(-1)), 1),
    "in a loop": (lambda x: mw.lax.fori_loop(0, 3, lambda _, x: mnp.sin(x.T).T, x), 0),
    "chain": (chain, 0),
}


def count(jaxpr):
    return sum(e.op.name in ("reshape", "transpose") for e in all_eqns(jaxpr))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_left(name):
    f, left = FUNCTIONS[name]
    before = run_passes(mw.make_jaxpr(f)(X), (INLINE, DEAD_CODE))
    after = undone(before)
    verify(after)
    assert count(after.jaxpr) == left
    assert (after is before) == (left > 0)


@pytest.mark.parametrize("name", ["gradient", "numbers", "of two", "in a loop"])
def test_nothing_is_sent(name):
    part = mw.jit(FUNCTIONS[name][0], in_shardings=COLUMNS, out_shardings=COLUMNS).lower(X).partition()
    assert part.bytes_sent == 0, part.explain()
    part.verify()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name):
    f, _ = FUNCTIONS[name]
    mw.jit(f, in_shardings=COLUMNS).lower(X).partition().verify()


def test_what_takes_time_that_grows_with_a_square_is_left():
    """Each of many reshapes ends a longer chain than the one before."""

    def ends(x):
        y, found = x.reshape(-1), []
        for _ in range(400):
            y = mnp.sin(y)
            found.append(mnp.cos(y.reshape(SHAPE)))
        return found

    closed = mw.make_jaxpr(ends)(X)
    assert count(undone(closed).jaxpr) == count(closed.jaxpr) == 401
