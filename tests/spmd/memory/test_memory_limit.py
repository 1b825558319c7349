"""``partition(memory_limit=...)``: what was gathered is freed and gathered again, where only that fits."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
from meshwright import NamedSharding, nn
from meshwright import PartitionSpec as P
from meshwright.errors import ArgumentError, MemoryLimitError

N, WIDTH, LAYERS, BATCH = 8, 64, 3, 512
MESH = mw.AbstractMesh((N,), ("data",))


def loss(params, x):
    for p in params:
        x = x + nn.gelu(nn.layer_norm(x, p["scale"]) @ p["up"]) @ p["down"]
    return (x * x).mean()


@pytest.fixture(scope="module")
def lowered():
    """A fully sharded training step."""

    def of(*shape):
        return mw.ShapeDtypeStruct(shape, np.float32)

    split = NamedSharding(MESH, P("data"))
    params = [{"scale": of(WIDTH), "up": of(WIDTH, 8 * WIDTH), "down": of(8 * WIDTH, WIDTH)}] * LAYERS
    where = [dict.fromkeys(params[0], split)] * LAYERS
    return mw.jit(mw.grad(loss), in_shardings=(where, split), out_shardings=where).lower(params, of(BATCH, WIDTH))


def gathers(part):
    return [c for c in part.collectives if c.kind == "all_gather"]


def test_weights_are_gathered_again_where_that_fits(lowered):
    free = lowered.partition()
    again = lowered.partition(memory_limit=free.peak_bytes - 1)
    assert again.peak_bytes < free.peak_bytes
    # Each matrix once more, in the backward pass; of the first layer only the one whose input's gradient is needed.
    assert len(gathers(free)) < len(gathers(again)) <= 2 * len(gathers(free))
    assert again.bytes_sent <= 1.5 * free.bytes_sent
    assert again.work.device == free.work.device
    again.verify()


def test_a_program_that_fits_stays_as_it_is(lowered):
    free = lowered.partition()
    assert lowered.partition(memory_limit=free.peak_bytes).bytes_sent == free.bytes_sent


def test_a_limit_that_nothing_meets(lowered):
    said = (
        r"loss: a device needs .*, .* more than the 4.0 KiB allowed. Largest at the peak:\n .*(\n.*)*would help|mw.plan"
    )
    with pytest.raises(MemoryLimitError, match=said):
        lowered.partition(memory_limit=4096)
    with pytest.raises(ArgumentError, match="memory_limit must be positive"):
        lowered.partition(memory_limit=-1)


def scanned(params, x):
    def layer(x, p):
        return x + nn.gelu(nn.layer_norm(x, p["scale"]) @ p["up"]) @ p["down"], None

    x, _ = mw.lax.scan(layer, x, params)
    return (x * x).mean()


@pytest.fixture(scope="module")
def loop():
    """The same step with its layers in a scan."""

    def of(*shape):
        return mw.ShapeDtypeStruct(shape, np.float32)

    params = {"scale": of(LAYERS, WIDTH), "up": of(LAYERS, WIDTH, 8 * WIDTH), "down": of(LAYERS, 8 * WIDTH, WIDTH)}
    where = dict.fromkeys(params, NamedSharding(MESH, P(None, "data")))
    x = NamedSharding(MESH, P("data"))
    return mw.jit(mw.grad(scanned), in_shardings=(where, x), out_shardings=where).lower(params, of(BATCH, WIDTH))


def test_loops_compute_again_what_they_would_keep(loop):
    free = loop.partition()
    cheap = loop.partition(memory_limit=free.peak_bytes - 1)
    assert cheap.peak_bytes < 0.7 * free.peak_bytes
    # Elementwise arithmetic alone: no product is done twice, nothing sent twice.
    assert cheap.work.products == free.work.products and cheap.bytes_sent == free.bytes_sent
    cheap.verify()
    least = loop.partition(memory_limit=cheap.peak_bytes - 1)
    assert least.peak_bytes < cheap.peak_bytes
    assert free.work.device < cheap.work.device < least.work.device < 1.5 * free.work.device
    # The backward loop gathers the matrices anyhow, and the scales besides.
    assert least.bytes_sent == free.bytes_sent + LAYERS * 4 * (WIDTH - WIDTH // N)
    least.verify()
    with pytest.raises(MemoryLimitError, match="more than"):
        loop.partition(memory_limit=least.peak_bytes - 1)
