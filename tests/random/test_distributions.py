"""Distributions with parameters: JAX's values for the same key, the right statistics, derivatives, meshes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats as st

import meshwright as mw
import meshwright.random as mr
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.core.config import config

KEY, JAX_KEY = mr.PRNGKey(7), jax.random.PRNGKey(7)
A = np.geomspace(0.05, 300, 12).astype(np.float32).reshape(4, 3)
PROBABILITIES = np.array([[0.5, 0.1, 0.4], [0.2, 0.7, 0.1]], np.float32)

#: name, draw (of a library and key), units in the last place that XLA's fusions may make
AS_JAX: list[tuple[str, Callable[[Any, Any], Any], float]] = [
    ("gamma", lambda r, k: r.gamma(k, A), 0),
    ("gamma of a number", lambda r, k: r.gamma(k, 0.3, (5, 2)), 0),
    ("gamma half", lambda r, k: r.gamma(k, A.astype("float16"), dtype="float16"), 0),
    ("gamma brain", lambda r, k: r.gamma(k, 2.0, (9,), "bfloat16"), 0),
    ("loggamma", lambda r, k: r.loggamma(k, A / 100), 0),
    ("beta", lambda r, k: r.beta(k, A, A[0], (2, 4, 3)), 2),
    ("dirichlet", lambda r, k: r.dirichlet(k, A), 2),
    ("dirichlet of a shape", lambda r, k: r.dirichlet(k, A[0], (5,)), 2),
    ("chisquare", lambda r, k: r.chisquare(k, A), 2),
    ("f", lambda r, k: r.f(k, A, 4.0), 4),
    ("t", lambda r, k: r.t(k, A), 2),
    ("t of a number", lambda r, k: r.t(k, 2.5, (7,)), 2),
    ("generalized_normal", lambda r, k: r.generalized_normal(k, 1.5, (8,)), 4),
    ("ball", lambda r, k: r.ball(k, 3, 2.0, (5,)), 8),
    ("pareto", lambda r, k: r.pareto(k, A), 2),
    ("rayleigh", lambda r, k: r.rayleigh(k, A), 2),
    ("rayleigh of a shape", lambda r, k: r.rayleigh(k, 2.0, (6,)), 2),
    ("weibull_min", lambda r, k: r.weibull_min(k, 2.0, 1.5, (9,)), 8),
    ("maxwell", lambda r, k: r.maxwell(k, (5, 2)), 2),
    ("double_sided_maxwell", lambda r, k: r.double_sided_maxwell(k, 1.0, 2.0, (9,)), 4),
    ("wald", lambda r, k: r.wald(k, A[:2]), 64),
    ("triangular", lambda r, k: r.triangular(k, -1.0, 0.5, 2.0, (9,)), 4),
    ("lognormal", lambda r, k: r.lognormal(k, A / 100), 2),
    ("geometric", lambda r, k: r.geometric(k, 0.2, (40,)), 0),
    ("poisson small", lambda r, k: r.poisson(k, A[:2]), 0),
    ("poisson mixed", lambda r, k: r.poisson(k, A, (3, 4, 3)), 0),
    ("poisson of int16", lambda r, k: r.poisson(k, 30.0, (20,), "int16"), 0),
    ("poisson of uint8", lambda r, k: r.poisson(k, np.array([-1.0, 3.0, 30.0], "f"), (20, 3), "uint8"), 0),
    ("poisson of nothing", lambda r, k: r.poisson(k, 0.0, (3,)), 0),
    ("binomial few", lambda r, k: r.binomial(k, 9, PROBABILITIES), 0),
    ("binomial many", lambda r, k: r.binomial(k, 300, PROBABILITIES, (5, 2, 3)), 0),
    ("binomial strange",
     lambda r, k: r.binomial(k, np.float32([5, -1, np.nan, np.inf]), np.float32([2, 0.5, 0.5, 0.5])), 0),
    ("multinomial", lambda r, k: r.multinomial(k, 50.0, PROBABILITIES), 0),
    ("categorical without replacement",
     lambda r, k: r.categorical(k, np.log(PROBABILITIES), shape=(3, 2), replace=False), 0),
    ("wrap_key_data", lambda r, k: r.uniform(r.wrap_key_data(r.key_data(k)), (4,)), 0),
]  # fmt: skip


#: those whose programs another one is much like, which JAX takes long to compile
SLOW = {"gamma of a number", "gamma half", "dirichlet of a shape", "t of a number", "chisquare", "ball", "multinomial",
        "poisson small", "poisson of nothing", "binomial few", "f", "beta"}  # fmt: skip


def params(cases: Any) -> list[Any]:
    return [pytest.param(*c[1:], id=c[0], marks=pytest.mark.slow if c[0] in SLOW else ()) for c in cases]


@pytest.mark.parametrize("draw, ulps", params(AS_JAX))
def test_values_are_those_of_jax(draw: Callable[[Any, Any], Any], ulps: float) -> None:
    got, want = np.asarray(draw(mr, KEY)), np.asarray(draw(jax.random, JAX_KEY))
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    tolerance = ulps * 2e-7
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=tolerance, atol=tolerance)


def test_double_precision_as_jax() -> None:
    with config.override("enable_x64", True), jax.enable_x64(True):
        for draw in (
            lambda r, k: r.gamma(k, A.astype(float)),
            lambda r, k: r.binomial(k, 300, PROBABILITIES.astype(float)),
        ):
            got, want = np.asarray(draw(mr, mr.PRNGKey(7))), np.asarray(draw(jax.random, jax.random.PRNGKey(7)))
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-14)


# --- statistics ---------------------------------------------------------------------------------------------
N = 20_000

CONTINUOUS: list[tuple[str, Callable[[Any], Any], Any]] = [
    ("uniform", lambda k: mr.uniform(k, (N,), minval=-1.0, maxval=3.0), st.uniform(-1, 4)),
    ("normal", lambda k: mr.normal(k, (N,)), st.norm()),
    ("truncated_normal", lambda k: mr.truncated_normal(k, -1.0, 2.0, (N,)), st.truncnorm(-1, 2)),
    ("gumbel", lambda k: mr.gumbel(k, (N,)), st.gumbel_r()),
    ("exponential", lambda k: mr.exponential(k, (N,)), st.expon()),
    ("laplace", lambda k: mr.laplace(k, (N,)), st.laplace()),
    ("logistic", lambda k: mr.logistic(k, (N,)), st.logistic()),
    ("cauchy", lambda k: mr.cauchy(k, (N,)), st.cauchy()),
    ("gamma below 1", lambda k: mr.gamma(k, 0.4, (N,)), st.gamma(0.4)),
    ("gamma", lambda k: mr.gamma(k, 7.0, (N,)), st.gamma(7.0)),
    ("loggamma", lambda k: mr.loggamma(k, 2.0, (N,)), st.loggamma(2.0)),
    ("beta", lambda k: mr.beta(k, 0.7, 2.0, (N,)), st.beta(0.7, 2.0)),
    ("dirichlet", lambda k: mr.dirichlet(k, np.array([0.5, 1.0, 2.0]), (N,))[:, 2], st.beta(2.0, 1.5)),
    ("chisquare", lambda k: mr.chisquare(k, 3.0, (N,)), st.chi2(3)),
    ("f", lambda k: mr.f(k, 3.0, 8.0, (N,)), st.f(3, 8)),
    ("t", lambda k: mr.t(k, 3.0, (N,)), st.t(3)),
    ("generalized_normal", lambda k: mr.generalized_normal(k, 1.5, (N,)), st.gennorm(1.5)),
    ("ball", lambda k: (mr.ball(k, 3, shape=(N,)) ** 2).sum(-1), st.beta(1.5, 1)),
    ("pareto", lambda k: mr.pareto(k, 2.5, (N,)), st.pareto(2.5)),
    ("rayleigh", lambda k: mr.rayleigh(k, 2.0, (N,)), st.rayleigh(scale=2)),
    ("weibull_min", lambda k: mr.weibull_min(k, 2.0, 1.5, (N,)), st.weibull_min(1.5, scale=2)),
    ("maxwell", lambda k: mr.maxwell(k, (N,)), st.maxwell()),
    ("double_sided_maxwell", lambda k: (mr.double_sided_maxwell(k, 1.0, 2.0, (N,)) - 1) ** 2 / 4, st.chi2(3)),
    ("wald", lambda k: mr.wald(k, 2.0, (N,)), st.invgauss(2.0)),
    ("triangular", lambda k: mr.triangular(k, -1.0, 0.5, 2.0, (N,)), st.triang(0.5, -1, 3)),
    ("lognormal", lambda k: mr.lognormal(k, 0.5, (N,)), st.lognorm(0.5)),
]


@pytest.mark.parametrize("draw, law", [c[1:] for c in CONTINUOUS], ids=[c[0] for c in CONTINUOUS])
def test_continuous_distributions(draw: Callable[[Any], Any], law: Any) -> None:
    """The largest distance to the distribution function: beyond 1.95 / sqrt(n) for one key in 1,000."""
    found = st.kstest(np.asarray(draw(mr.PRNGKey(11))).astype(float), law.cdf)
    assert found.statistic < 1.95 / np.sqrt(N), found


CLASSES = st.rv_discrete(values=([0, 1, 2], [0.2, 0.5, 0.3]))
DISCRETE: list[tuple[str, Callable[[Any], Any], Any]] = [
    ("bernoulli", lambda k: mr.bernoulli(k, 0.3, (N,)), st.bernoulli(0.3)),
    ("randint", lambda k: mr.randint(k, (N,), -3, 4), st.randint(-3, 4)),
    ("rademacher", lambda k: (mr.rademacher(k, (N,)) + 1) // 2, st.bernoulli(0.5)),
    ("geometric", lambda k: mr.geometric(k, 0.3, (N,)), st.geom(0.3)),
    ("poisson small", lambda k: mr.poisson(k, 3.5, (N,)), st.poisson(3.5)),
    ("poisson large", lambda k: mr.poisson(k, 40.0, (N,)), st.poisson(40)),
    ("binomial few", lambda k: mr.binomial(k, 12, 0.3, (N,)), st.binom(12, 0.3)),
    ("binomial many", lambda k: mr.binomial(k, 100, 0.7, (N,)), st.binom(100, 0.7)),
    ("multinomial", lambda k: mr.multinomial(k, 9.0, np.tile([[0.2, 0.5, 0.3]], (N, 1)))[:, 1], st.binom(9, 0.5)),
    ("categorical", lambda k: mr.categorical(k, np.log([0.2, 0.5, 0.3]), shape=(N,)), CLASSES),
    ("choice", lambda k: mr.choice(k, 3, (N,), p=np.array([0.2, 0.5, 0.3])), CLASSES),
    ("permutation", lambda k: mr.permutation(k, np.tile(np.arange(4), (N, 1)), 1, independent=True)[:, 2],
     st.randint(0, 4)),
]  # fmt: skip


@pytest.mark.parametrize("draw, law", [c[1:] for c in DISCRETE], ids=[c[0] for c in DISCRETE])
def test_discrete_distributions(draw: Callable[[Any], Any], law: Any) -> None:
    """Pearson's chi-squared over the values that are expected 20 times at least; the rest in one class."""
    values, counts = np.unique(np.asarray(draw(mr.PRNGKey(11))).astype(int), return_counts=True)
    grid = np.arange(-5, 120)
    expected = N * law.pmf(grid)
    common = expected >= 20
    observed = np.array([counts[values == v].sum() for v in grid])
    seen = [*observed[common], N - observed[common].sum()]
    wanted = [*expected[common], N - expected[common].sum()]
    if wanted[-1] < 5:
        seen, wanted = seen[:-1], np.array(wanted[:-1]) * sum(seen[:-1]) / sum(wanted[:-1])
    assert st.chisquare(seen, wanted).pvalue > 1e-3


