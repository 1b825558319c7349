"""Incomplete gamma and beta functions and Bessel functions against SciPy and jax: values, limits, derivatives."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import scipy.special as sp

import meshwright as mw
from meshwright import errors, lax
from meshwright.core.config import config


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def dtype(request):
    before = config.enable_x64
    config.update("enable_x64", True)
    yield request.param
    config.update("enable_x64", before)


def spread(n: int, low: float, high: float, seed: int) -> np.ndarray:
    """Numbers of all magnitudes between powers of ten."""
    return 10 ** np.random.default_rng(seed).uniform(low, high, n)


def error(got: Any, want: np.ndarray, floor: float) -> float:
    """The largest error relative to values above ``floor``."""
    got = np.asarray(got).astype(float)
    assert not np.isnan(got).any()
    return float(np.max(np.where(want > floor, np.abs(got - want) / np.maximum(want, floor), 0)))


def around(a: np.ndarray, seed: int) -> np.ndarray:
    """Half of them within a few standard deviations of ``a``, half anywhere."""
    rng = np.random.default_rng(seed)
    near = np.abs(a + 3 * rng.normal(size=a.size) * np.sqrt(a))
    return np.where(np.arange(a.size) % 2, near, a * 10 ** rng.uniform(-2, 1, a.size))


def test_incomplete_gamma(dtype):
    a = spread(600, -3, 5, 0).astype(dtype)
    x = around(a.astype(float), 1).astype(dtype)
    wide = a.astype(float), x.astype(float)
    floor, tolerance = (1e-290, 1e-12) if dtype == np.float64 else (1e-30, 1e-4)
    assert error(lax.igamma(a, x), sp.gammainc(*wide), floor) < tolerance
    # Near 0, 1 - P loses the digits of a small Q (as in JAX).
    held = np.where((x < 1) & (a < 0.1), 0.0, sp.gammaincc(*wide))
    assert error(lax.igammac(a, x), held, floor) < 20 * tolerance


def test_normal_limit_of_large_parameters():
    """Where SciPy and jax stop their series too early: P is the normal distribution up to a^(-1/2)."""
    a = np.float32(1e7)
    x = a + np.array([-3, -0.5, 0.7, 2.5], np.float32) * np.sqrt(a)
    z = (x.astype(float) - float(a)) / np.sqrt(float(a))
    np.testing.assert_allclose(lax.igamma(np.full(4, a), x), sp.ndtr(z + (z * z - 1) / (-3 * np.sqrt(1e7))), rtol=1e-3)


def test_slopes_of_incomplete_gamma():
    with mw.enable_x64(True), jax.enable_x64(True):
        a = spread(300, -2, 3, 2)
        x = around(a, 3)
        want = np.asarray(jax.lax.igamma_grad_a(a, x))
        inside = np.abs(want) > 1e-25
        np.testing.assert_allclose(np.asarray(lax.igamma_grad_a(a, x))[inside], want[inside], rtol=3e-8)
        want = np.asarray(jax.lax.random_gamma_grad(a, x))
        inside = np.abs(x - a) < 8 * np.sqrt(a)  # further out jax's series differ from the quotient they stand for
        np.testing.assert_allclose(np.asarray(lax.random_gamma_grad(a, x))[inside], want[inside], rtol=1e-7)
        for ours, theirs in ((lax.igamma, jax.lax.igamma), (lax.igammac, jax.lax.igammac)):
            for position in (0, 1):
                got = mw.vmap(mw.grad(ours, position))(a[:60], x[:60])
                want = jax.vmap(jax.grad(theirs, position))(a[:60], x[:60])
                np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-25)


def test_limits_of_incomplete_gamma():
    inf, nan = np.inf, np.nan
    a = np.array([0, 0, 0, 1, 1, 1, -1, 1, inf, 2, nan, inf, 0.5], np.float32)
    x = np.array([0, 1, inf, 0, inf, -1, 1, nan, 1, 0, 1, inf, 0], np.float32)
    np.testing.assert_array_equal(lax.igamma(a, x), sp.gammainc(a, x))
    np.testing.assert_array_equal(lax.igammac(a, x), sp.gammaincc(a, x))
    slopes = np.asarray(mw.vmap(mw.grad(lax.igamma, 1))(np.float32([0.5, 1, 2]), np.zeros(3, np.float32)))
    np.testing.assert_array_equal(slopes, [inf, 1, 0])


@pytest.mark.parametrize("high", [1, 3, 5])
def test_incomplete_beta(dtype, high):
    a, b = spread(500, -2, high, 4), spread(500, -2, high, 5)
    rng = np.random.default_rng(6)
    mean = a / (a + b)
    x = np.clip(mean + 2 * rng.normal(size=500) * np.sqrt(mean * b / (a + b) / (a + b + 1)), 1e-4, 0.9999)
    a, b, x = (v.astype(dtype) for v in (a, b, x))
    want = sp.betainc(*(v.astype(float) for v in (a, b, x)))
    floor, tolerance = (1e-100, 2e-11) if dtype == np.float64 else (1e-4, 4e-3)
    assert error(lax.betainc(a, b, x), want, floor) < tolerance


def test_limits_of_incomplete_beta():
    inf, nan = np.inf, np.nan
    a = np.array([0, 1, 0, -1, 1, 2, inf, 2, 1, 1, 2, 2, inf, 2, 0.5], np.float32)
    b = np.array([1, 0, 0, 1, -1, inf, 2, 2, nan, 1, 1, 2, inf, 3, 0.5], np.float32)
    x = np.array([0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0, 0.2, 1.5, -0.2, 1, 0.5, nan, 1], np.float32)
    np.testing.assert_array_equal(lax.betainc(a, b, x), jax.lax.betainc(a, b, x))


def test_slopes_of_incomplete_beta(refuses):
    values = np.float32(2), np.float32(3), np.float32(0.4)
    np.testing.assert_allclose(mw.grad(lax.betainc, 2)(*values), jax.grad(jax.lax.betainc, 2)(*values), rtol=1e-6)
    with refuses(errors.DifferentiationError, "betainc", "operand 1 (b)", "stop_gradient"):
        mw.grad(lax.betainc, 1)(*values)


@pytest.mark.parametrize("name, oracle", [("bessel_i0e", sp.i0e), ("bessel_i1e", sp.i1e)])
def test_bessel(dtype, name, oracle):
    x = np.concatenate([[0, np.inf, np.nan], np.linspace(-60, 60, 501), [1e-30, 1e9]]).astype(dtype)
    tolerance = 1e-13 if dtype == np.float64 else 1e-6
    np.testing.assert_allclose(getattr(lax, name)(x), oracle(x.astype(float)), rtol=tolerance)
    x = np.array([-31, -2.5, 0, 0.3, 7.9, 8.1], dtype)
    got = mw.vmap(mw.grad(getattr(lax, name)))(x)
    np.testing.assert_allclose(got, jax.vmap(jax.grad(getattr(jax.lax, name)))(x), rtol=3e-5, atol=1e-6)


def test_narrow_floats():
    x = np.linspace(0.1, 5, 7).astype("float16")
    got = lax.igamma(x, x[::-1].copy())
    assert got.dtype == np.float16
    np.testing.assert_allclose(
        np.asarray(got, float), sp.gammainc(x.astype(float), x[::-1].astype(float)), rtol=1e-3, atol=1e-7
    )


@pytest.mark.parametrize("algorithm", list(lax.RandomAlgorithm), ids=lambda a: a.name)
@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint32"])
def test_bits_are_those_of_jax(algorithm, kind):
    key = np.arange(4, dtype=np.uint32) * 77
    for got, want in zip(
        lax.rng_bit_generator(key, (3, 2), kind, algorithm),
        jax.lax.rng_bit_generator(key, (3, 2), kind, jax.lax.RandomAlgorithm(algorithm.value)),
        strict=True,
    ):
        np.testing.assert_array_equal(got, want)


def test_random_bits_of_another_key(refuses):
    with refuses(errors.DTypeError, "rng_bit_generator", "uint32[4]", "u32[3]"):
        lax.rng_bit_generator(np.zeros(3, np.uint32), (2,))
    with refuses(errors.DTypeError, "rng_uniform", "one float or integer dtype"):
        lax.rng_uniform(np.float32(0), np.int32(3), (2,))


def test_uniform_numbers():
    x = np.asarray(lax.rng_uniform(np.int32(-3), np.int32(5), (400, 3)))
    assert x.dtype == np.int32 and set(np.unique(x)) == set(range(-3, 5))
    first, second = (np.asarray(lax.rng_uniform(np.float32(1), np.float32(2), (50,))) for _ in range(2))
    assert not np.array_equal(first, second) and 1 <= min(first) and max(second) < 2


def test_zeta_and_polygamma_of_negative_numbers(dtype):
    """XLA's own are wrong by any factor below -8."""
    x = np.random.default_rng(0).uniform(-40, 3, 200).astype(dtype)
    x = np.concatenate([x[np.abs(x - np.round(x)) > 0.05], np.array([-1000.75, -8.5, 0.25], dtype)])
    rtol = 1e-13 if dtype == np.float64 else 5e-5
    for n in (1, 2, 3, 6):
        want = sp.zeta(n + 1, x.astype(float))
        np.testing.assert_allclose(lax.zeta(np.full_like(x, n + 1), x), want, rtol=rtol, atol=20 * rtol)
        want = sp.polygamma(n, x.astype(float))
        np.testing.assert_allclose(lax.polygamma(dtype(n), x), want, rtol=rtol, atol=20 * rtol * sp.factorial(n))
    slopes = mw.vmap(mw.grad(lax.digamma))(x)
    np.testing.assert_allclose(slopes, sp.polygamma(1, x.astype(float)), rtol=rtol, atol=20 * rtol)
    assert np.isnan(lax.zeta(dtype(2.5), dtype(-0.5)))
    np.testing.assert_array_equal(lax.polygamma(dtype(1), np.array([0, -3], dtype)), np.inf)


