"""Rows that loops take and write at their count as slices and outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.ops.control.counters import Counters, Line
from meshwright.ops.control.stacked_rows import blocks_of_rows, leading_rows

X = np.arange(12, dtype=np.float32).reshape(4, 3)
ROW, WHOLE = np.zeros(3, np.float32), np.zeros((4, 3), np.float32)


def loop(runs: int, step: Any, start: Any, first: int = 0) -> Any:
    return lambda x: lax.fori_loop(first, first + runs, lambda i, a: step(mnp.asarray(x), i, a), mnp.asarray(start))


#: how many slices and outputs the loop has, with leading rows alone, and with all blocks
CASES = {
    "read": (loop(4, lambda x, i, a: 2 * a + x[i], ROW), 1, 1),
    "count from below zero": (loop(4, lambda x, i, a: 2 * a + x[i], ROW, -4), 1, 1),
    "read and written": (loop(4, lambda x, i, a: a.at[i].set(2 * x[i]), WHOLE), 2, 2),
    "written where it was read": (loop(4, lambda x, i, a: a.at[i].set(a[i] + x[i]), X), 1, 3),
    "backwards": (loop(4, lambda x, i, a: 2 * a + x[3 - i], ROW), 1, 1),
    "columns": (loop(3, lambda x, i, a: a.at[:, i].set(2 * x[:, i]), WHOLE), 0, 2),
    "chunks": (loop(2, lambda x, i, a: 2 * a + lax.dynamic_slice_in_dim(x, 2 * i, 2), WHOLE[:2]), 0, 1),
    "some": (loop(3, lambda x, i, a: 2 * a + x[i], ROW, 1), 0, 1),
    "beyond the end": (loop(6, lambda x, i, a: 2 * a + lax.dynamic_slice_in_dim(x, i, 1), ROW[None]), 0, 0),
    "every other row": (loop(2, lambda x, i, a: 2 * a + x[2 * i], ROW), 0, 0),
    "read as a whole": (loop(4, lambda x, i, a: a.at[i].set(x[i] + a.sum()), WHOLE), 1, 1),
    "read before it is written": (loop(4, lambda x, i, a: a.at[i].set(x[i] + a[3 - i]), WHOLE), 1, 1),
    "while": (
        lambda x: lax.while_loop(lambda s: s[0] < 4, lambda s: (s[0] + 1, 2 * s[1] + mnp.asarray(x)[s[0]]), (0, ROW)),
        1,
        1,
    ),
    "numbers of rows": (lambda x: lax.scan(lambda a, i: (2 * a + mnp.asarray(x)[i], None), ROW, mnp.arange(4)), 1, 1),
}


def slices(jaxpr: mw.core.ClosedJaxpr) -> int:
    """How many slices and outputs loops have, the numbers of rows left out."""
    found = 0
    for eqn in jaxpr.jaxpr.eqns:
        if eqn.op.name == "scan":
            (body,) = eqn.op.bodies()
            xs = eqn.invars[body.num_consts + body.num_carry :]
            found += sum(x.aval.dtype == np.float32 for x in xs) + len(eqn.outvars) - body.num_carry
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_same_rows(name: str) -> None:
    f, leading, blocks = CASES[name]
    jaxpr = mw.make_jaxpr(f)(X)
    for rewrite, expected in ((leading_rows, leading), (blocks_of_rows, blocks)):
        after = rewrite(jaxpr)
        assert slices(after) == expected
        for new, old in zip(mw.core.eval_jaxpr(after.jaxpr, after.consts, X), mw.tree.leaves(f(X))):
            np.testing.assert_array_equal(new, old)


def test_lines() -> None:
    def scalars(i: Any) -> list[Any]:
        wrapped = mnp.where(i < 0, i + 5, i)
        return [
            wrapped,
            2 * i - 1,
            i % 5,
            lax.clamp(0, i, 4),
            mnp.maximum(i, 7),
            i * i,
            i == 9,
            i < 2,
            i.astype(np.int8) * 100,
        ]

    jaxpr = mw.make_jaxpr(scalars)(np.int32(0)).jaxpr
    counters = Counters(jaxpr.eqns, 5, {jaxpr.invars[0]: Line(0, 1)}, set())
    i = Line(0, 1)
    assert [counters.of(v) for v in jaxpr.outvars] == [i, Line(-1, 2), i, i, Line(7), None, Line(0), None, None]


def test_a_loop_that_counts_sends_what_a_scan_does() -> None:
    mesh = mw.AbstractMesh((2,), ("d",))
    x = mw.ShapeDtypeStruct((4, 8, 64), np.float32, sharding=NamedSharding(mesh, P(None, "d")))
    w = mw.ShapeDtypeStruct((64, 64), np.float32, sharding=NamedSharding(mesh, P()))

    def scanned(x: Any, w: Any) -> Any:
        return lax.scan(lambda a, row: (a + mnp.tanh(row @ w).sum(), None), 0.0, x)[0]

    def counted(x: Any, w: Any) -> Any:
        return lax.fori_loop(0, 4, lambda i, a: a + mnp.tanh(x[i] @ w).sum(), 0.0)

    ways = [mw.jit(f).lower(x, w).partition() for f in (scanned, counted)]
    assert len({(part.bytes_sent, len(part.collectives)) for part in ways}) == 1
    ways[1].verify()


def test_what_a_loop_changes_in_place_is_held_once() -> None:
    mesh = mw.AbstractMesh((2,), ("d",))
    x = mw.ShapeDtypeStruct((64, 64), np.float32, sharding=NamedSharding(mesh, P(None, "d")))
    changed = mw.jit(lambda a: lax.fori_loop(0, 64, lambda i, a: a.at[i].set(mnp.sin(a[i])), a), donate_argnums=0)
    assert changed.lower(x).partition().peak_bytes < 1.1 * 64 * 32 * 4
