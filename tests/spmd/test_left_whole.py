"""What no annotation splits stays whole where splitting it would move what follows back and forth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benchmarks.fourth_examined_programs import PROGRAMS

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P

N, CELLS, ROOM = 1024, 256, 8
MESH = mw.AbstractMesh((8,), ("d",))
RNG = np.random.default_rng(3)
#: the cell of each particle, and its number among those of the cell
CELL = RNG.integers(0, CELLS, N).astype(np.int32)
RANK = np.array([(CELL[:i] == c).sum() for i, c in enumerate(CELL)], np.int32)
X = RNG.normal(size=N).astype(np.float32)


def neighbours(x: Any, cell: Any, rank: Any) -> Any:
    """Sums over the particles of the cells around each particle's own, which a table lists."""
    table = mnp.full((CELLS, ROOM), N).at[cell, rank].set(mnp.arange(N), mode="drop")
    around = mnp.concatenate([mnp.roll(table, shift, 0) for shift in range(-4, 5)], 1)
    return x.at[around[cell]].get(mode="fill", fill_value=0).sum(1)


def counted(x: Any, cell: Any, rank: Any) -> Any:
    """The same, with much arithmetic on the table, which devices share."""
    table = mnp.zeros((CELLS, ROOM)).at[cell, rank].add(x, mode="drop")
    for _ in range(40):
        table = mnp.tanh(table) * 1.5
    return mnp.concatenate([mnp.roll(table, shift, 0) for shift in range(-4, 5)], 1)[cell].sum(1)


def partitioned(f: Any) -> Any:
    rows = NamedSharding(MESH, P("d"))
    return mw.jit(f, in_shardings=(rows,) * 3, out_shardings=rows).lower(X, CELL, RANK).partition()


@pytest.mark.parametrize("f", [neighbours, counted])
def test_values(f):
    assert partitioned(f).verify(X, CELL, RANK)


def test_a_table_is_left_whole():
    """Each device fills the table and reads its rows. Tiles were brought to other dimensions, twice."""
    part = partitioned(neighbours)
    assert part.part.strategy.whole_results
    assert {c.kind for c in part.collectives} == {"all_gather"}
    assert part.bytes_sent < 3.1 * 4 * N


def test_work_is_shared_nonetheless():
    part = partitioned(counted)
    assert not part.part.strategy.whole_results
    assert part.work.redundancy < 2  # 8 if each device computed the whole table


def test_messages_of_edges_are_summed_by_all_devices():
    """Nodes stay whole, and devices add up their edges' messages. Messages were brought to parts of the features, and
    nodes gathered again."""
    lowered, _ = PROGRAMS.lowered("so2_convolution_edges")
    part = lowered.partition()
    assert part.bytes_sent < 1.95e6  # 2.85e6 with tiles of features
