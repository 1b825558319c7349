"""What one device has is computed with as what all have: infinities, zeros that divide, and the signs of zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import lax
from meshwright.spmd.partition import lookahead, partitioner
from meshwright.spmd.passes import partial_sums

SPECIAL = np.array([np.inf, 0.0, -0.0, -np.inf, np.nan, 2.0], np.float32)
#: six rows: even on 2 devices, and a device without any on 4
X = np.array([np.roll([1.0, 3.0, -2.0, 0.5, 4.0, 0.0], r) for r in range(6)], np.float32)
X[3], X[4] = SPECIAL, -0.0

PICK: dict[str, Callable[[Any], Any]] = {
    "first row": lambda x: x[0],
    "row of special values": lambda x: x[3],
    "row of negative zeros": lambda x: x[-2],
    "column": lambda x: x[:, 2],
    "rows by number": lambda x: x[mnp.array([5, 3, 0])][1],
    "rows, filled": lambda x: mnp.take(x, mnp.array([4, 9]), axis=0, mode="fill", fill_value=np.inf).sum(0),
    "window": lambda x: lax.dynamic_slice(x, (2, 0), (2, 6))[1],
    "sum of rows": lambda x: x[0] + x[1],
    "counted": lambda x: mnp.zeros((6, 6)).at[mnp.array([4, 0, 1, 1, 5, 2])].add(x)[2],
}
USE: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda v, w: v * w,
    "quotient": lambda v, w: v / w,
    "matrix product": lambda v, w: v @ w,
    "by a constant": lambda v, w: v * np.float32(2),
    "by infinity": lambda v, w: v * np.float32(np.inf),
    "by 0": lambda v, w: v / np.float32(0),
    "negated": lambda v, w: -v,
    "less": lambda v, w: w - v,
    "under 1": lambda v, w: 1 / v,
    "converted": lambda v, w: v.astype(mnp.bfloat16).astype(np.float32) * w,
    "cumulative": lambda v, w: mnp.cumsum(v) * w,
    "chosen": lambda v, w: mnp.where(w > 0, v, 0) * w,
    "joined": lambda v, w: mnp.concatenate([v, w]) * np.float32(np.inf),
}


def everything(x: Any, w: Any) -> list[Any]:
    """Each use of each, picked anew: a value that several uses need is completed before them."""
    return [use(pick(x), w) for pick in PICK.values() for use in USE.values()]


def wrong(devices: int) -> list[str]:
    mesh = mw.make_mesh((devices,), ("x",))
    rows, whole = (mw.NamedSharding(mesh, spec) for spec in (P("x"), P()))
    lowered = mw.jit(everything, in_shardings=(rows, whole)).lower(X, SPECIAL)
    with np.errstate(all="ignore"):
        want, got = everything_whole(), lowered.partition().compile()(X, SPECIAL)
    names = [f"{pick}, {use}" for pick in PICK for use in USE]
    return [n for n, a, b in zip(names, want, map(np.asarray, got), strict=True) if not _alike(a, b)]


def everything_whole() -> list[np.ndarray]:
    return [np.asarray(y) for y in mw.jit(everything)(X, SPECIAL)]


def _alike(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(np.signbit(a[a == 0]), np.signbit(b[a == 0]))


@pytest.fixture
def picked_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pick is computed by itself: otherwise ``X`` is gathered once for all picks, without any masked sum."""
    monkeypatch.setattr(lookahead.Search, "reshard_together", lambda self, best: best)


@pytest.mark.parametrize("devices", [2, 4])
def test_nothing_stays_nothing(devices: int, picked_apart: None) -> None:
    assert not wrong(devices)


def test_zeros_that_are_multiplied_are_found(monkeypatch: pytest.MonkeyPatch, picked_apart: None) -> None:
    """Masked sums taken for sums make the difference that the test above looks for."""
    for module in (partitioner, partial_sums):
        monkeypatch.setattr(module, "masked_groups", lambda op, avals, numbers: op.linear_groups(*avals))
    found = wrong(2)
    assert {"first row, product", "first row, quotient", "first row, negated"} <= set(found)


def test_a_device_without_rows_has_no_sum() -> None:
    """Three of four devices have rows: on the fourth the sum of none is not multiplied."""
    mesh = mw.make_mesh((4,), ("x",))
    x, w = np.ones((3, 4), np.float32), np.array([np.inf, 1.0, 0.0, np.inf], np.float32)
    in_shardings = (mw.NamedSharding(mesh, P("x")), mw.NamedSharding(mesh, P()))
    part = mw.jit(lambda x, w: mnp.sum(x, 0) * w, in_shardings=in_shardings).lower(x, w).partition()
    np.testing.assert_array_equal(part.compile()(x, w), [np.inf, 3.0, 0.0, np.inf])


def test_embeddings_wait_for_constants_and_other_embeddings() -> None:
    """A table split by words: scaled, and added to another, before it is sent, once."""
    mesh = mw.AbstractMesh((4,), ("x",))
    rows, whole = (mw.NamedSharding(mesh, spec) for spec in (P("x"), P()))

    def embed(table: Any, types: Any, ids: Any) -> Any:
        return table[ids] * np.float32(8) + types[ids % 4]

    struct = mw.ShapeDtypeStruct
    args = struct((12, 6), np.float32), struct((4, 6), np.float32), struct((5,), np.int32)
    part = mw.jit(embed, in_shardings=(rows, rows, whole)).lower(*args).partition()
    assert [(c.kind, c.bytes_sent) for c in part.collectives] == [("all_reduce", 2 * 3 * 4 * 5 * 6 // 4)]
    assert "masked sums over x" in str(part.explain())
    part.verify()
