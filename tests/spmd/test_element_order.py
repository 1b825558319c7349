"""What is turned forth and back: derivatives of reversals and rotations send nothing that cancels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, core
from meshwright.ir.passes import DEAD_CODE, INLINE, run_passes
from meshwright.ops.element_order import in_one_order
from meshwright.spmd.driver import CYCLIC_WINDOWS

MESH = mw.AbstractMesh((8,), ("x",))
TILE = 4 * 6 * 3  # bytes of a device's part of f32[6, 24]
ROWS = mnp.arange(6.0)[:, None] + 1


def loss(f):
    return lambda x: mnp.sum(mnp.sin(f(x)))


#: functions of f32[6, 24] split along its second dimension, and what a device may send
FUNCTIONS = {
    "flip": (mw.grad(loss(lambda x: mnp.flip(x, 1))), 0),
    "roll": (mw.grad(loss(lambda x: mnp.roll(x, 5, 1))), 0),
    "both": (mw.grad(loss(lambda x: 2 * mnp.roll(mnp.flip(x, (0, 1)), 5, 1) + 1)), 0),
    "value and gradient": (mw.grad(loss(lambda x: mnp.flip(x, 1) * ROWS)), 0),
    "of two": (lambda x: mnp.flip(x, 1) * mnp.flip(mnp.cos(x), 1), TILE),
    "summed": (lambda x: mnp.sum(mnp.flip(x, (0, 1)) ** 2, 1), 7 * 4 * 6),
    "neither": (lambda x: (mnp.flip(x, 1), mnp.sin(mnp.flip(x, 1))), TILE),
    "one of two": (lambda x: mnp.flip(x, 1) * x, TILE),
    "stencil": (mw.grad(lambda x: mnp.sum((mnp.roll(x, 1, 1) + mnp.roll(x, -1, 1) - 2 * x) ** 2)), 4 * 4 * 6),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_sent(name):
    f, sent = FUNCTIONS[name]
    part = mw.jit(f, in_shardings=mw.NamedSharding(MESH, P(None, "x"))).lower(mnp.ones((6, 24))).partition()
    assert part.bytes_sent <= sent, part.explain()
    assert part.work.redundancy <= 1.01
    part.verify()


def test_the_value_with_the_gradient():
    f = mw.value_and_grad(loss(lambda x: mnp.flip(x, 1) * ROWS))
    part = mw.jit(f, in_shardings=mw.NamedSharding(MESH, P(None, "x"))).lower(mnp.ones((6, 24))).partition()
    assert [c.kind for c in part.collectives] == ["all_reduce"]
    part.verify()


def _steps(draw, values):
    """One value more."""
    x = draw(st.sampled_from(values))
    match draw(st.sampled_from(["flip", "roll", "sin", "mul", "scale", "spread", "where", "max"])):
        case "flip":
            return mnp.flip(x, draw(st.sampled_from([0, 1, (0, 1)])))
        case "roll":
            return mnp.roll(x, draw(st.integers(-6, 6)), draw(st.sampled_from([0, 1])))
        case "sin":
            return mnp.sin(x)
        case "mul":
            return x * draw(st.sampled_from(values))
        case "scale":
            return 2 * x + 1
        case "spread":
            return x * mnp.arange(x.shape[1], dtype="float32")
        case "where":
            return mnp.where(draw(st.sampled_from(values)) > 0.5, x, 3.0)
    return x + mnp.max(x, draw(st.sampled_from([0, 1])), keepdims=True)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_values_are_as_they_were(data):
    x = mnp.asarray(np.random.default_rng(0).random((4, 5), np.float32))

    def f(x):
        values = [x]
        for _ in range(data.draw(st.integers(2, 9))):
            values.append(_steps(data.draw, values))
        return values[-1], values[len(values) // 2]

    jaxpr = run_passes(mw.jit(f).lower(x).program.jaxpr, (INLINE, CYCLIC_WINDOWS, DEAD_CODE))
    after = in_one_order(jaxpr)
    before, now = (
        sum(e.outvars[0].aval.size for e in j.eqns if e.op.name in ("rev", "cyclic_window")) for j in (jaxpr, after)
    )
    assert now < before or after is jaxpr
    for a, b in zip(core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, x), core.eval_jaxpr(after.jaxpr, after.consts, x)):
        np.testing.assert_array_equal(a, b)
