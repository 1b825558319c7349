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


ROWS = mw.ShapeDtypeStruct((12, 10), "float32", sharding=mw.NamedSharding(MESH, P(("data", "model"))))


@pytest.mark.parametrize(
    ("f", "sent"),
    [
        (lambda x: x.at[0].set(x[1]).at[-1].set(x[-2]).at[:, 0].set(x[:, 1]), []),
        (lambda x: x.at[0].set(2 * x[1] - x[2]), []),
        (lambda x: x.at[0].set(mnp.sin(x[1]) * mnp.arange(10.0)), []),
        (lambda x: x.at[0, 0].set(x[1, 0]), []),
        (lambda x: x.at[0].set(x[-2]).at[-1].set(x[1]), [("collective_permute", 20)] * 2),
        (lambda x: x.at[0].set(x[1] + x[-1]), [("all_reduce", 30)]),  # two have what one reads
        (lambda x: x.at[0].set(x[2]).at[3].set(x[2]), [("all_reduce", 30)]),  # two read it
        (lambda x: mw.lax.fori_loop(0, 5, lambda i, x: x.at[0].set(x[1]), x), []),
        (lambda x: x.at[4:6].set(0), []),
    ],
    ids=["borders", "of two", "computed", "corner", "from afar", "of two tiles", "for two", "in a loop", "constant"],
)
def test_a_row_that_one_device_reads_is_sent_to_no_other(f: Any, sent: list[tuple[str, int]]) -> None:
    out = mw.NamedSharding(MESH, P("data", "model"))
    assert collectives(f, X, out_shardings=out) == sent


def test_a_row_is_read_by_one_along_two_axes() -> None:
    """Tiles of two rows; the last two hold padding alone."""
    f = lambda x: x.at[0].set(x[1]).at[11].set(x[4])  # noqa: E731
    assert collectives(f, ROWS, out_shardings=ROWS.sharding) == [("collective_permute", 40)]


def test_what_others_compute_of_a_row_is_not_seen() -> None:
    """Elsewhere a boundary is made of other rows, infinite and NaN ones too; there, nobody reads it."""
    x = np.arange(96, dtype=np.float32).reshape(12, 8)
    x[4:7], x[7:] = np.inf, np.nan
    mesh = mw.make_mesh((4, 2), ("data", "model"))
    put = mw.device_put(x, mw.NamedSharding(mesh, P("data", "model")))
    got = mw.jit(lambda x: x.at[0].set(1 / (x[1] - x[2])).at[11].set(x[3] * 2), out_shardings=put.sharding)(put)
    want = x.copy()
    want[0], want[11] = 1 / (x[1] - x[2]), x[3] * 2
    np.testing.assert_array_equal(got, want)
