"""The modules for TPUs: the devices' programs, read back and run, have the values of the program; and their forms."""

from __future__ import annotations

import re

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import lax


def shift(x):
    """Rows come from neighbours by tables, as the concatenated parts are uneven."""
    return mnp.concatenate([x[3:], 2 * x[:1], x[1:3]])


def transform(x):
    """Two dimensions, exchanged between them; one transform is a product with a matrix."""
    return mnp.abs(mnp.fft.fft2(x))


def turn(x):
    """Another dimension is split in the result."""
    return mnp.moveaxis(x.reshape(x.shape[0], -1, 4), 0, 1)


def row(x):
    return lax.dynamic_slice(np.arange(7, dtype=np.int32) ** 2, [x[0, 0].astype(np.int32) - 2], (1,)) + x[:1, 0]


CASES = {
    "rows of neighbours": (shift, (26, 8), P("a"), P("a")),
    "rows of neighbours, along both axes": (shift, (53, 4), P(("b", "a")), P(("b", "a"))),
    "tiles along one of two axes": (lambda x: x + 1, (16, 6), P(), P("b", "a")),
    "a transform": (transform, (192, 64), P("a"), P("a")),
    "narrow tiles": (turn, (64, 192), P("b"), P("b")),
    "an entry beyond the ends": (row, (4, 4), P("a"), P()),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sizes", [(2, 4), (2, 3), (4, 2)], ids=str)
def test_values(name, sizes):
    f, shape, given, wanted = CASES[name]
    mesh = mw.make_mesh(sizes, ("a", "b"))
    given, wanted = (mw.NamedSharding(mesh, s) for s in (given, wanted))
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    part = mw.jit(f, in_shardings=given, out_shardings=wanted).lower(x).partition()
    devices = mw.load(str(part.module("tpu"))).partition(mw.make_mesh((mesh.size,), ("device",)))
    found = devices(stacked(x, part.in_shardings[0], mesh))
    expected = stacked(np.asarray(f(x)), part.out_shardings[0], mesh)
    real = stacked(np.ones(expected_shape(f, x), np.float32), part.out_shardings[0], mesh)
    np.testing.assert_allclose(np.asarray(found) * real, expected * real, rtol=1e-4, atol=1e-4 * abs(expected).max())


def expected_shape(f, x):
    return mw.eval_shape(f, x).shape


def stacked(x, sharding, mesh):
    """The devices' tiles, padded with zeros."""
    tiles = sharding.devices_indices_map(x.shape)
    parts = [x[tiles[d]] for d in mesh.devices.flat]
    largest = np.max([p.shape for p in parts], axis=0)
    return np.stack([np.pad(p, [(0, n - k) for n, k in zip(largest, p.shape)]) for p in parts])


@pytest.mark.parametrize("name", ["rows of neighbours", "rows of neighbours, along both axes"])
def test_no_tables_on_tpus(name):
    """Positions, and what depends on them, are computed; elsewhere they are entries of tables."""
    f, shape, given, wanted = CASES[name]
    mesh = mw.AbstractMesh((2, 4), ("a", "b"))
    given, wanted = (mw.NamedSharding(mesh, s) for s in (given, wanted))
    part = mw.jit(f, in_shardings=given, out_shardings=wanted).lower(mw.ShapeDtypeStruct(shape, np.float32)).partition()
    entries = {p: re.findall(r"dynamic_slice.*-> tensor<1xi32>", str(part.module(p))) for p in ("cpu", "tpu")}
    assert entries["cpu"] and not entries["tpu"]
