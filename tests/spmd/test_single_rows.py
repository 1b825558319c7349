"""One row of a split dimension: who has it gives it to all in one sum; a row is put in its place without talking."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P

MESH = mw.AbstractMesh((4, 2), ("data", "model"))
SHAPE = (12, 10)
X = mw.ShapeDtypeStruct(SHAPE, "float32", sharding=mw.NamedSharding(MESH, P("data", "model")))
ROW = mw.ShapeDtypeStruct((10,), "float32", sharding=mw.NamedSharding(MESH, P("model")))


def collectives(f: Any, *args: Any, **options: Any) -> list[tuple[str, int]]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        part = mw.jit(f, **options).lower(*args).partition()
    part.verify()
    return [(c.kind, c.bytes_sent) for c in part.collectives]


@pytest.mark.parametrize(
    ("f", "sent"),
    [
        (lambda x: x[7], 30),  # 2 · 3/4 of 5 floats
        (lambda x: x[0] + x[11], 30),  # added before they are sent
        (lambda x: x[:, 2], 12),  # 2 · 1/2 of 3 floats
        (lambda x: x[-1, -1], 7),
        (lambda x: mnp.stack([x[2], x[5], x[9]]), 90),
        (lambda x: x[7] > 0, 30),
    ],
    ids=["row", "sum of rows", "column", "element", "rows", "compared"],
)
def test_a_row_is_sent_once(f: Any, sent: int) -> None:
    assert collectives(f, X) == [("all_reduce", sent)]


def test_the_gradient_of_a_row_sends_nothing_back() -> None:
    out = mw.NamedSharding(MESH, P("data", "model"))
    assert collectives(lambda ct: mw.vjp(lambda x: x[7], mnp.ones(SHAPE))[1](ct)[0], ROW, out_shardings=out) == []


def test_rows_are_stacked_along_a_split_dimension_without_talking() -> None:
    out = mw.NamedSharding(MESH, P("data", "model"))
    assert collectives(lambda a, b: mnp.stack([a, b, a + b]), ROW, ROW, out_shardings=out) == []


def test_rows_of_padding_are_not_fetched() -> None:
    """Tiles 2 and 3 of a result of two rows hold padding only."""
    out = mw.NamedSharding(MESH, P("data", "model"))
    assert collectives(lambda x: x[3:5], X, out_shardings=out) == [("collective_permute", 20)]


def test_boolean_rows() -> None:
    x = np.arange(32).reshape(8, 4) % 5 < 2
    mesh = mw.make_mesh((4,), ("data",))
    put = mw.device_put(x, mw.NamedSharding(mesh, P("data")))
    np.testing.assert_array_equal(mw.jit(lambda x: mnp.stack([x[1], x[4]]))(put), x[[1, 4]])


@pytest.mark.parametrize(
    ("f", "sent"),
    [
        (lambda x: mnp.roll(x, 1, axis=0), [20]),
        (lambda x: mnp.roll(x, -1, axis=0), [20]),
        (lambda x: mnp.roll(x, (1, -2), axis=(0, 1)), [20, 24]),
        (lambda x: mw.lax.fori_loop(0, 3, lambda i, x: mnp.roll(x, 1, axis=0), x), [60]),
        (lambda x: mnp.concatenate([x[9:], x[:9]]), [60]),
    ],
    ids=["down", "up", "both", "in a loop", "by a tile"],
)
def test_a_rotation_sends_each_row_once_around_the_ring(f: Any, sent: list[int]) -> None:
    assert collectives(f, X) == [("collective_permute", n) for n in sent]


def test_borders_of_a_torus() -> None:
    """A stencil that reads over the edges: its rows come from both neighbours, and no others."""

    def laplace(x: Any) -> Any:
        y = mnp.pad(x, ((1, 1), (0, 0)), mode="wrap")
        return y[2:] + y[:-2] - 2 * x

    assert {kind for kind, _ in collectives(laplace, X)} == {"collective_permute"}
