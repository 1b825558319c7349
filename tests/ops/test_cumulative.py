"""Cumulative ops against jax and NumPy."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from op_checks import check_batch, check_grad, check_value, values

from meshwright.core.avals import ShapedArray
from meshwright.errors import DTypeError, ShapeError
from meshwright.ops.elementwise.table import mul
from meshwright.ops.reduce import cumulative as C
from meshwright.ops.shape.broadcast_reduce import reduce_sum
from meshwright.transforms.autodiff import grad

NAMES = ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"]


def both(name, **kwargs):
    return lambda x: getattr(C, name)(x, **kwargs), lambda x: getattr(lax, name)(x, **kwargs)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_against_jax(name, axis, reverse):
    ours, theirs = both(name, axis=axis, reverse=reverse)
    x = values(3, 5, 2) / 8
    check_value(ours, theirs, x, tol=1e-5)
    check_grad(ours, theirs, x)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 40, 300])
@pytest.mark.parametrize("name", NAMES)
def test_lengths(name, n):
    """Lengths around the block size of the written-out scan."""
    ours, theirs = both(name)
    x = values(n) / (n if name != "cumprod" else 1)
    x = 1 + x / (4 * n) if name == "cumprod" else x
    check_value(ours, theirs, x, tol=1e-4)
    check_grad(ours, theirs, x, tol=2e-3)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.float16, np.complex64])
@pytest.mark.parametrize("name", NAMES[:4])
def test_dtypes(name, dtype):
    ours, theirs = both(name)
    check_value(ours, theirs, np.array([3, 1, 4, 1, 5, 2]).astype(dtype), tol=1e-5)


def test_product_derivative_with_zeros():
    x = np.array([2.0, 0.0, 3.0, 0.5, 0.0, 4.0], np.float32)
    ours, theirs = both("cumprod")
    check_grad(ours, theirs, x)
    w = np.arange(6, dtype=np.float32)
    twice = jax.grad(lambda x: (jax.grad(lambda x: (theirs(x) * w).sum())(x) * w).sum())(x)

    def inner(x):
        return grad(lambda x: reduce_sum(mul(ours(x), w), (0,)))(x)

    np.testing.assert_allclose(grad(lambda x: reduce_sum(mul(inner(x), w), (0,)))(x), twice, rtol=1e-5)


def test_infinities():
    inf = np.inf
    x = np.array([-inf, -inf, 1.0, inf, 2.0], np.float32)
    got = np.asarray(C.cumlogsumexp(x))
    np.testing.assert_allclose(got, [-inf, -inf, 1, inf, inf])
    slope = np.asarray(grad(lambda x: reduce_sum(C.cumlogsumexp(x), (0,)))(x[:3]))
    np.testing.assert_allclose(slope, [1.5, 0.5, 1])  # infinities that tie share; beside a number they have no part
    x = np.array([1.0, np.nan, 2.0], np.float32)
    for name in NAMES:
        check_value(*both(name), x, tol=1e-5)


def test_large_values_do_not_overflow():
    x = np.array([1000.0, 1001.0, 999.0], np.float32)
    check_value(*both("cumlogsumexp"), x, tol=1e-5)
    check_grad(*both("cumlogsumexp"), x)


@pytest.mark.parametrize("name", NAMES)
def test_batching(name):
    x = values(4, 3) / 4
    check_batch(lambda x: getattr(C, name)(x, axis=0), x, tol=1e-5)
    check_batch(lambda x: getattr(C, name)(x, axis=1, reverse=True), x, tol=1e-5)


@settings(max_examples=13, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.data())
def test_any_shape(shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = values(*shape)
    np.testing.assert_allclose(C.cumsum(x, axis), np.cumsum(x, axis), rtol=1e-5)
    np.testing.assert_array_equal(C.cummax(x, axis), np.maximum.accumulate(x, axis) if x.size else x)
    check_value(*both("cumlogsumexp", axis=axis % len(shape)), x, tol=1e-5)


def test_bad_input():
    with pytest.raises(ShapeError, match="cumsum: axis 2 does not exist"):
        C.cumsum(values(3, 4), 2)
    with pytest.raises(ShapeError, match="cummax: axis 0 does not exist"):
        C.cummax(np.float32(1))
    with pytest.raises(DTypeError, match="cumsum: expected numbers"):
        C.cumsum(np.ones(3, bool))
    with pytest.raises(DTypeError, match="cumlogsumexp: expected floats"):
        C.cumlogsumexp(np.ones(3, np.int32))


def test_rule():
    aval = ShapedArray((4, 6), np.dtype(np.float32))
    assert str(C.CumSum(1).sharding_rule(aval)) == "[d0 d1] -> [d0 d1]; d1: window"
