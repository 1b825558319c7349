"""Reductions against jax: values, dtypes, ties, NaN, derivatives of every order, batching."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_checks import check_batch, check_grad, check_value, values

import meshwright as mw
from meshwright.core.avals import ShapedArray
from meshwright.errors import DTypeError, ShapeError
from meshwright.ops.reduce import reductions as R
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, reduce_sum
from meshwright.transforms.autodiff import grad

NUMERIC = {
    "max": (R.reduce_max, jnp.max),
    "min": (R.reduce_min, jnp.min),
    "prod": (R.reduce_prod, jnp.prod),
}
BITWISE = {
    "and": (R.reduce_and, jnp.bitwise_and.reduce),
    "or": (R.reduce_or, jnp.bitwise_or.reduce),
    "xor": (R.reduce_xor, jnp.bitwise_xor.reduce),
}
AXES = [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)]


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("name", NUMERIC)
def test_float_reductions(name, axes):
    ours, theirs = NUMERIC[name]
    x = values(3, 2, 4) / 3
    check_value(lambda x: ours(x, axes), lambda x: theirs(x, axes), x, tol=1e-6)
    check_grad(lambda x: ours(x, axes), lambda x: theirs(x, axes), x)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
def test_sums_of_half_width_add_in_whole_width(dtype):
    """Else the sum of a bias's cotangents, one after another, stops at 256 in bfloat16."""
    x = np.ones((5000, 2), dtype)
    np.testing.assert_array_equal(np.asarray(reduce_sum(x, (0,)), float), float(dtype(5000)))
    cotangent = grad(lambda b: reduce_sum(broadcast_in_dim(b, (5000, 2), (1,)), (0, 1)))(np.ones(2, dtype))
    np.testing.assert_array_equal(np.asarray(cotangent, float), float(dtype(5000)))


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.bool_, jnp.bfloat16, np.float16])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremum_dtypes(name, dtype):
    ours, theirs = NUMERIC[name]
    x = (np.arange(6).reshape(2, 3)[::-1] - (0 if np.dtype(dtype).kind in "ub" else 3)).astype(dtype)
    check_value(lambda x: ours(x, (1,)), lambda x: theirs(x, 1), x)


@pytest.mark.parametrize("dtype", [np.int8, np.uint32, np.bool_])
@pytest.mark.parametrize("name", BITWISE)
def test_bitwise(name, dtype):
    ours, theirs = BITWISE[name]
    x = np.array([[12, 10, 7], [5, 0, 9], [1, 1, 3], [6, 13, 2]], dtype)
    for axis in (0, 1):
        check_value(lambda x, d=axis: ours(x, (d,)), lambda x, d=axis: theirs(x, d), x)
    check_batch(lambda x: ours(x, (1,)), x)


def test_nan_wins_and_infinities():
    x = np.array([[1.0, np.nan, 2.0], [np.inf, 1.0, 3.0], [-np.inf, -np.inf, -np.inf]], np.float32)
    for name in ("max", "min"):
        check_value(partial(NUMERIC[name][0], axes=(1,)), partial(NUMERIC[name][1], axis=1), x)
    for ours, theirs in ((R.argmax, jnp.argmax), (R.argmin, jnp.argmin)):
        for axis in (0, 1):
            check_value(partial(ours, axis=axis), partial(theirs, axis=axis), x)


def test_ties_share_the_derivative():
    x = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], np.float32)
    check_grad(lambda x: R.reduce_max(x, (1,)), lambda x: jnp.max(x, 1), x)
    check_grad(lambda x: R.reduce_min(x, (1,)), lambda x: jnp.min(x, 1), x)
    np.testing.assert_allclose(grad(lambda x: R.reduce_max(x, (0, 1)))(x), [[0, 0.5, 0.5], [0, 0, 0]])


