"""Distributions against SciPy at float64 inside and outside of their support, and derivatives as jax has them."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.scipy.stats as js
import numpy as np
import pytest
import scipy.stats as st

import meshwright as mw
import meshwright.numpy as mnp
import meshwright.scipy.stats as ms
from meshwright import NamedSharding, errors
from meshwright import PartitionSpec as P

X = np.array([[-1.7, -0.3, 0.0, 0.2], [0.5, 0.9, 1.0, 1.3], [2.1, 3.0, 4.6, 7.2]])
K = np.array([[-1, 0, 1, 2], [3, 4, 5, 9]])
#: distributions of real numbers, and their parameters
CONTINUOUS: dict[str, tuple[Any, ...]] = {
    "beta": (2.0, 3.5), "cauchy": (), "chi2": (3.0,), "expon": (), "gamma": (2.5,), "gennorm": (1.5,),
    "gumbel_l": (), "gumbel_r": (), "laplace": (), "logistic": (), "norm": (), "pareto": (2.0,), "t": (3.5,),
    "truncnorm": (-0.5, 2.0), "uniform": (),
}  # fmt: skip
DISCRETE: dict[str, tuple[Any, ...]] = {
    "bernoulli": (0.3,), "betabinom": (6, 1.5, 2.0), "binom": (6, 0.3), "geom": (0.3,), "nbinom": (3, 0.4),
    "poisson": (2.5,),
}  # fmt: skip
ANGLES: dict[str, tuple[Any, ...]] = {"vonmises": (2.0,), "wrapcauchy": (0.4,)}


@pytest.fixture(autouse=True)
def wide():
    with mw.enable_x64(True), jax.enable_x64(True):
        yield


def functions(module: Any) -> list[str]:
    made = [n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__]
    return [n for n in made if not n.startswith("_")]


def cases(distributions: dict[str, tuple[Any, ...]]) -> list[Any]:
    return [(name, f) for name in distributions for f in functions(getattr(ms, name))]


def same(got: Any, want: Any, **tolerance: float) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), **{"rtol": 2e-11, "atol": 1e-13, **tolerance})


@pytest.mark.parametrize("name, function", cases(CONTINUOUS))
def test_continuous(name: str, function: str) -> None:
    points = np.array([[0.01, 0.3], [0.5, 0.73], [0.97, 0.999]]) if function in ("ppf", "isf") else X
    for place in ((), (0.4, 1.7)):
        args = points, *CONTINUOUS[name], *place
        with np.errstate(all="ignore"):
            same(getattr(getattr(ms, name), function)(*args), getattr(getattr(st, name), function)(*args))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [n for n in CONTINUOUS if hasattr(getattr(ms, n), "logsf")])
def test_logarithms_of_probabilities_near_0_and_near_1(name: str, dtype: Any) -> None:
    """Of what is near 1, the other probability is known more precisely."""
    x = np.array([-100, -30, -8, -1.3, -0.1, -1e-3, 1e-3, 0.1, 0.5, 0.999, 1.001, 2, 5, 17, 30, 60, 1e4, 1e6], dtype)
    parameters = np.array(CONTINUOUS[name], dtype)
    with np.errstate(over="ignore"):
        below, above = (getattr(getattr(st, name), f)(np.float64(x), *parameters) for f in ("cdf", "sf"))
    for f, p, q in (("logcdf", below, above), ("logsf", above, below)):
        got = np.asarray(getattr(getattr(ms, name), f)(x, *parameters))
        with np.errstate(divide="ignore"):
            want = np.where(p <= 0.5, np.log(p), np.log1p(-q))
        known = np.log(np.finfo(dtype).smallest_normal) < want
        same(got[known], want[known], rtol=4e-6 if dtype == np.float32 else 2e-11, atol=np.finfo(dtype).smallest_normal)


def test_cauchy_quantiles_near_0_and_near_1() -> None:
    q = np.array([1e-30, 1e-8, 1e-3, 0.2499, 0.2501, 0.4999])
    for f in (ms.cauchy.ppf, lambda q: -ms.cauchy.isf(q)):
        same(f(q.astype(np.float32)), -1 / np.tan(np.pi * np.float64(np.float32(q))), rtol=3e-6)
        same(f(1 - q[1:]), 1 / np.tan(np.pi * (1 - (1 - q[1:]))))


@pytest.mark.parametrize("name, function", cases(DISCRETE))
def test_discrete(name: str, function: str) -> None:
    points = np.array([0.1, 0.69, 0.71, 0.95]) if function == "ppf" else K
    for place in ((), (1,)):
        args = points, *DISCRETE[name], *place
        same(getattr(getattr(ms, name), function)(*args), getattr(getattr(st, name), function)(*args))


@pytest.mark.parametrize("name, function", cases(ANGLES))
def test_angles(name: str, function: str) -> None:
    points = np.abs(X) % 6
    ours, theirs = (getattr(getattr(m, name), function) for m in (ms, st))
    same(ours(points, *ANGLES[name]), theirs(points, *ANGLES[name]))


@pytest.mark.parametrize("name", CONTINUOUS)
def test_slopes(name: str) -> None:
    """Of the logarithm of the density, by the number, the parameters, the location and the scale."""
    place = () if name == "gennorm" else (-0.1, 1.05)  # of which JAX's function has none
    args = (1.1 if name == "pareto" else 0.7, *CONTINUOUS[name], *place)
    numbers = tuple(range(len(args)))
    got = mw.grad(getattr(ms, name).logpdf, numbers)(*args)
    if name.startswith("gumbel"):  # jax 0.10.2 fails
        step = 1e-6
        want = [np.dot([-1, 1], [getattr(st, name).logpdf(*np.add(args, s * e)) for s in (-step, step)]) / (2 * step)
                for e in np.eye(len(args))]  # fmt: skip
    else:
        want = jax.grad(getattr(js, name).logpdf, numbers)(*args)
    same(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", DISCRETE)
def test_slopes_by_parameters(name: str) -> None:
    parameters = [float(p) for p in DISCRETE[name]]
    number = len(parameters)
    got = mw.grad(getattr(ms, name).logpmf, number)(2.0, *parameters)
    same(got, jax.grad(getattr(js, name).logpmf, number)(2.0, *parameters), rtol=1e-6)


def test_far_out() -> None:
    same(ms.norm.logcdf(np.array([-40.0, -1e4, 9.0])), st.norm.logcdf(np.array([-40.0, -1e4, 9.0])))
    same(ms.truncnorm.logpdf(np.array([9.0, 9.5]), 8.0, 10.0), st.truncnorm.logpdf(np.array([9.0, 9.5]), 8.0, 10.0))
    same(ms.binom.logpmf(400_000, 1_000_000, 0.4), st.binom.logpmf(400_000, 1_000_000, 0.4), rtol=1e-8)


def test_several_variables() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(3, 3))
    cov, mean, x = a @ a.T + np.eye(3), rng.normal(size=3), rng.normal(size=(5, 2, 3))
    same(ms.multivariate_normal.logpdf(x, mean, cov), st.multivariate_normal.logpdf(x, mean, cov))
    many = np.stack([cov, 2 * cov])
    same(ms.multivariate_normal.pdf(x, mean, many), js.multivariate_normal.pdf(x, mean, many))
    slopes = mw.grad(lambda m, c: ms.multivariate_normal.logpdf(x, m, c).sum(), (0, 1))(mean, cov)
    wanted = jax.grad(lambda m, c: js.multivariate_normal.logpdf(x, m, c).sum(), (0, 1))(mean, cov)
    same(slopes[0], wanted[0])
    same(slopes[1] + slopes[1].T, wanted[1] + wanted[1].T)
    alpha = np.array([0.7, 2.0, 3.5])
    probabilities = rng.dirichlet(alpha, 4).T
    same(ms.dirichlet.logpdf(probabilities, alpha), st.dirichlet.logpdf(probabilities, alpha))
    same(ms.dirichlet.pdf(probabilities[:2], alpha), st.dirichlet.pdf(probabilities, alpha))
    counts = np.array([[1, 2, 3], [0, 6, 0], [1, 1, 1]])
    p = np.array([0.2, 0.5, 0.3])
    same(ms.multinomial.logpmf(counts, 6, p), st.multinomial.logpmf(counts, 6, p))


def test_counts_and_ranks_of_special_values() -> None:
    rows = np.array([[0.0, -0.0, 1.0, np.nan], [np.nan, np.nan, 1.0, 2.0], [3.0, 2.0, 2.0, -np.inf]])
    for x, axis in ((rows, 1), (rows, None), (rows[:0], 0)):
        got, want = ms.mode(x, axis), st.mode(x, axis)
        np.testing.assert_array_equal(got.mode, want.mode)
        np.testing.assert_array_equal(got.count, want.count)
    assert ms.rankdata(np.array([3, 1, 1]), "min").dtype == np.float64
    assert ms.rankdata(np.zeros((0, 3)), axis=0).shape == (0, 3)


def test_samples() -> None:
    x = np.random.default_rng(1).integers(0, 4, (7, 5)).astype(float)
    for axis in (0, 1, -1, None):
        got, want = ms.mode(x, axis), st.mode(x, axis)
        same(got.mode, want.mode)
        same(got.count, want.count)
        same(ms.sem(x, axis), st.sem(x, axis))
        for method in ("average", "min", "max", "dense", "ordinal"):
            same(ms.rankdata(x, method, axis=axis), st.rankdata(x, method, axis=axis))


def test_density_estimate() -> None:
    rng = np.random.default_rng(2)
    sample, weights, points = rng.normal(size=(2, 9)), rng.random(9), rng.normal(size=(2, 4))
    for method in (None, "silverman", 0.3):
        ours, theirs = ms.gaussian_kde(sample, method, weights), st.gaussian_kde(sample, method, weights)
        same(ours(points), theirs(points))
        same(ours.logpdf(points), theirs.logpdf(points))
    assert ours.resample(mw.random.key(0), (3, 2)).shape == (2, 3, 2)
    assert mw.tree.leaves(mw.jit(lambda k: k)(ours))[0].shape == (2, 9)
    whole = np.array([1, 2, 4, 7], np.int32)
    assert ms.gaussian_kde(whole)(whole).dtype == jax.scipy.stats.gaussian_kde(whole)(whole).dtype == np.float32


def test_on_a_mesh() -> None:
    mesh = mw.make_mesh((4, 2), ("x", "y"))
    x = mw.device_put(np.linspace(0.1, 5, 40).reshape(8, 5), NamedSharding(mesh, P("x")))
    for f in (
        lambda v: ms.gamma.cdf(v, 2.5),
        lambda v: ms.t.logpdf(v, 3.0),
        lambda v: ms.truncnorm.logpdf(v, 0.5, 4.0),
    ):
        got = mw.jit(f)(x)
        same(got, f(np.asarray(x)))
        assert got.sharding.spec[0] == "x"


def test_misuse(refuses) -> None:
    with refuses(errors.ShapeError, "multivariate_normal", "(..., 3, 3)"):
        ms.multivariate_normal.logpdf(np.zeros(3), np.zeros(3), np.eye(2))
    with refuses(errors.ArgumentError, "rankdata", "method"):
        ms.rankdata(np.zeros(3), "best")
    with refuses(errors.ArgumentError, "gaussian_kde", "bw_method"):
        ms.gaussian_kde(np.zeros(3), "narrow")
    with refuses(errors.DTypeError, "gaussian_kde", "stack"):
        ms.gaussian_kde(np.zeros(3, complex))
    with refuses(errors.ShapeError, "logpdf"):
        ms.norm.logpdf(np.zeros(3), np.zeros(2))


def test_the_slope_in_the_middle() -> None:
    assert [float(mw.grad(ms.laplace.cdf)(x)) for x in (0.0, -0.0)] == [0.5, 0.5]
    assert float(mw.grad(lambda loc: ms.laplace.cdf(1.0, loc))(1.0)) == -0.5


def test_halves_are_floats() -> None:
    x = mnp.asarray(np.array([2.0, np.nan, 1.0]), "bfloat16")
    assert np.isnan(np.asarray(ms.rankdata(x))).all() and ms.rankdata(x[::2]).tolist() == [2.0, 1.0]
    with mw.enable_x64(True):
        for dtype, want in (("bfloat16", "bfloat16"), ("float32", "float32"), ("int32", "float64")):
            assert {v.dtype.name for v in ms.mode(mnp.zeros(0, dtype))} == {want}
