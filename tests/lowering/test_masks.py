"""On GPUs, masks of positions are computed at the rank of what they mask; what is not a mask of positions stays."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax, nn
from meshwright.ir.passes import inline_calls
from meshwright.lowering.masks import broadcast_positions

T, S = 3, 5
SCORES = np.random.default_rng(0).normal(size=(2, 4, T, S)).astype(np.float32)
KEPT = np.array([[1, 1, 0, 1, 1], [1, 0, 1, 1, 0]], bool)


def causal() -> object:
    return mnp.arange(T)[:, None] >= mnp.arange(S)[None]


MASKS = {
    "causal": lambda: causal(),
    "a window": lambda: causal() & (mnp.arange(T)[:, None] - mnp.arange(S)[None] < 2),
    "lower triangle": lambda: mnp.tril(mnp.ones((T, S), bool)),
    "with dimensions of size 1": lambda: causal()[None, None],
    "reshaped": lambda: causal().reshape(1, T, 1, S).reshape(T, S),
    "a row": lambda: mnp.arange(S) < 3,
    "as numbers": lambda: mnp.where(causal(), 0.0, -1e9) > -1,
    "with an argument": lambda: causal() & mnp.asarray(KEPT)[:, None, None, :],
    "with lengths": lambda: causal() & (mnp.arange(S) < mnp.asarray([2, 4])[:, None, None, None]),
    "a row, stretched": lambda: lax.broadcasted_iota(np.int32, (T, 1), 1) >= lax.broadcasted_iota(np.int32, (T, 1), 0),
}


def jaxpr_of(f, *args):
    return inline_calls(mw.make_jaxpr(f)(*args))


@pytest.mark.parametrize("name", MASKS)
def test_values_stay(name):
    def f(x):
        return nn.softmax(mnp.where(MASKS[name](), x, -1e30))

    jaxpr = jaxpr_of(f, SCORES)
    after = broadcast_positions(jaxpr)
    assert after is not jaxpr
    np.testing.assert_array_equal(mw.core.eval_jaxpr(after.jaxpr, after.consts, SCORES)[0], f(SCORES))
    iotas = [e.outvars[0].aval.shape for e in after.eqns if e.op.name == "iota"]
    assert SCORES.shape in iotas or name == "a row, stretched"
    raised = {v for e in after.eqns if e.outvars[0].aval.shape == SCORES.shape for v in e.outvars}
    assert any(e.op.name in ("ge", "lt", "gt") and e.outvars[0] in raised for e in after.eqns)


def test_what_is_written():
    jaxpr = jaxpr_of(lambda x: mnp.where(lax.iota(np.int32, 3)[:, None] > lax.iota(np.int32, 4), x, 0.0),
                     np.ones((2, 3, 4), np.float32))  # fmt: skip
    assert [(e.op.name, e.outvars[0].aval.shape) for e in broadcast_positions(jaxpr).eqns if e.op.name != "copy"] == [
        ("iota", (2, 3, 4)),
        ("iota", (2, 3, 4)),
        ("gt", (2, 3, 4)),
        *[(e.op.name, e.outvars[0].aval.shape) for e in jaxpr.eqns if e.op.name == "select_n"],
    ]


@pytest.mark.parametrize("f", [
    lambda x, m: mnp.where(m, x, 0),  # an argument
    lambda x, m: x + mnp.sin(mnp.arange(S)),  # not cheap
    lambda x, m: x * mnp.arange(S),  # no comparison
    lambda x, m: mnp.where(mnp.cumsum(mnp.arange(S)) > 3, x, 0),  # no elementwise function of positions
    lambda x, m: mnp.where(mnp.zeros((T, S), bool), x, 0),  # no positions
], ids=["argument", "sine", "number", "running sum", "constant"])  # fmt: skip
def test_what_is_no_mask_of_positions_stays(f):
    jaxpr = jaxpr_of(f, SCORES, np.ones((T, S), bool))
    assert broadcast_positions(jaxpr) is jaxpr


def test_long_masks_stay():
    def f(x):
        mask = causal()
        for n in range(40):
            mask = mask ^ (mnp.arange(S) > n)
        return mnp.where(mask, x, 0)

    after = broadcast_positions(jaxpr_of(f, SCORES))
    assert not any(e.op.name == "iota" and e.outvars[0].aval.shape == SCORES.shape for e in after.eqns)


def test_masks_in_loops_and_calls():
    @mw.jit
    def inner(x):
        return mnp.where(causal(), x, 0)

    def f(x):
        return lax.fori_loop(0, 3, lambda i, x: inner(x) + mnp.where(mnp.arange(S) > i, x, 0), x)

    jaxpr = mw.make_jaxpr(f)(SCORES)
    after = broadcast_positions(jaxpr)
    assert after is not jaxpr
    np.testing.assert_array_equal(mw.core.eval_jaxpr(after.jaxpr, after.consts, SCORES)[0], f(SCORES))


def test_only_for_gpus():
    lowered = mw.jit(lambda x: mnp.where(causal(), x, 0)).lower(SCORES)
    part = lowered.partition(mw.AbstractMesh((2,), ("x",)))
    shapes = {p: str(part.module(p)).count("-> tensor<2x4x3x5xi1>") + str(part.module(p)).count(": tensor<2x4x3x5xi32>")
              for p in ("cpu", "cuda", "tpu")}  # fmt: skip
    assert shapes["cuda"] > shapes["cpu"] == shapes["tpu"]
