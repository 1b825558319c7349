"""Where a product's result would be gathered and its weight is smaller, the weight is gathered, and rows are split."""

from __future__ import annotations

import math

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, nn
from meshwright import PartitionSpec as P

WIDTH, LAYERS = 64, 3


def loss(weights, x):
    for w in weights:
        x = nn.gelu(x @ w)
    return mnp.mean(x**2)


def trained(sizes, batch, tokens):
    """A step with weights that are split by columns over ``t``, which nothing else is split over."""
    mesh = mw.AbstractMesh(sizes, ("d", "t"))
    rows, columns = NamedSharding(mesh, P("d")), NamedSharding(mesh, P(None, "t"))
    step = mw.jit(mw.grad(loss), in_shardings=(columns, rows), out_shardings=columns)
    weights = [mw.ShapeDtypeStruct((WIDTH, WIDTH), np.float32)] * LAYERS
    return step.lower(weights, mw.ShapeDtypeStruct((batch, tokens, WIDTH), np.float32)).partition()


@pytest.mark.parametrize("sizes", [(2, 4), (2, 3), (1, 3), (3, 2)], ids=str)
def test_weights_are_gathered_and_their_gradients_scattered(sizes):
    d, t = sizes
    part = trained(sizes, 16, 128)
    column = 4 * WIDTH * math.ceil(WIDTH / t)
    gathered, scattered, summed = (t - 1) * column, (t - 1) * column, 2 * (d - 1) / d * column
    assert part.bytes_sent <= 1.02 * LAYERS * (gathered + scattered + summed)
    assert part.work.redundancy < 1.15  # of 16 or 128 rows in uneven tiles
    assert any("t splits dimension" in note for note in part.notes)
    part.verify()


def test_large_weights_stay_where_they_are():
    """Of few rows, the results are moved."""
    part = trained((2, 4), 2, 4)
    assert part.bytes_sent < LAYERS * 4 * WIDTH * WIDTH * 3 / 4
    assert not any("t splits dimension" in note for note in part.notes)
    part.verify()
