"""Results stay as they were computed where operands were moved to have a dimension whole, if that sends less."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, P, nn

N, ROWS, WORDS = 8, 16, 1024
MESH = mw.AbstractMesh((N,), ("t",))
#: what a device sends of an array to split its rows instead of its words
MOVED = ROWS * WORDS * 4 // N * (N - 1) // N


def partitioned(f: Any, *shapes: tuple[int, ...], out: P) -> Any:
    split, whole = NamedSharding(MESH, P(None, "t")), NamedSharding(MESH, P())
    args = [mw.ShapeDtypeStruct(s, np.float32) for s in shapes]
    where = tuple(split if len(s) == 2 else whole for s in shapes)
    return mw.jit(f, in_shardings=where, out_shardings=NamedSharding(MESH, out)).lower(*args).partition(MESH)


def nucleus(x: Any) -> Any:
    p = nn.softmax(-mnp.sort(-x, -1))
    cut = (mnp.cumsum(p, -1) < 0.9).sum(-1)
    return mnp.where(x >= mnp.take_along_axis(-mnp.sort(-x, -1), cut[:, None], 1), x, 0).sum(-1)


def typical(x: Any, u: Any) -> Any:
    order = mnp.argsort(mnp.abs(x), -1)
    mass = mnp.cumsum(nn.softmax(mnp.take_along_axis(x, order, -1)), -1)
    at = (mass < u[:, None]).sum(-1)
    return mnp.take_along_axis(order, at[:, None], 1)[:, 0]


PROGRAMS = {
    "nucleus": (nucleus, [(ROWS, WORDS)], 1),
    "typical": (typical, [(ROWS, WORDS), (ROWS,)], 2),
    "medians": (lambda x: mnp.median(x, -1), [(ROWS, WORDS)], 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_sorted_rows_are_not_moved_back(name: str) -> None:
    f, shapes, moved = PROGRAMS[name]
    part = partitioned(f, *shapes, out=P())
    part.verify()
    assert part.bytes_sent <= moved * MOVED + 4 * 1024, part.explain()
    assert part.work.redundancy < 1.05


def test_sorted_rows_that_meet_split_ones_are() -> None:
    """Here the result is needed with its words split: it moves there and back, and nothing is gathered."""
    part = partitioned(lambda x, y: mnp.sort(x, -1) * y, (ROWS, WORDS), (ROWS, WORDS), out=P(None, "t"))
    part.verify()
    assert part.bytes_sent <= 2 * MOVED, part.explain()


def test_it_is_said() -> None:
    assert "results stay as they were computed" in partitioned(nucleus, (ROWS, WORDS), out=P()).explain()


def test_bytes_that_nobody_would_notice_decide_where_nothing_else_does():
    """Beside work that takes much longer, still no more is sent than without it."""
    f, shapes, _ = PROGRAMS["nucleus"]
    long = mw.lax.fori_loop
    beside = partitioned(
        lambda z, *args: f(*args) + long(0, 1_000_000, lambda _, z: mnp.sin(z), z).sum(), (8, WORDS), *shapes, out=P()
    )
    alone = partitioned(lambda z, *args: f(*args) + z.sum(), (8, WORDS), *shapes, out=P())
    assert beside.time().seconds > 100 * alone.time().seconds
    assert beside.bytes_sent == alone.bytes_sent
