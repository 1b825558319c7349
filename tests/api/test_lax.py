"""``meshwright.lax`` gives what ``jax.lax`` gives, name by name."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax as peer

import meshwright as mw
from meshwright import lax
from meshwright.errors import ArgumentError, DTypeError, IndexingError, ShapeError

X = (np.arange(24, dtype=np.float32).reshape(2, 3, 4) * 7 % 11) - 4.5
M, N = X[0], np.arange(20, dtype=np.float32).reshape(4, 5) - 7
I = np.array([[4, 1, 3], [2, 9, 0]], np.int32)
KERNEL = np.arange(2 * 3 * 3 * 4, dtype=np.float32).reshape(2, 3, 3, 4) % 5 - 2
IMAGE = np.arange(2 * 5 * 6 * 3, dtype=np.float32).reshape(2, 5, 6, 3) % 7 - 3

CASES = {
    "full": lambda L: L.full((2, 3), 7),
    "full of a dtype": lambda L: L.full((2, 3), 7, np.float32),
    "full_like": lambda L: L.full_like(I, 2.7),
    "full_like of a shape": lambda L: L.full_like(X, 1, np.int32, shape=(3,)),
    "broadcast": lambda L: L.broadcast(M, (2, 5)),
    "broadcast_to_rank": lambda L: L.broadcast_to_rank(M, 4),
    "collapse": lambda L: L.collapse(X, 0, 2),
    "collapse to the end": lambda L: L.collapse(X, 1),
    "split": lambda L: L.split(X, [1, 3], axis=2),
    "tile": lambda L: L.tile(M, (2, 3)),
    "index_in_dim": lambda L: L.index_in_dim(X, -1, 2, keepdims=False),
    "index_take": lambda L: L.index_take(X, (np.array([1, 0, 1]), np.array([2, 2, 0])), (0, 1)),
    "dynamic_update_index_in_dim": lambda L: L.dynamic_update_index_in_dim(X, X[:, 0], 2, 1),
    "round": lambda L: L.round(np.array([0.5, 1.5, -2.5, 2.2], np.float32)),
    "round to even": lambda L: L.round(np.array([0.5, 1.5, -2.5], np.float32), L.RoundingMethod.TO_NEAREST_EVEN),
    "reciprocal": lambda L: L.reciprocal(X),
    "select_n": lambda L: L.select_n(I % 3, I, I + 10, I * 5),
    "bitcast_convert_type": lambda L: L.bitcast_convert_type(X, np.int32),
    "reduce_precision": lambda L: L.reduce_precision(X / 3, 5, 4),
    "optimization_barrier": lambda L: L.optimization_barrier((X, I)),
    "dot": lambda L: L.dot(M, N),
    "dot of vectors": lambda L: L.dot(M[0], M[1]),
    "batch_matmul": lambda L: L.batch_matmul(X, X.transpose(0, 2, 1)),
    "reduce": lambda L: L.reduce((X, X), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (0, 2)),
    "reduce, best and where": lambda L: L.reduce(
        (X, np.broadcast_to(np.arange(4, dtype=np.int32), X.shape)), (np.float32(-np.inf), np.int32(0)),
        lambda a, b: (L.max(a[0], b[0]), L.select(L.ge(a[0], b[0]), a[1], b[1])), (2,)),
    "argmax": lambda L: L.argmax(X, 1, np.int32),
    "argmin": lambda L: L.argmin(X, 2, np.int32),
    "reduce_max": lambda L: L.reduce_max(X, (0, 2)),
    "cumsum": lambda L: L.cumsum(X, axis=1, reverse=True),
    "cummax": lambda L: L.cummax(X, axis=2),
    "sort_key_val": lambda L: L.sort_key_val(I, I * 10, dimension=1),
    "sort": lambda L: L.sort(X, dimension=0),
    "top_k": lambda L: L.top_k(X, 2),
    "approx_max_k": lambda L: L.approx_max_k(X, 2, reduction_dimension=1, recall_target=1.0),
    "approx_min_k": lambda L: L.approx_min_k(X, 2, recall_target=1.0),
    "conv": lambda L: L.conv(IMAGE.transpose(0, 3, 1, 2), KERNEL.transpose(3, 2, 0, 1), (1, 2), "SAME"),
    "conv_general_dilated": lambda L: L.conv_general_dilated(
        IMAGE, KERNEL, (2, 1), ((1, 0), (2, 1)), (1, 2), (2, 1), ("NHWC", "HWIO", "NHWC")),
    "conv_transpose": lambda L: L.conv_transpose(
        IMAGE, KERNEL, (2, 3), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
    "reduce_window": lambda L: L.reduce_window(IMAGE, -np.inf, L.max, (1, 2, 3, 1), (1, 2, 2, 1), "SAME"),
    "scatter_sub": lambda L: L.scatter_sub(
        M, np.array([[1], [1], [0]]), M[:3],
        L.ScatterDimensionNumbers((1,), (0,), (0,))),
    "scatter_apply": lambda L: L.scatter_apply(
        M, np.array([[2], [2]]), lambda x: x * x, L.ScatterDimensionNumbers((1,), (0,), (0,)), update_shape=(2, 4)),
    "platform_dependent": lambda L: L.platform_dependent(X, cpu=lambda x: x + 1, default=lambda x: x - 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_jax(name):
    run = CASES[name]
    ours, theirs = mw.tree.leaves(run(lax)), jax.tree.leaves(run(peer))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6)


def test_stack_and_unstack():
    parts = lax.unstack(mw.numpy.asarray(X), axis=1)
    np.testing.assert_array_equal(np.stack([np.asarray(p) for p in parts], 1), X)
    np.testing.assert_array_equal(np.asarray(lax.stack(parts, axis=1)), X)


@pytest.mark.parametrize(
    "run",
    [
        lambda L, x: L.pshuffle(x, "i", [2, 0, 1]),
        lambda L, x: L.psum({"a": x, "b": (2 * x,)}, "i"),
        lambda L, x: L.pmean((x, x + 1), "i"),
        lambda L, x: x * L.axis_size("i"),
    ],
)
def test_collectives_over_a_batched_axis(run):
    x = np.array([[1.0, 2.0], [5.0, 7.0], [11.0, 13.0]], np.float32)
    ours = mw.tree.leaves(mw.vmap(partial(run, lax), axis_name="i")(x))
    theirs = jax.tree.leaves(jax.vmap(partial(run, peer), axis_name="i")(jnp.asarray(x)))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6)


def test_pbroadcast_and_pswapaxes():
    rows = np.array([[1.0, 2.0], [5.0, 7.0], [11.0, 13.0]], np.float32)
    sent = mw.vmap(lambda r: lax.pbroadcast(r, "i", 1), axis_name="i")(rows)
    np.testing.assert_array_equal(np.asarray(sent), rows[[1, 1, 1]])
    grid = np.arange(6.0).reshape(2, 3)
    for names, source, want in ((("a", "b"), 4, 4), (("b", "a"), 3, 4)):
        send = partial(lax.pbroadcast, axis_name=names, source=source)
        np.testing.assert_array_equal(mw.vmap(mw.vmap(send, axis_name="b"), axis_name="a")(grid), np.full((2, 3), want))
    x = np.arange(18, dtype=np.float32).reshape(3, 3, 2)
    swapped = mw.vmap(lambda r: lax.pswapaxes(r, "i", 0), axis_name="i")(x)
    np.testing.assert_array_equal(np.asarray(swapped), x.transpose(1, 0, 2))


def test_refusals(refuses):
    with refuses(ShapeError, "split", "(2, 3, 4)"):
        lax.split(X, [1, 1], 1)
    with refuses(ShapeError, "full", "scalar"):
        lax.full((2,), np.ones(3))
    with refuses(ShapeError, "dot", "dot_general"):
        lax.dot(X, X)
    with refuses(DTypeError, "reduce", "computation", "bool", "float32"):
        lax.reduce(X, np.float32(0), lambda a, b: a > b, (0,))
    with refuses(DTypeError, "reduce", "float32"):
        lax.reduce(X, np.int32(1), lambda a, b: a + b, [0])
    with refuses(IndexingError, "index_in_dim", "out of bounds"):
        lax.index_in_dim(X, 4, 2)
    for source in (-1, 2):
        with refuses(ArgumentError, "pbroadcast", "source", f"{source}", "0 to 1"):
            mw.vmap(lambda r: lax.pbroadcast(r, "i", source), axis_name="i")(np.ones(2))  # noqa: B023
    with refuses(ArgumentError, "pshuffle", "permutation"):
        mw.vmap(lambda r: lax.pshuffle(r, "i", [0, 0]), axis_name="i")(np.ones((2, 1), np.float32))
    with refuses(ArgumentError, "platform_dependent", "default"):
        lax.platform_dependent(X, tpu=lambda x: x)
