"""dynamic_slice and dynamic_update_slice against jax."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from op_checks import check_batch, check_grad, check_value, values

from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.errors import DTypeError, ShapeError
from meshwright.ops.indexing import dynamic_slice as D

I32 = np.int32
STARTS = [(0, 0), (1, 2), (3, 3), (9, 9), (-1, -2), (-9, 1), (2**31 - 1, -(2**31))]


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint32])
@pytest.mark.parametrize("start", STARTS)
def test_slice_positions(start, dtype):
    x = values(5, 4)
    i, j = (np.array(s).astype(dtype) for s in start)
    check_value(
        lambda x, i, j: D.dynamic_slice(x, (i, j), (2, 3)),
        lambda x, i, j: lax.dynamic_slice(x, (i, j), (2, 3)),
        x,
        i,
        j,
    )


@pytest.mark.parametrize("start", STARTS)
def test_update_positions(start):
    x, u = values(5, 4), values(2, 3, seed=1) * 10
    i, j = map(I32, start)
    check_value(
        lambda x, u, i, j: D.dynamic_update_slice(x, u, (i, j)),
        lambda x, u, i, j: lax.dynamic_update_slice(x, u, (i, j)),
        x, u, i, j,
    )  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_window(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 3), max_size=3), "shape"))
    sizes = tuple(data.draw(st.integers(0, n), "size") for n in shape)
    start = tuple(data.draw(st.integers(-5, 5), "start") for _ in shape)
    x, u = values(*shape), values(*sizes, seed=1) + 100
    check_value(lambda x: D.dynamic_slice(x, start, sizes), lambda x: lax.dynamic_slice(x, start, sizes), x)
    check_value(
        lambda x, u: D.dynamic_update_slice(x, u, start), lambda x, u: lax.dynamic_update_slice(x, u, start), x, u
    )


def test_derivatives():
    x, u = values(5, 4), values(2, 3, seed=1)
    i, j = I32(9), I32(1)
    check_grad(lambda x: D.dynamic_slice(x, (i, j), (2, 3)), lambda x: lax.dynamic_slice(x, (i, j), (2, 3)), x)
    check_grad(
        lambda x, u: D.dynamic_update_slice(x, u, (i, j)), lambda x, u: lax.dynamic_update_slice(x, u, (i, j)), x, u
    )


def test_batching():
    x, u = values(4, 3), values(2, 1, seed=1) * 10
    check_batch(lambda x, i, j: D.dynamic_slice(x, (i, j), (2, 1)), x, I32(1), I32(0))
    check_batch(lambda x, i: D.dynamic_slice(x, (i, 0), (2, 3)), x, I32(2))
    check_batch(lambda x, u, i: D.dynamic_update_slice(x, u, (i, 1)), x, u, I32(1))
    check_batch(lambda x, u: D.dynamic_update_slice(x, u, (2, 1)), x, u)


def test_one_dimension():
    x = values(3, 5)
    i = I32(2)
    check_value(lambda x: D.dynamic_slice_in_dim(x, i, 2, -1), lambda x: lax.dynamic_slice_in_dim(x, i, 2, -1), x)
    check_value(lambda x: D.dynamic_index_in_dim(x, i, 1), lambda x: lax.dynamic_index_in_dim(x, i, 1), x)
    check_value(
        lambda x: D.dynamic_index_in_dim(x, i, 0, keepdims=False),
        lambda x: lax.dynamic_index_in_dim(x, i, 0, keepdims=False),
        x,
    )
    row = values(5, seed=2)
    check_value(
        lambda x, u: D.dynamic_update_index_in_dim(x, u, 1, 0),
        lambda x, u: lax.dynamic_update_index_in_dim(x, u, 1, 0),
        x, row,
    )  # fmt: skip


def test_rank_zero():
    check_value(lambda x: D.dynamic_slice(x, (), ()), lambda x: lax.dynamic_slice(x, (), ()), np.float32(3.5))


def test_wide_indices():
    with config.override("enable_x64", True):
        x = values(5)
        np.testing.assert_array_equal(D.dynamic_slice(x, (np.int64(2**40),), (2,)), x[3:])
        np.testing.assert_array_equal(D.dynamic_slice(x, (np.int64(-1),), (1,)), x[4:])


def test_negative_indices_can_be_plain():
    x = values(5)
    np.testing.assert_array_equal(D.dynamic_slice(x, (I32(-1),), (2,), allow_negative_indices=False), x[:2])


def test_bad_input():
    x = values(3, 4)
    with pytest.raises(ShapeError, match=r"window of shape \(4, 1\) does not fit"):
        D.dynamic_slice(x, (0, 0), (4, 1))
    with pytest.raises(ShapeError, match="needs 2 start indices, got 1"):
        D.dynamic_slice(x, (0,), (1, 1))
    with pytest.raises(DTypeError, match="must be integers"):
        D.dynamic_slice(x, (0, np.float32(1)), (1, 1))
    with pytest.raises(DTypeError, match="one dtype; convert the update"):
        D.dynamic_update_slice(x, np.ones((1, 1), I32), (0, 0))
    with pytest.raises(ShapeError, match="does not fit"):
        D.dynamic_update_slice(x, values(3, 5), (0, 0))
    with pytest.raises(ShapeError, match="axis 2 does not exist"):
        D.dynamic_slice_in_dim(x, 0, 1, 2)


def test_rules():
    x, i = ShapedArray((4, 6), np.dtype(np.float32)), ShapedArray((), np.dtype(I32))
    assert str(D.DynamicSlice((4, 2)).sharding_rule(x, i, i)) == "[d0 d1], [], [] -> [d0 1]; d1: reduction (masked)"
    u = ShapedArray((2, 6), np.dtype(np.float32))
    assert str(D.DynamicUpdateSlice().sharding_rule(x, u, i, i)) == "[d0 d1], [1 d1], [], [] -> [d0 d1]; d0: window"
