"""Random bits and keys are those of jax; tiles are parts of the whole."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_checks import check_batch

import meshwright as mw
from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.core.dtypes import wide_types
from meshwright.errors import ArgumentError, ArgumentTypeError, DTypeError
from meshwright.ops.random import bits as B
from meshwright.transforms.vmap import vmap

KEY = np.array([3, 42], np.uint32)


@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (4, 3, 2), (1, 0), (0,)])
def test_bits(shape, width):
    got = np.asarray(B.random_bits(KEY, width, shape))
    want = np.asarray(jax.random.bits(jax.random.wrap_key_data(KEY), shape, f"uint{width}"))
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_wide_bits():
    with config.override("enable_x64", True), jax.enable_x64(True):
        want = np.asarray(jax.random.bits(jax.random.wrap_key_data(KEY), (3, 5), "uint64"))
        np.testing.assert_array_equal(B.random_bits(KEY, 64, (3, 5)), want)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**31 - 1, -(2**31), 2**31, 2**40 + 5, -(2**50)])
@pytest.mark.parametrize("x64", [False, True])
def test_seeds(seed, x64):
    with config.override("enable_x64", x64), jax.enable_x64(x64):
        np.testing.assert_array_equal(B.threefry_seed(seed), jax.random.PRNGKey(seed))


@pytest.mark.parametrize("seed", [np.int32(-7), np.uint32(2**32 - 1), np.int8(-3), np.uint8(200)])
def test_seed_arrays(seed):
    np.testing.assert_array_equal(B.threefry_seed(seed), jax.random.PRNGKey(seed))


@pytest.mark.parametrize("shape", [(2,), (1,), (7,), (3, 4), (0,), ()])
def test_split(shape):
    np.testing.assert_array_equal(B.threefry_split(KEY, shape), jax.random.split(KEY, shape))


@pytest.mark.parametrize("data", [0, 1, 12345, 2**31 - 1, np.uint32(2**32 - 1), np.int32(-5)])
def test_fold_in(data):
    np.testing.assert_array_equal(B.threefry_fold_in(KEY, data), jax.random.fold_in(KEY, data))


def test_known_answers():
    """The vectors of the authors' implementation (Random123, kat_vectors)."""
    ones = np.uint32(0xFFFFFFFF)
    for inputs, want in [
        ((0, 0, 0, 0), (0x6B200159, 0x99BA4EFE)),
        ((ones, ones, ones, ones), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ]:
        assert tuple(int(w) for w in B.threefry2x32(*map(np.uint32, inputs))) == want


def test_batching():
    check_batch(lambda k: B.random_bits(k, 32, (3, 2)), KEY)
    check_batch(lambda k: B.threefry_split(k), KEY)
    keys = np.arange(12, dtype=np.uint32).reshape(3, 2, 2)
    nested = vmap(vmap(lambda k: B.random_bits(k, 16, (5,)), 0), 1, 1)(keys)
    want = np.stack([[np.asarray(B.random_bits(k, 16, (5,))) for k in row] for row in keys])
    np.testing.assert_array_equal(nested, want)


@settings(max_examples=13, deadline=None)
@given(st.data())
def test_tiles(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    starts = [data.draw(st.integers(0, n - 1)) for n in shape]
    sizes = tuple(data.draw(st.integers(1, n - s)) for n, s in zip(shape, starts))
    op = B.RandomBits(shape, 32)
    tile = op._words(KEY, sizes, [np.uint32(s) for s in starts])
    whole = np.asarray(op.bind(KEY))
    np.testing.assert_array_equal(tile, whole[tuple(slice(s, s + k) for s, k in zip(starts, sizes))])


@settings(max_examples=13, deadline=None)
@given(st.data())
def test_counters_of_huge_arrays(data):
    """Numbers of elements beyond 2**32, at a small tile."""
    shape = tuple(data.draw(st.integers(2**17, 2**31)) for _ in range(2))
    strides = (shape[1], 1)
    starts = [data.draw(st.integers(0, n - 1)) for n in shape]
    high, low = B.linear_index((2, 3), strides, [np.uint32(s) for s in starts], shape[0] * shape[1])
    high = np.broadcast_to(np.asarray(high), (2, 3))
    for i in range(2):
        for j in range(3):
            number = (starts[0] + i) * strides[0] + starts[1] + j
            assert (int(high[i, j]) << 32) + int(np.asarray(low)[i, j]) == number


def test_bad_input():
    with pytest.raises(ArgumentTypeError, match="a key is a uint32 array"):
        B.random_bits(np.zeros(2, np.int32), 32, (3,))
    with pytest.raises(ArgumentTypeError, match="a key is a uint32 array"):
        B.random_bits(np.zeros(3, np.uint32), 32, (3,))
    with pytest.raises(ArgumentError, match="bit_width must be"):
        B.random_bits(KEY, 12, (3,))
    with pytest.raises(DTypeError, match="enable_x64"):
        B.random_bits(KEY, 64, (3,))
    with pytest.raises(ArgumentTypeError, match="expected one key"):
        B.threefry_split(np.zeros((3, 2), np.uint32))
    with pytest.raises(ArgumentTypeError, match="seed must be an integer scalar"):
        B.threefry_seed(1.5)


def test_rule():
    key = ShapedArray((4, 2), np.dtype(np.uint32))
    rule = B.RandomBits((6, 5), 32).sharding_rule(key)
    assert str(rule) == "[k0 1] -> [k0 d0 d1]; d0: window, d1: window"


def test_what_was_found_with_wide_types_is_not_found_without():
    """Types, like programs, are remembered for the options that they were found with."""
    for wide in (lambda: mw.enable_x64(True), wide_types):
        with wide():
            assert B.random_bits(KEY, 64, (7,)).dtype == np.uint64
        with pytest.raises(DTypeError, match="enable_x64"):
            B.random_bits(KEY, 64, (7,))
        with pytest.raises(DTypeError, match="enable_x64"):
            mw.eval_shape(lambda key: B.random_bits(key, 64, (7,)), KEY)


def test_keys_of_many_consumers_are_computed_once_on_cpus():
    """XLA would fuse the rounds with each of the operations that draw, also through barriers."""

    def drawn(key):
        total = mw.numpy.zeros(5)
        for _ in range(6):
            key, one = mw.random.split(key)
            total += mw.random.normal(one, (5,)) * mw.random.uniform(key, (5,))
        return total

    key = mw.random.key(0)
    assert mw.jit(drawn).lower(key).compile().as_text().count(" xor(") < 700  # 1024 where rounds are fused
    for platform in ("cpu", "tpu", "cuda"):
        text = mw.jit(drawn).trace(key).lower(lowering_platforms=(platform,)).as_text()
        assert ("inlineable" in text) == (platform == "cpu")


@pytest.mark.parametrize("count", [1, 1024])
def test_words_are_not_drawn_in_loops(count):
    """Each step of a loop of XLA's takes longer than the rounds of a few words."""
    draws = mw.jit(lambda key: B.random_bits(mw.random.key_data(mw.random.split(key)[1]), 32, (count,)))
    assert "while" not in draws.lower(mw.random.key(0)).as_text()