def test_choice_without_replacement_follows_the_weights() -> None:
    p = np.array([0.1, 0.2, 0.3, 0.4])
    draw = mw.vmap(lambda k: mr.choice(k, 4, (2,), replace=False, p=p))
    drawn = np.asarray(draw(mr.split(KEY, 8000)))
    assert (drawn[:, 0] != drawn[:, 1]).all()
    first = np.bincount(drawn[:, 0], minlength=4)
    assert st.chisquare(first, 8000 * p).pvalue > 1e-3
    after_3 = drawn[drawn[:, 0] == 3, 1]
    assert st.chisquare(np.bincount(after_3, minlength=3), after_3.size * p[:3] / p[:3].sum()).pvalue > 1e-3


# --- derivatives --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name", ["gamma", "loggamma", *(pytest.param(n, marks=pytest.mark.slow) for n in ("beta", "t"))]
)
def test_derivatives_by_parameters(name: str) -> None:
    a = np.geomspace(0.2, 200, 12).reshape(4, 3)
    weights = np.cos(np.arange(12.0)).reshape(4, 3)
    with config.override("enable_x64", True), jax.enable_x64(True):
        more = (a[::-1],) if name == "beta" else ()
        got = mw.jit(mw.grad(lambda a: (getattr(mr, name)(mr.PRNGKey(5), a, *more) * weights).sum()))(a)
        want = jax.grad(lambda a: (getattr(jax.random, name)(jax.random.PRNGKey(5), a, *more) * weights).sum())(a)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=2e-7)


