"""Axes on the minor of two merged dimensions: their tiles are no blocks, so the major one is split instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, nn
from meshwright import PartitionSpec as P

N = 4
MESH = mw.AbstractMesh((N,), ("d",))
RNG = np.random.default_rng(5)


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def partitioned(f: Any, *args: np.ndarray, specs: Any) -> Any:
    part = mw.jit(f, in_shardings=tuple(NamedSharding(MESH, s) for s in specs)).lower(*args).partition()
    part.verify(*args)
    return part


def nearest(book: Any, x: Any) -> Any:
    rows = x.reshape(-1, x.shape[-1])
    distances = (rows**2).sum(-1, keepdims=True) - 2 * rows @ book.T + (book**2).sum(-1)
    return (rows - book[mnp.argmin(distances, -1)]).reshape(x.shape)


def tied(w: Any, x: Any) -> Any:
    return nn.relu(x.reshape(-1, x.shape[-1]) @ w) @ w.T


PROGRAMS = {"nearest": (nearest, (32, 8), P("d")), "tied": (tied, (8, 32), P(None, "d"))}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("batch", [8, 6])
def test_rows_stay_on_a_device_whatever_else_is_split(name, batch):
    """Without that, weights would split what follows along their dimension, and all rows be gathered for it."""
    f, shape, spec = PROGRAMS[name]
    weights, x = f32(*shape), f32(batch, 16, 8)
    part = partitioned(f, weights, x, specs=(spec, P(None, "d")))
    kinds = sorted(c.kind for c in part.collectives if c.bytes_sent > 100)
    if batch % N == 0:
        assert kinds == ["all_gather", "all_to_all"]
        assert part.bytes_sent <= x.nbytes // N * (N - 1) // N + weights.nbytes * (N - 1) // N + 100
    assert part.work.redundancy < 1.5


def test_dimensions_merged_in_rows_are_not_taken_for_less_work():
    """Another form of the same reshape, that counts rows of many elements, was cheaper by the work it did not count."""
    weights, x = f32(64, 96), f32(8, 16, 64)
    part = partitioned(lambda w, x: x.reshape(-1, 64) @ w, weights, x, specs=(P(), P(None, "d")))
    assert [(c.kind, c.result.shape, c.bytes_sent) for c in part.collectives] == [
        ("all_to_all", (2, 16, 64), x.nbytes // N * (N - 1) // N)
    ]


def test_a_broadcast_sum_is_no_reason_to_leave_a_larger_one_partial():
    """The sum of squares is completed before it is broadcast, not together with what is added to it."""
    rows, book = f32(64, 16), f32(48, 16)

    def distances(book: Any, rows: Any) -> Any:
        return ((rows**2).sum(-1, keepdims=True) - 2 * rows @ book.T).min(-1)

    part = partitioned(distances, book, rows, specs=(P("d"), P(None, "d")))
    whole = 64 * 48 * 4
    assert part.bytes_sent < whole * (N - 1) // N
