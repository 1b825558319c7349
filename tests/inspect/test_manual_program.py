"""The partitioner's output as Python: run, it computes what the program does."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import lax

MESH = mw.make_mesh((2, 4), ("x", "y"))
RNG = np.random.default_rng(5)


def on(*entries):
    return mw.NamedSharding(MESH, P(*entries))


def same(got, want):
    got, want = list(got), mw.tree.leaves(want)
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-5)


def test_a_training_step():
    def loss(p, x, t):
        return ((mnp.tanh(x @ p["w1"] + p["b"]) @ p["w2"] - t) ** 2).mean()

    split = {"w1": on(None, "y"), "b": on("y"), "w2": on("y")}
    params = {"w1": np.ones((6, 8), "f") / 9, "b": np.arange(8, dtype="f") / 8, "w2": np.ones((8, 3), "f") / 5}
    x, t = RNG.normal(size=(16, 6)).astype("f"), RNG.normal(size=(16, 3)).astype("f")
    step = mw.jit(mw.value_and_grad(loss), in_shardings=(split, on("x"), on("x")))
    code = mw.manual_program(step.lower(params, x, t))
    same(code.function()(*mw.tree.leaves((params, x, t))), step(params, x, t))
    assert 'mesh = mw.make_mesh((2, 4), ("x", "y"))'.replace('"', "'") in code
    assert (
        "= lax.psum(l, ('y',))  # f32[8,3]: the result of dot_general" in code and "is in partial sums over y" in code
    )
    assert "in_specs=(P('y'), P(None, 'y'), P('y'), P('x'), P('x'))" in code


def everything(x, n):
    """Loops, branches, constants, ops with bodies and numbers of many kinds, on dimensions that do not divide."""
    y, _ = lax.scan(lambda c, r: (c * 0.5 + mnp.sin(r), c.sum()), x[0], x)
    z = lax.while_loop(lambda v: v[1] < 5, lambda v: (v[0] * 1.1, v[1] + 1), (y, 0))[0]
    table = mnp.array(np.linspace(-1, 1, 55, dtype="f").reshape(11, 5))
    return (
        mnp.sort(z), mnp.cumsum(x, 1)[::2], lax.cond(x[0, 0] > 0, lambda: z, lambda: -z), mnp.roll(x, 1, 0),
        x[n % 3], mnp.fft.fft(x).real, x + table, mnp.where(x > 0, -mnp.inf, mnp.nan_to_num(x)), x.astype("bfloat16"),
        (n % 2 == 0).sum(), mnp.max(x, 0), lax.reduce_window(x, 0.0, lax.add, (2, 1), (1, 1), "SAME"),
    )  # fmt: skip


@pytest.mark.parametrize("spec", [("x", "y"), (("y", "x"),), (None, "y:(1)2")], ids=str)
def test_programs_of_all_kinds(spec):
    x, n = RNG.normal(size=(11, 5)).astype("f"), np.array([7, 2, 5], np.int32)
    step = mw.jit(everything, in_shardings=(on(*spec), None))
    code = mw.manual_program(step.lower(x, n).partition())
    same(code.function()(x, n), mw.jit(everything)(x, n))
    if "y:(1)2" in spec:
        assert "mesh = mw.make_mesh((2, 2, 2), ('x', 'y_0', 'y_1'))" in code


def test_what_has_no_code():
    with pytest.raises(mw.errors.ArgumentTypeError, match="expected a lowered or partitioned program"):
        mw.manual_program(mw.jit(lambda x: x))
    calls = mw.jit(lambda x: mw.pure_callback(np.sin, x, x), in_shardings=on("x"))
    with pytest.raises(mw.errors.ArgumentError, match=r"cannot be written as code|which no module names"):
        mw.manual_program(calls.lower(mnp.ones(8)))
