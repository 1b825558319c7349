"""Special functions against SciPy at float64 over wide ranges and at the ends, derivatives as jax has them."""

from __future__ import annotations

from typing import Any

import jax
import jax.scipy.special as js
import numpy as np
import pytest
import scipy.special as sp

import meshwright as mw
import meshwright.numpy as mnp
import meshwright.scipy.special as ms
from meshwright import NamedSharding, errors
from meshwright import PartitionSpec as P

RNG = np.random.default_rng(0)
N = 180
REAL = RNG.normal(size=N) * 6
POSITIVE = 10 ** RNG.uniform(-6, 2.3, N)
OTHER = POSITIVE[::-1].copy()
UNIT = RNG.random(N)
TINY = 10 ** RNG.uniform(-300, -2, N)
COUNT = np.arange(N) % 7.0
ENDS = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, -2, 0.5])


def joined(*parts: Any) -> np.ndarray:
    return np.concatenate([np.asarray(p, float) for p in parts])


#: operands, and by which of them there is a derivative that jax can be asked for
CASES: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "erf": ((REAL,), (0,)), "erfc": ((REAL,), (0,)), "erfinv": ((2 * UNIT - 1,), (0,)),
    "erfcx": ((joined(REAL, POSITIVE, ENDS),), (0,)), "dawsn": ((joined(REAL, POSITIVE, ENDS),), (0,)),
    "ndtr": ((REAL,), (0,)), "log_ndtr": ((joined(REAL * 5, ENDS),), ()),
    "ndtri": ((joined(UNIT, TINY, 1 - TINY, ENDS),), ()), "owens_t": ((REAL, REAL[::-1] / 2), (0, 1)),
    "gammasgn": ((joined(REAL, ENDS),), ()), "gamma": ((joined(REAL, ENDS),), ()), "gammaln": ((POSITIVE,), (0,)),
    "factorial": ((joined(POSITIVE, ENDS),), ()), "betaln": ((POSITIVE, OTHER * 100), ()),
    "beta": ((POSITIVE, OTHER), ()), "betainc": ((POSITIVE * 10, OTHER * 10, UNIT), (2,)),
    "gammainc": ((POSITIVE, OTHER), (0, 1)), "gammaincc": ((OTHER, POSITIVE), (1,)), "digamma": ((POSITIVE,), (0,)),
    "polygamma": ((COUNT, POSITIVE), ()), "zeta": ((POSITIVE + 1.01, OTHER), (1,)),
    "poch": ((POSITIVE / 2, COUNT), ()), "comb": ((np.floor(POSITIVE * 3), COUNT), ()),
    "i0": ((REAL,), (0,)), "i0e": ((REAL,), (0,)), "i1": ((REAL,), (0,)), "i1e": ((REAL,), (0,)),
    "xlogy": ((joined(POSITIVE, [0, 0, 1]), joined(OTHER, [0, 2, np.inf])), (0, 1)),
    "xlog1py": ((joined(POSITIVE, [0, 0]), joined(OTHER, [-1, 2])), (0, 1)), "entr": ((joined(POSITIVE, [0, -1]),), ()),
    "rel_entr": ((joined(POSITIVE, [0, 1, 0, -1]), joined(OTHER, [1, 0, 0, 1])), ()),
    "kl_div": ((POSITIVE, OTHER), (0, 1)), "logit": ((UNIT,), (0,)), "expit": ((REAL,), (0,)),
    "boxcox": ((POSITIVE, joined(REAL[:-1], [0])), ()), "boxcox1p": ((POSITIVE, joined(REAL[:-1], [0])), ()),
    "expi": ((joined(REAL * 10, POSITIVE, -POSITIVE, ENDS),), ()), "exp1": ((joined(POSITIVE, ENDS),), ()),
    "expn": ((joined(np.arange(N) % 9, np.arange(10)), joined(POSITIVE, ENDS)), ()),
    "sici": ((joined(REAL, POSITIVE, ENDS),), ()), "fresnel": ((joined(REAL, POSITIVE, ENDS),), ()),
    "spence": ((joined(POSITIVE, ENDS[:4]),), ()),
}  # fmt: skip
#: where digits are lost: near the zeros of the logarithm of beta, where P is nearly 1
LOOSE = {"betaln": 1e-9, "betainc": 1e-9, "gammaincc": 3e-9, "expi": 1e-11, "ndtr": 1e-12, "log_ndtr": 1e-12}


