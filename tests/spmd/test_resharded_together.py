"""What several equations of the same form read is resharded once for them, if that sends less in no more time."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P

MESH = mw.AbstractMesh((8,), ("d",))
NODES, EDGES, WIDTH = 512, 2048, 16


def gathered(reads):
    """Rows of split nodes for split edges, by several tables of indices."""

    def f(x, *tables):
        return mnp.concatenate([x[t] for t in tables], -1)

    split = NamedSharding(MESH, P("d"))
    x, table = mw.ShapeDtypeStruct((NODES, WIDTH), np.float32), mw.ShapeDtypeStruct((EDGES,), np.int32)
    shardings = {"in_shardings": (split,) * (1 + reads), "out_shardings": split}
    return mw.jit(f, **shardings).lower(x, *[table] * reads).partition()


@pytest.mark.parametrize("reads", [1, 2, 3])
def test_nodes_of_edges(reads):
    """Read once, rows are looked up in tiles of columns, and the results exchanged. Read more often, the nodes are
    gathered instead, once for all tables: nothing else is sent."""
    part = gathered(reads)
    assert any("all of them together" in line for line in part.part.described_strategy) == (reads > 1)
    whole = (NODES * WIDTH * 4) * 7 // 8
    if reads > 1:
        assert [c.kind for c in part.collectives] == ["all_gather"]
        assert part.bytes_sent == whole
    assert part.bytes_sent <= whole
    assert part.work.redundancy == pytest.approx(1)
    rng = np.random.default_rng(0)
    part.verify(
        rng.normal(size=(NODES, WIDTH)).astype(np.float32),
        *rng.integers(0, NODES, (reads, EDGES)).astype(np.int32),
    )
