"""Random draws: the bits and values of jax.random for the same key, and the right distributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
import meshwright.random as mr
from meshwright.core.config import config
from meshwright.errors import ArgumentError, ArgumentTypeError, DrawnTypeError, DTypeError
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.transforms.vmap import vmap

KEY, JAX_KEY = mr.PRNGKey(42), jax.random.PRNGKey(42)


def assert_drawn_as_jax(ours: Any, theirs: Any, ulps: float = 0) -> None:
    """Equal, or within some units in the last place where XLA may fuse differently."""
    got, want = np.asarray(ours), np.asarray(theirs)
    assert got.dtype == want.dtype and got.shape == want.shape
    if not ulps:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=ulps * 2e-7, atol=ulps * 2e-7)


@pytest.mark.parametrize("seed", [0, 42, -1, 2**31 - 1, 2**33 + 5])
def test_keys(seed: int) -> None:
    key = mr.PRNGKey(seed)
    want = jax.random.PRNGKey(seed)
    assert_drawn_as_jax(key, want)
    assert_drawn_as_jax(mr.split(key), jax.random.split(want))
    assert_drawn_as_jax(mr.split(key, (2, 3)), jax.random.split(want, (2, 3)))
    assert_drawn_as_jax(mr.fold_in(key, 17), jax.random.fold_in(want, 17))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 0)])
def test_bits(dtype: str, shape: tuple[int, ...]) -> None:
    assert_drawn_as_jax(mr.bits(KEY, shape, dtype), jax.random.bits(JAX_KEY, shape, dtype))


EXACT: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("uniform", lambda r, k: r.uniform(k, (50, 3))),
    ("uniform half", lambda r, k: r.uniform(k, (50,), "float16")),
    ("uniform brain", lambda r, k: r.uniform(k, (50,), "bfloat16")),
    ("normal", lambda r, k: r.normal(k, (4, 9))),
    ("normal half", lambda r, k: r.normal(k, (30,), "float16")),
    ("gumbel", lambda r, k: r.gumbel(k, (30,))),
    ("exponential", lambda r, k: r.exponential(k, (30,))),
    ("laplace", lambda r, k: r.laplace(k, (30,))),
    ("rademacher", lambda r, k: r.rademacher(k, (30,))),
    ("bernoulli", lambda r, k: r.bernoulli(k, 0.3, (60,))),
    ("bernoulli of an array", lambda r, k: r.bernoulli(k, np.array([0.1, 0.5, 0.9], "f"), (7, 3))),
    ("randint", lambda r, k: r.randint(k, (60,), -3, 17)),
    ("randint of all bytes", lambda r, k: r.randint(k, (60,), 0, 256, "uint8")),
    ("randint of int8", lambda r, k: r.randint(k, (60,), 3, 103, "int8")),
    ("randint of uint16", lambda r, k: r.randint(k, (60,), 3, 103, "uint16")),
    ("randint of bounds beyond int16", lambda r, k: r.randint(k, (60,), -99_999, np.int32(99_999), "int16")),
    ("randint of arrays", lambda r, k: r.randint(k, (5, 3), np.array([0, 5, 9]), np.array([3, 50, 10]))),
    ("randint of an empty range", lambda r, k: r.randint(k, (5,), 4, 4)),
    ("permutation", lambda r, k: r.permutation(k, 20)),
    ("permutation of rows", lambda r, k: r.permutation(k, np.arange(12).reshape(4, 3))),
    ("independent permutation", lambda r, k: r.permutation(k, np.arange(12).reshape(4, 3), 1, independent=True)),
    ("choice", lambda r, k: r.choice(k, 9, (4, 3))),
    ("choice without replacement", lambda r, k: r.choice(k, np.arange(9) * 2, (4,), replace=False)),
    ("weighted choice", lambda r, k: r.choice(k, 4, (30,), p=np.array([0.1, 0.2, 0.3, 0.4], "f"))),
    ("categorical", lambda r, k: r.categorical(k, np.log(np.arange(1.0, 13.0, dtype="f")).reshape(4, 3))),
    ("categorical along 0", lambda r, k: r.categorical(k, np.arange(12.0, dtype="f").reshape(4, 3), 0)),
    ("categorical of a shape", lambda r, k: r.categorical(k, np.arange(3.0, dtype="f"), shape=(5, 2))),
    ("geometric", lambda r, k: r.geometric(k, 0.3, (30,))),
]  # fmt: skip


@pytest.mark.parametrize("draw", [d for _, d in EXACT], ids=[n for n, _ in EXACT])
def test_values_are_those_of_jax(draw: Callable[[Any, Any], Any]) -> None:
    assert_drawn_as_jax(draw(mr, KEY), draw(jax.random, JAX_KEY))
    jaxpr = trace_to_jaxpr(lambda k: [draw(mr, k)], [typeof(KEY)])
    assert_drawn_as_jax(eval_jaxpr(jaxpr, jaxpr.consts, KEY)[0], draw(jax.random, JAX_KEY))


def test_values_are_those_of_jax_up_to_rounding() -> None:
    """Where JAX computes in one fused program and eager evaluation op by op."""
    pairs = [(mr, KEY), (jax.random, JAX_KEY)]
    for draw in (
        lambda r, k: r.uniform(k, (50,), minval=-2.0, maxval=3.0),
        lambda r, k: r.truncated_normal(k, -2.0, 1.5, (50,)),
        lambda r, k: r.truncated_normal(k, np.array([-1.0, 0.0], "f"), 3.0),
        lambda r, k: r.cauchy(k, (20,)),
        lambda r, k: r.logistic(k, (20,)),
        lambda r, k: r.normal(k, (20,), "complex64").real,
    ):
        assert_drawn_as_jax(*(draw(r, k) for r, k in pairs), ulps=64)


def test_double_precision() -> None:
    with config.override("enable_x64", True), jax.enable_x64(True):
        key, want = mr.PRNGKey(2**40 + 3), jax.random.PRNGKey(2**40 + 3)
        assert_drawn_as_jax(key, want)
        assert_drawn_as_jax(mr.bits(key, (5,), "uint64"), jax.random.bits(want, (5,), "uint64"))
        assert_drawn_as_jax(mr.normal(key, (6,)), jax.random.normal(want, (6,)))
        assert_drawn_as_jax(mr.randint(key, (6,), 0, 2**40), jax.random.randint(want, (6,), 0, 2**40))


# mean, standard deviation
MOMENTS = {
    "uniform": (0.5, np.sqrt(1 / 12)), "normal": (0.0, 1.0), "gumbel": (0.5772, np.pi / np.sqrt(6)),
    "exponential": (1.0, 1.0), "laplace": (0.0, np.sqrt(2)), "logistic": (0.0, np.pi / np.sqrt(3)),
    "rademacher": (0.0, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", MOMENTS)
def test_moments(name: str) -> None:
    n = 40_000
    drawn = np.asarray(getattr(mr, name)(mr.PRNGKey(7), (n,)), np.float64)
    mean, deviation = MOMENTS[name]
    assert abs(drawn.mean() - mean) < 5 * deviation / np.sqrt(n)
    assert abs(drawn.std() - deviation) < 0.03 * deviation


def test_draws_stay_in_their_range() -> None:
    x = np.asarray(mr.truncated_normal(mr.PRNGKey(1), -0.5, 0.25, (5000,)))
    assert -0.5 <= x.min() < -0.49 and 0.24 < x.max() <= 0.25
    u = np.asarray(mr.uniform(mr.PRNGKey(2), (5000,), "bfloat16")).astype(float)
    assert u.min() >= 0 and u.max() < 1
    drawn = np.asarray(mr.randint(mr.PRNGKey(3), (3000,), -2, 3))
    assert np.bincount(drawn + 2).min() > 500 and set(drawn) == {-2, -1, 0, 1, 2}
    order = np.asarray(mr.permutation(mr.PRNGKey(4), 100))
    assert sorted(order) == list(range(100)) and list(order) != sorted(order)


def test_keys_can_be_batched() -> None:
    keys = mr.split(KEY, 3)
    got = vmap(lambda k: mr.normal(k, (4,)))(keys)
    assert_drawn_as_jax(got, np.stack([np.asarray(mr.normal(k, (4,))) for k in keys]))


def test_errors() -> None:
    with pytest.raises(ArgumentTypeError, match="a uint32 array of shape"):
        mr.normal(mnp.zeros(2), (3,))
    with pytest.raises(DTypeError, match=r"random\.uniform: dtype must be a float type"):
        mr.uniform(KEY, (3,), "int32")
    with pytest.raises(DTypeError, match="bounds must be integers"):
        mr.randint(KEY, (3,), 0.0, 2.5)
    with pytest.raises(ArgumentError, match="cannot be drawn from 3"):
        mr.choice(KEY, 3, (4,), replace=False)
    with pytest.raises(ArgumentError, match=r"p must have shape \(3,\)"):
        mr.choice(KEY, 3, (4,), p=np.ones(2) / 2)
    with pytest.raises(ArgumentError, match="must not be negative"):
        mr.normal(KEY, (-3,))
    with pytest.raises(ArgumentTypeError, match="seed"):
        mr.PRNGKey(1.5)


def test_shuffling_does_not_depend_on_values() -> None:
    x = jnp.arange(6.0)
    assert_drawn_as_jax(mr.shuffle(KEY, np.asarray(x)), jax.random.permutation(JAX_KEY, x))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_narrow_integers_are_equally_likely(dtype):
    """The remainder of eight bits is not: 0 to 55 of 100 would come half as often again."""
    drawn = np.asarray(mr.randint(KEY, (200_000,), 0, 100, dtype))
    counts = np.bincount(drawn, minlength=100)
    assert abs(counts[:56].mean() / counts[56:].mean() - 1) < 0.02


def test_what_is_folded_in_has_no_width():
    for data in (-1, -(2**31), 5, 2**31 - 1):
        with mw.enable_x64(True):
            wide = np.asarray(mr.fold_in(mr.PRNGKey(3), np.int64(data)))
        np.testing.assert_array_equal(wide, np.asarray(mr.fold_in(mr.PRNGKey(3), np.int32(data))))
    with mw.enable_x64(True):
        assert (
            len({tuple(np.asarray(mr.fold_in(mr.PRNGKey(3), np.int64(d))).tolist()) for d in (-1, 2**33 - 1, 2**40)})
            == 3
        )


def test_numbers_of_elements_may_be_integer_arrays() -> None:
    for n in (np.array(5, np.int8), np.uint16(5), jax.numpy.asarray(5)):
        assert mr.permutation(KEY, mnp.asarray(n)).tolist() == jax.random.permutation(JAX_KEY, 5).tolist()
        assert mr.choice(KEY, mnp.asarray(n), (3,)).tolist() == jax.random.choice(JAX_KEY, 5, (3,)).tolist()
    for x in (2.5, np.float32(3), mnp.asarray(2.0), True):
        with pytest.raises(ArgumentTypeError, match="permutation"):
            mr.permutation(KEY, x)


def test_counts_of_classes_may_be_integers() -> None:
    p = np.array([0.25, 0.5, 0.25], np.float32)
    got, want = (m.multinomial(k, 9, p, dtype="int32") for m, k in ((mr, KEY), (jax.random, JAX_KEY)))
    assert got.dtype == np.int32 and got.tolist() == want.tolist()
    with pytest.raises(DrawnTypeError, match="multinomial"):
        mr.multinomial(KEY, 9, p, dtype="complex64")
