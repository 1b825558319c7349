"""Pairs of all rows with a block of them, in a loop over blocks: each is computed once, on one device."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P

MESH = mw.AbstractMesh((8,), ("d",))


@pytest.mark.parametrize(("rows", "blocks"), [(64, 4), (64, 2), (240, 5)])
def test_pairs_in_blocks(rows, blocks):
    def f(x, m):
        def block(sums, ys):
            y, w = ys
            d = y[None] - x[:, None]
            return sums + (w[:, None] * d / ((d * d).sum(-1, keepdims=True) + 1e-3)).sum(1), None

        return lax.scan(block, mnp.zeros_like(x), (x.reshape(blocks, -1, 3), m.reshape(blocks, -1)))[0]

    rng = np.random.default_rng(0)
    x, m = rng.normal(size=(rows, 3)).astype(np.float32), rng.normal(size=rows).astype(np.float32)
    split = NamedSharding(MESH, P("d"))
    part = mw.jit(f, in_shardings=split, out_shardings=split).lower(x, m).partition()
    part.verify(x, m)
    assert part.work.redundancy < 1.1
    assert part.bytes_sent <= 2 * (x.nbytes + m.nbytes)
