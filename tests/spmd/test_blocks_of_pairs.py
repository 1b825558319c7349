"""Pairs of all rows with a block of them, in a loop over blocks: each is computed once, on one device."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P

MESH = mw.AbstractMesh((8,), ("d",))


@pytest.mark.parametrize(("rows", "blocks"), [(256, 4), (256, 2), (1000, 4)])
def test_pairs_in_blocks(rows, blocks):
    """Blocks are split by the axes that are left of those that split all rows, and so get the same axis twice."""

    def forces(x, m):
        def block(sums, ys):
            y, w = ys
            d = y[None] - x[:, None]
            return sums + ((w * ((d * d).sum(-1) + 1e-3))[..., None] * d).sum(1), None

        return lax.scan(block, mnp.zeros_like(x), (x.reshape(blocks, -1, 3), m.reshape(blocks, -1)))[0]

    def steps(x, v, m):
        def step(c, _):
            x, v = c
            x = x + v
            return (x, v + forces(x, m)), (m * (v * v).sum(-1)).sum()

        return lax.scan(step, (x, v), None, length=3)

    split = NamedSharding(MESH, P("d"))
    sizes = [mw.ShapeDtypeStruct(s, np.float32) for s in ((rows, 3), (rows, 3), (rows,))]
    part = mw.jit(steps, in_shardings=split).lower(*sizes).partition()
    part.verify()
    assert part.work.redundancy < 1.1
    assert part.bytes_sent <= 2 * 3 * rows * 4 * 4