@pytest.fixture
def wide():
    with mw.enable_x64(True), jax.enable_x64(True):
        yield


def as_list(x: Any) -> list[np.ndarray]:
    return [np.asarray(y) for y in (x if isinstance(x, tuple) else (x,))]


def oracle(name: str, args: tuple[Any, ...]) -> list[np.ndarray]:
    whole = name in ("expn", "polygamma")
    with np.errstate(all="ignore"):
        return as_list(getattr(sp, name)(*(args[0].astype(int), *args[1:]) if whole else args))


@pytest.mark.parametrize("name", CASES)
def test_values(wide, name):
    args, _ = CASES[name]
    for got, want in zip(as_list(getattr(ms, name)(*args)), oracle(name, args), strict=True):
        np.testing.assert_allclose(got, want, rtol=LOOSE.get(name, 5e-13), atol=1e-280)


#: where float32 takes another way than float64, or is near its ends; the others are the same sums
OWN_WAY = {"gammainc", "betainc", "ndtri", "log_ndtr", "expn", "expi", "erfcx", "betaln"}


@pytest.mark.parametrize("name", [n if n in OWN_WAY else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_values_at_float32(name):
    args = tuple(np.asarray(a[: N // 2], np.float32) for a in CASES[name][0])
    if name in ("betainc", "gammaincc", "comb", "poch", "beta", "betaln"):
        args = tuple(np.clip(a, 0.5, 20).astype(np.float32) for a in args[:2]) + args[2:]
    for got, want in zip(as_list(getattr(ms, name)(*args)), oracle(name, tuple(a.astype(float) for a in args))):
        assert got.dtype == np.float32
        inside = np.abs(want) < 1e37
        np.testing.assert_allclose(got[inside], want[inside], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name, number", [(n, i) for n, (_, numbers) in CASES.items() for i in numbers])
def test_slopes(wide, name, number):
    args = [a[:40] for a in CASES[name][0]]
    got = mw.vmap(mw.grad(getattr(ms, name), number))(*args)
    want = jax.vmap(jax.grad(getattr(js, name), number))(*args)
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name, x", [
    ("log_ndtr", -3.3), ("ndtri", 1e-5), ("gamma", -1.3), ("expi", 1.7), ("exp1", 0.4), ("spence", 1.9), ("sici", 7.5),
    ("sici", 0.8), ("fresnel", 1.1), ("fresnel", 4.2), ("entr", 0.3),
])  # fmt: skip
def test_slopes_by_differences(wide, name, x):
    step = 1e-5 * min(abs(x), 1)
    for i, (high, low) in enumerate(zip(oracle(name, (x + step,)), oracle(name, (x - step,)))):
        f = getattr(ms, name)
        slope = mw.grad((lambda v, i=i, f=f: f(v)[i]) if name in ("sici", "fresnel") else f)(x)
        np.testing.assert_allclose(slope, (high - low) / (2 * step), rtol=1e-6, atol=1e-8)


def test_slope_of_expn(wide):
    np.testing.assert_allclose(mw.grad(ms.expn, 1)(3, 0.7), -sp.expn(2, 0.7), rtol=1e-12)
    np.testing.assert_allclose(mw.grad(mw.grad(ms.expn, 1), 1)(3, 1.7), sp.expn(1, 1.7), rtol=1e-12)


def test_sums_of_exponentials(wide):
    x = np.array([[0.3, -np.inf, 2.0], [700.0, 800.0, -3.0]])
    weights = np.array([[1.0, 2.0, -0.7], [1.0, -2.0, 1.0]])
    np.testing.assert_allclose(ms.logsumexp(x, 1), sp.logsumexp(x, 1))
    for axis, keepdims in ((1, False), (0, True), (None, False)):
        got = ms.logsumexp(x, axis, weights, keepdims, True)
        want = sp.logsumexp(x, axis, weights, keepdims, True)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-14)
        np.testing.assert_array_equal(got[1], want[1])
    slopes = mw.grad(lambda v: ms.logsumexp(v, 1, weights, return_sign=True)[0].sum())(x)
    wanted = jax.grad(lambda v: js.logsumexp(v, 1, weights, return_sign=True)[0].sum())(x)
    np.testing.assert_allclose(slopes, wanted, rtol=1e-12)


def test_functions_with_settings(wide, refuses):
    np.testing.assert_allclose(ms.multigammaln(np.array([3.5, 7.0]), 3), js.multigammaln(np.array([3.5, 7.0]), 3))
    for n in (0, 1, 7, 12):
        np.testing.assert_allclose(ms.bernoulli(n), sp.bernoulli(n)[: n + 1] if n else [1.0], rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(ms.comb(np.array([5, 6.0]), 3, repetition=True), sp.comb([5, 6], 3, repetition=True))
    np.testing.assert_allclose(ms.zeta(np.array([2.0, 3.0])), sp.zeta([2.0, 3.0]))
    for call in (lambda: ms.factorial(3, True), lambda: ms.multigammaln(3.0, 0), lambda: ms.bernoulli(-1)):
        with refuses(errors.ArgumentError):
            call()
    with refuses(errors.ShapeError, "xlogy", "(2,)", "(3,)"):
        ms.xlogy(np.zeros(2), np.zeros(3))


def test_on_a_mesh():
    """Elementwise functions stay where their operands are, without a collective."""
    mesh = mw.make_mesh((4, 2), ("x", "y"))
    x = mw.device_put(np.linspace(0.02, 0.98, 48, dtype=np.float32).reshape(8, 6), NamedSharding(mesh, P("x", "y")))
    for f in (
        lambda v: ms.gammainc(2.5, v),
        ms.ndtri,
        lambda v: ms.expn(2, v),
        ms.i1e,
        lambda v: ms.betainc(2.0, v, 0.3),
    ):
        program = mw.jit(f)
        np.testing.assert_allclose(program(x), f(np.asarray(x)), rtol=1e-5)
        assert program(x).sharding.spec == P("x", "y")


def test_slopes_far_out_in_float32():
    """Where the formulas that the slopes are known by nearly cancel."""
    x = np.array([5, 9, 30, 90, 700, 1e4, 1e8], np.float32)
    v = 1 / np.float64(x) ** 2
    near = np.array([5.0, 9.0])
    erfcx = -v / np.sqrt(np.pi) * (1 - 1.5 * v + 3.75 * v**2 - 13.125 * v**3)
    erfcx[:2] = 2 * near * sp.erfcx(near) - 2 / np.sqrt(np.pi)
    dawsn = -v / 2 - 0.75 * v**2 - 1.875 * v**3 - 6.5625 * v**4
    dawsn[:2] = 1 - 2 * near * sp.dawsn(near)
    for f, points, want in (
        (ms.erfcx, x, erfcx),
        (ms.dawsn, x, dawsn),
        (ms.dawsn, -x, dawsn),
        (ms.log_ndtr, -x, np.sqrt(2 / np.pi) / sp.erfcx(np.float64(x) / np.sqrt(2))),
    ):
        np.testing.assert_allclose(mw.vmap(mw.grad(f))(points), want, rtol=4e-6)
    for f in (ms.exp1, ms.loggamma):
        assert np.isnan(mw.grad(f)(-0.5))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_fresnel_of_the_largest_numbers(dtype):
    most = float(mnp.finfo(dtype).max)
    for y in ms.fresnel(mnp.asarray([most, -most], dtype)):
        np.testing.assert_allclose(np.asarray(y, np.float32), [0.5, -0.5], atol=1e-4)


@pytest.mark.parametrize("name", ["betaln", "boxcox", "boxcox1p", "comb", "xlogy"])
def test_of_numbers_results_are_weakly_typed(name: str) -> None:
    f = getattr(ms, name)
    assert mw.typeof(f(2, 3.5)).weak_type and not mw.typeof(f(2, np.float32(3.5))).weak_type