def test_zeta_and_polygamma_of_negative_numbers_of_half_width():
    """The sum of three terms is small where these are not."""
    x = np.array([-8.5, -3.5, -20.5, 1.5], np.float16)
    for n in (2, 4):
        want = sp.polygamma(n, x.astype(float))
        np.testing.assert_allclose(lax.polygamma(np.float16(n), x), want, rtol=1e-2, atol=1e-3)
        want = sp.zeta(n + 1, x.astype(float))
        np.testing.assert_allclose(lax.zeta(np.float16(n + 1), x), want, rtol=1e-2, atol=1e-3)


def test_zeta_and_polygamma_at_the_end(dtype):
    """The limit, where XLA has NaN."""
    end = np.array([np.inf, 2], dtype)
    for n in (1, 2, 3):
        assert lax.polygamma(dtype(n), end)[0] == 0 == lax.zeta(dtype(n + 1), end)[0]
    assert mw.grad(lax.digamma)(dtype(np.inf)) == 0


@pytest.mark.parametrize("f", [lax.zeta, lax.polygamma])
def test_what_negative_numbers_take_is_left_out_without_them(f):
    """On CPUs; each element of the result is the same with and without negative numbers beside it."""
    x = np.array([[0.5, 3.0, 40.0], [-0.5, -3.25, -30.75]], np.float32)
    whole, each = np.asarray(mw.jit(f)(np.float32(3), x)), [mw.jit(f)(np.float32(3), row) for row in x]
    np.testing.assert_array_equal(whole, each)
    np.testing.assert_array_equal(whole, [[f(np.float32(3), v) for v in row] for row in x])  # numbers: no branch
    np.testing.assert_array_equal(whole, mw.vmap(lambda v: f(np.float32(3), v))(x))
    split = mw.NamedSharding(mw.make_mesh((2,), ("x",)), mw.P("x"))
    part = mw.jit(f, in_shardings=(None, split)).lower(np.float32(3), x).partition()
    np.testing.assert_array_equal(whole, part(np.float32(3), mw.device_put(x, split)))
    assert part.memory.peak_bytes >= 2 * x.nbytes // 2
    text = mw.jit(f).lower(np.float32(3), x).as_text()
    assert "stablehlo.case" in text
    np.testing.assert_array_equal(whole, mw.load(text)(np.float32(3), x))
