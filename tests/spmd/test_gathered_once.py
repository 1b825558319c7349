"""What a loop does not change may be gathered once, before it, if that makes up for what is then held."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P

MESH = mw.AbstractMesh((4, 2), ("f", "t"))
WIDTH = 256


def denoised(batch, steps):
    """A step's weights are split in two dimensions, and activations along the batch."""

    def run(up, down, x):
        def step(x, _):
            return x - 0.1 * mnp.tanh(x @ up) @ down, None

        return lax.scan(step, x, length=steps)[0]

    specs = P("f", "t"), P("t", "f"), P("f")
    weights = mw.ShapeDtypeStruct((WIDTH, 2 * WIDTH), np.float32), mw.ShapeDtypeStruct((2 * WIDTH, WIDTH), np.float32)
    ins = tuple(NamedSharding(MESH, s) for s in specs)
    lowered = mw.jit(run, in_shardings=ins, out_shardings=ins[2]).lower(
        *weights, mw.ShapeDtypeStruct((batch, WIDTH), np.float32)
    )
    return lowered.partition()


@pytest.mark.parametrize(("steps", "once"), [(5, False), (20, True)])
def test_weights(steps, once):
    part = denoised(64, steps)
    assert any("before them" in line for line in part.part.described_strategy) == once
    gathered = {c.operand.shape for c in part.collectives if c.kind == "all_gather" and c.count == 1}
    assert ((WIDTH // 4, WIDTH) in gathered) == once  # the tiles of the weights
    part.verify()


def test_decays_of_a_recurrence():
    """The gradient of a split decay is summed over devices once, after all steps: the decay is gathered before them."""

    def loss(decay, xs):
        def step(s, x):
            s = s * mnp.exp(-mnp.exp(decay)) + x
            return s, (s * s).sum(-1)

        return lax.scan(step, mnp.zeros(xs.shape[1:], np.float32), xs)[1].sum()

    specs = P("f"), P(None, "f")
    of = mw.ShapeDtypeStruct
    run = mw.jit(mw.grad(loss), in_shardings=tuple(NamedSharding(MESH, s) for s in specs),
                 out_shardings=NamedSharding(MESH, P("f")))  # fmt: skip
    part = run.lower(of((WIDTH, 8), np.float32), of((64, 16, WIDTH, 8), np.float32)).partition()
    part.verify()
    assert {c.count for c in part.collectives} == {1}, part.explain()
    assert part.bytes_sent <= 3 * WIDTH * 8 * 3, part.explain()


def test_a_table_in_which_a_loop_looks_up_few_rows():
    """Binary searches in a split table, which is gathered once: of a whole table, too, only the rows that are found are
    read. What devices found was summed in each step."""
    devices = mw.AbstractMesh((8,), ("d",))

    def tiles(x, keys):
        order = mnp.sort(keys)
        low, high = (mnp.searchsorted(order, mnp.arange(64), side=side) for side in ("left", "right"))
        return x, high - low

    rows = NamedSharding(devices, P("d"))
    args = mw.ShapeDtypeStruct((64,), np.float32), mw.ShapeDtypeStruct((2000,), np.int32)
    part = mw.jit(tiles, in_shardings=rows, out_shardings=rows).lower(*args).partition()
    part.verify()
    assert {c.count for c in part.collectives} == {1}, part.explain()
