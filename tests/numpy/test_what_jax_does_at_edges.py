"""Library functions where an edge decides: padding of sets, ends of ranges, integers, what is not chosen, nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.nn as mnn
import meshwright.numpy as mnp

INF, NAN = np.inf, np.nan
BYTES = np.array([3, 0, 200, 3], np.uint8)
FORMS = {
    "sets filled up": lambda np_, nn: [
        *np_.intersect1d(np.array([1, 2, 5]), np.array([2, 5, 7]), size=4, return_indices=True),
        *np_.intersect1d(np.array([1]), np.array([2]), size=2, return_indices=True),
        np_.intersect1d(np.array([1, 2]), np.array([2, 1]), size=3, fill_value=9),
        np_.setxor1d(np.array([1, 2, 5]), np.array([2, 5, 7]), size=4),
        np_.setxor1d(np.array([2.0]), np.array([2.0]), size=2),
    ],
    "ends of ranges": lambda np_, nn: [
        np_.linspace(INF, 1.0, 3), np_.linspace(-1.0, INF, 3), np_.linspace(-1.0, INF, 1),
        np_.linspace(np.array([INF, 2.0]), 1.0, 3), np_.linspace(0.0, 1.0, 7),
    ],
    "integers as differences": lambda np_, nn: [np_.trapezoid(BYTES, BYTES), np_.gradient(BYTES, 2.0)],
    "types of parameters": lambda np_, nn: [
        nn.leaky_relu(BYTES, 2), nn.leaky_relu(BYTES), nn.squareplus(BYTES.astype(np.int32), 1.5),
        nn.logsumexp(BYTES, b=2.0),
    ],
    "positions of numbers": lambda np_, nn: [np_.lexsort((3, 2))],
    "padding beside infinity": lambda np_, nn: [np_.pad(np.array([INF, 1.0]), 1, mode="linear_ramp", end_values=2)],
    "attention of one head": lambda np_, nn: list(
        nn.dot_product_attention(*[np.arange(12, dtype=np.float32).reshape(3, 4)] * 3, return_residual=True)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_as_jax_has_them(name):
    for x64 in (False, True):
        with jax.enable_x64(x64), mw.enable_x64(x64):
            for ours, theirs in zip(FORMS[name](mnp, mnn), FORMS[name](jnp, jax.nn), strict=True):
                assert (mw.typeof(ours).dtype, mw.typeof(ours).weak_type) == (theirs.dtype, theirs.aval.weak_type)
                np.testing.assert_allclose(np.asarray(ours, theirs.dtype), theirs, rtol=1e-5)


def test_what_piecewise_does_not_choose_has_no_derivative():
    def roots(np_, x):
        return np_.sum(np_.piecewise(x, [x < 0, x >= 1], [0.0, np_.sqrt, lambda v: v * v]))

    x = np.array([-1.0, 0.5, 4.0], np.float32)
    found = mw.grad(lambda x: roots(mnp, x))(x)
    assert found.tolist() == [0.0, 1.0, 0.25] == jax.grad(lambda x: roots(jnp, x))(x).tolist()


@pytest.mark.parametrize("f", [mnp.max, mnp.min, mnp.nanmax])
def test_the_extremum_of_nothing_has_no_derivative(f):
    x = np.zeros((2, 0), np.float32)
    value, tangent = mw.jvp(lambda x: f(x, axis=-1, initial=-1), (x,), (x,))
    assert value.tolist() == [-1.0, -1.0] and tangent.tolist() == [0.0, 0.0]


def test_the_derivative_of_atanh_near_1():
    x = np.float32(1) - np.float32(3) * np.finfo(np.float32).epsneg
    exact = 1 / (1 - np.float64(x) ** 2)
    np.testing.assert_allclose(mw.grad(mnp.arctanh)(x), exact, rtol=1e-6)


def test_attention_of_integers_is_refused():
    x = np.ones((1, 2, 1, 4), np.int32)
    with pytest.raises(mw.errors.DTypeError, match="expected floats, got int32"):
        mnn.dot_product_attention(x, x, x)


@pytest.mark.parametrize("around", [lambda lib, f: f, lambda lib, f: lib.jit(f), lambda lib, f: lib.checkpoint(f)])
def test_what_is_carried_but_not_asked_for_has_no_derivative(around):
    def total(lib, np_, x):
        def step(carry, a):
            return (carry[0] + a, carry[1] * np_.sum(a)), carry[0]

        return np_.sum(lib.lax.scan(around(lib, step), (np_.zeros_like(x[0]), np_.ones((), x.dtype)), x)[1])

    x = np.array([1.5, -2.0, NAN, 0.5], np.float32)
    found = mw.grad(lambda x: total(mw, mnp, x))(x)
    assert found.tolist() == [3.0, 2.0, 1.0, 0.0] == jax.grad(lambda x: total(jax, jnp, x))(x).tolist()


@pytest.mark.parametrize("k", [0, 1.0])
@pytest.mark.parametrize("dtype", [bool, np.int8, np.float16])
def test_integrals_of_polynomials_promote_with_their_constants(dtype, k):
    p = np.array([1, 0, 1], dtype)
    with mw.enable_x64(), jax.enable_x64(True):
        got, want = mnp.polyint(p, k=k), jnp.polyint(p, k=k)
    assert got.dtype == want.dtype and got.tolist() == want.tolist()


@pytest.mark.parametrize("name", ["convolve", "correlate", "intersect1d", "union1d", "polyadd"])
def test_what_promotes_to_weak_types_gives_weak_types(name):
    for kind, number in ((bool, 1), (np.int8, 2.5), (np.float16, 2.5), (np.int16, 2j)):
        strong = np.array([1, 0, 1], kind)
        got = getattr(mnp, name)(strong, mnp.full((2,), number))
        want = getattr(jnp, name)(strong, jnp.full((2,), number))
        assert (got.dtype, got.weak_type) == (want.dtype, want.weak_type), (kind, number)


def test_unique_elements_are_as_weak_as_what_they_are_of():
    for number in (1, 2.5, 2j, True):
        got, want = mnp.unique(mnp.full((2,), number)), jnp.unique(jnp.full((2,), number))
        assert (got.dtype, got.weak_type) == (want.dtype, want.weak_type)