@pytest.mark.parametrize("zeros", [(), (1,), (0, 3)])
def test_product_derivative_with_zeros(zeros):
    x = np.array([2.0, -1.5, 3.0, 0.5, 4.0], np.float32)
    x[list(zeros)] = 0
    ours, theirs = (lambda x: R.reduce_prod(x, (0,))), jnp.prod
    check_grad(ours, theirs, x)
    second = jax.grad(lambda x: jnp.sum(jax.grad(theirs)(x) * jnp.arange(5.0)))(x)
    mine = grad(lambda x: reduce_sum(R.mul(grad(ours)(x), np.arange(5, dtype=np.float32)), (0,)))(x)
    np.testing.assert_allclose(mine, second, rtol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("ours,theirs", [(R.argmax, jnp.argmax), (R.argmin, jnp.argmin)])
def test_arg_extremum(ours, theirs, axis):
    x = np.random.default_rng(0).integers(0, 4, (3, 5, 4)).astype(np.float32)  # many ties
    check_value(lambda x: ours(x, axis), lambda x: theirs(x, axis), x)
    check_value(lambda x: ours(x, axis, np.uint8), lambda x: theirs(x, axis).astype(np.uint8), x)
    check_value(lambda x: ours(x, axis), lambda x: theirs(x, axis), x.astype(np.int8))
    check_value(lambda x: ours(x, axis), lambda x: theirs(x, axis), x > 1)


@pytest.mark.parametrize("fun", [R.reduce_max, R.reduce_min, R.reduce_prod])
def test_batching(fun):
    check_batch(lambda x: fun(x, (0, 2)), values(2, 3, 4), tol=1e-5)
    check_batch(lambda x: fun(x, (1,)), values(2, 4), tol=1e-5)


@pytest.mark.parametrize("fun", [R.argmax, R.argmin])
def test_arg_batching(fun):
    check_batch(lambda x: fun(x, 1), values(2, 3, 4))


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_any_axes(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 3), max_size=4), "shape"))
    axes = tuple(data.draw(st.sets(st.sampled_from(range(len(shape)))) if shape else st.just(()), "axes"))
    x = values(*shape) / 4
    check_value(lambda x: R.reduce_prod(x, axes), lambda x: jnp.prod(x, axes), x, tol=1e-6)
    if 0 not in shape:
        check_value(lambda x: R.reduce_max(x, axes), lambda x: jnp.max(x, axes), x)


@pytest.mark.parametrize("n", [2, 16, 17])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int8, np.uint32, np.bool_])
def test_positions_among_few_and_many(n, dtype):
    """Values and positions are reduced together up to 16: ties, infinities, NaN and zeros of both signs."""
    rng = np.random.default_rng(n)
    x = rng.choice([0, 1, 2, 3], (40, n)) if np.dtype(dtype).kind in "ub" else rng.choice([-1, -0.0, 0, 2], (40, n))
    if np.dtype(dtype).kind not in "iub":
        x[10:, ::2] = rng.choice([-np.inf, np.inf, np.nan, 2], (30, (n + 1) // 2))
        x[20:25] = -np.inf
        x[25:30] = np.nan
    for ours, theirs in ((R.argmax, jnp.argmax), (R.argmin, jnp.argmin)):
        check_value(lambda x, f=ours: f(x, 1), lambda x, f=theirs: f(x, 1), x.astype(dtype))
        check_value(lambda x, f=ours: f(x, 0), lambda x, f=theirs: f(x, 0), x.astype(dtype).T.copy())


@pytest.mark.parametrize(("platform", "n", "reductions"), [("cpu", 16, 1), ("cpu", 17, 2), ("tpu", 17, 1)])
def test_positions_are_reduced_with_their_values(platform, n, reductions):
    mesh = mw.AbstractMesh((1,), ("x",))
    fun = mw.jit(lambda x: R.argmax(x, 1))
    text = str(fun.lower(mw.ShapeDtypeStruct((3, n), np.float32)).partition(mesh).module(platform))
    assert text.count("stablehlo.reduce(") == reductions


def test_empty():
    x = np.zeros((0, 3), np.float32)
    check_value(lambda x: R.reduce_max(x, (0,)), lambda x: jnp.max(x, 0, initial=-np.inf), x)
    check_value(lambda x: R.reduce_and(x, (0,)), lambda x: jnp.bitwise_and.reduce(x, 0), x.astype(np.int32))
    check_value(lambda x: R.argmax(x, 1), lambda x: jnp.argmax(x, 1), x)
    check_grad(lambda x: R.reduce_prod(x, (0,)), lambda x: jnp.prod(x, 0), x)


def test_bad_input():
    x = values(2, 3)
    with pytest.raises(ShapeError, match="reduce_max: axes"):
        R.reduce_max(x, (2,))
    with pytest.raises(ShapeError, match="reduce_min: axes"):
        R.reduce_min(x, (0, 0))
    with pytest.raises(DTypeError, match=r"reduce_or.*expected bool or integer"):
        R.reduce_or(x, (0,))
    with pytest.raises(ShapeError, match="argmax: expected one axis of positive size"):
        R.argmax(np.zeros((0, 2), np.float32), 0)
    with pytest.raises(DTypeError, match="index_dtype"):
        R.argmax(x, 0, np.float32)


def test_rules():
    aval = ShapedArray((4, 6, 5), np.dtype(np.float32))
    assert str(R.ReduceMax((1,)).sharding_rule(aval)) == "[d0 d1 d2] -> [d0 d2]; d1: reduction (max)"
    assert str(R.ArgMax((1,), np.dtype(np.int32)).sharding_rule(aval)) == "[d0 d1 d2] -> [d0 d2]; d1: window"