def test_derivative_of_a_quantile() -> None:
    """Against the definition: the change of scipy's quantile function."""
    a = np.array([0.05, 0.5, 3.0, 90.0, 2000.0])
    with config.override("enable_x64", True):
        x, slope = mw.jvp(lambda a: mr.gamma(mr.PRNGKey(3), a), (a,), (np.ones(5),))
        x, slope = np.asarray(x), np.asarray(slope)
    level, h = st.gamma.cdf(x, a), 1e-5 * a
    want = (st.gamma.ppf(level, a + h) - st.gamma.ppf(level, a - h)) / (2 * h)
    np.testing.assert_allclose(slope, want, rtol=1e-5)


# --- meshes and batches -------------------------------------------------------------------------------------
def test_vmap_over_keys_is_a_loop() -> None:
    keys = mr.split(KEY, 3)
    for draw in (lambda k: mr.gamma(k, A[:2]), lambda k: mr.poisson(k, 5.0, (4,))):
        got = np.asarray(mw.vmap(draw)(keys))
        np.testing.assert_array_equal(got, np.stack([np.asarray(draw(k)) for k in keys]))


SILENT = [
    ("bits", lambda k: mr.bits(k, (12, 10))), ("uniform", lambda k: mr.uniform(k, (12, 10))),
    ("normal", lambda k: mr.normal(k, (12, 10))), ("gamma", lambda k: mr.gamma(k, 0.7, (12, 10))),
    ("beta", lambda k: mr.beta(k, 2.0, 3.0, (12, 10))), ("t", lambda k: mr.t(k, 4.0, (12, 10))),
    ("randint", lambda k: mr.randint(k, (12, 10), 0, 9)), ("bernoulli", lambda k: mr.bernoulli(k, 0.4, (12, 10))),
    ("wald", lambda k: mr.wald(k, 2.0, (12, 10))), ("truncated", lambda k: mr.truncated_normal(k, shape=(12, 10))),
]  # fmt: skip


