"""Generators that keep their own state draw what JAX's do."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.experimental.random import stateful_rng as jax_rng

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import ArgumentError, ArgumentTypeError
from meshwright.experimental.random import StatefulPRNG, stateful_rng

DRAWS = [
    lambda g: g.random((2, 3)),
    lambda g: g.uniform(1, np.array([2, 5], np.float32)),
    lambda g: g.normal([[1.0], [2.0]], 3, (2, 2)),
    lambda g: g.integers(7, size=5),
    lambda g: g.integers(-3, 9),
    lambda g: [child.uniform(size=2) for child in g.spawn(3)],
    lambda g: g.normal(dtype="float16"),
]


def same(got, want):
    for a, b in zip(mw.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        assert a.dtype == b.dtype and a.shape == b.shape


@pytest.mark.parametrize("impl", [None, "rbg"])
def test_draws_are_those_of_jax(impl):
    mine, theirs = stateful_rng(42, impl=impl), jax_rng(42, impl=impl)
    for draw in DRAWS:
        same(draw(mine), draw(theirs))
    assert repr(mine).startswith("StatefulPRNG(_base_key=") and "_counter=Ref(7" in repr(mine)


def test_transformed_functions_go_on_where_they_were():
    mine, theirs = stateful_rng(7), jax_rng(7)
    for draw in DRAWS:
        one, other = mw.jit(lambda draw=draw: draw(mine)), jax.jit(lambda draw=draw: draw(theirs))
        for _ in range(2):
            same(one(), other())
    same(mw.jit(lambda g: g.uniform(size=3))(mine), jax.jit(lambda g: g.uniform(size=3))(theirs))
    same(mine.uniform(), theirs.uniform())

    def rows(map_, rng, x):
        return map_(lambda g, x: (x + g.uniform(), g.uniform()))(rng.split(3), x)

    x = np.arange(3, dtype=np.float32)
    same(rows(mw.vmap, mine, x), rows(jax.vmap, theirs, x))


def test_a_seed_is_drawn_outside_of_transformed_functions_alone():
    assert stateful_rng().uniform() != stateful_rng().uniform()
    with pytest.raises(ArgumentError, match="give a seed"):
        mw.jit(lambda: stateful_rng().uniform())()
    np.testing.assert_array_equal(mw.jit(lambda n: stateful_rng(n).uniform())(3), stateful_rng(3).uniform())


def test_what_is_no_generator_draws_nothing():
    with pytest.raises(ArgumentError, match=r"split into \(3,\).*pass it to vmap"):
        stateful_rng(0).split(3).uniform()
    with pytest.raises(ArgumentTypeError, match="is no generator"):
        StatefulPRNG(mw.random.key(0), mnp.zeros(())).key()