@pytest.mark.parametrize("draw", [d for _, d in SILENT], ids=[n for n, _ in SILENT])
def test_devices_make_their_parts_without_talking(draw: Callable[[Any], Any]) -> None:
    mesh = mw.make_mesh((2, 4), ("a", "b"))
    lowered = mw.jit(draw, out_shardings=NamedSharding(mesh, P("a", "b"))).lower(KEY)
    part = lowered.partition()
    assert not part.collectives, part.explain()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mw.errors.PaddingWarning)
        np.testing.assert_allclose(np.asarray(lowered.compile()(KEY)), np.asarray(draw(KEY)), rtol=1e-5, atol=1e-6)


def test_counts_on_a_mesh_agree_on_when_to_stop() -> None:
    mesh = mw.make_mesh((2, 4), ("a", "b"))
    for draw in (lambda k: mr.poisson(k, 6.0, (12, 8)), lambda k: mr.binomial(k, 100, 0.4, (12, 8))):
        lowered = mw.jit(draw, out_shardings=NamedSharding(mesh, P("a", "b"))).lower(KEY)
        assert lowered.partition().bytes_sent <= 64
        np.testing.assert_array_equal(np.asarray(lowered.compile()(KEY)), np.asarray(draw(KEY)))


# --- errors -------------------------------------------------------------------------------------------------
def test_bad_parameters(refuses: Any) -> None:
    with refuses(TypeError, "random.gamma", "(4, 3)", "shape=(5,)", "must end with"):
        mr.gamma(KEY, A, (5,))
    with refuses(TypeError, "random.gamma", "float type", "int32"):
        mr.gamma(KEY, 2.0, (3,), "int32")
    with refuses(TypeError, "random.poisson", "integer type", "float32"):
        mr.poisson(KEY, 2.0, (3,), "float32")
    with refuses(ValueError, "random.dirichlet", "dimension of classes"):
        mr.dirichlet(KEY, 2.0)
    with refuses(ValueError, "random.categorical", "4 different classes", "(2, 3)"):
        mr.categorical(KEY, PROBABILITIES, shape=(4, 2), replace=False)
    with refuses(TypeError, "wrap_key_data", "uint32"):
        mr.wrap_key_data(np.zeros(2, "int32"))
    with refuses(TypeError, "random_gamma_grad", "stop_gradient"):
        mw.grad(mw.grad(lambda a: mr.gamma(KEY, a)))(2.0)
