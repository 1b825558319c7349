"""Scans that change rows of arrays which nothing else reads: the array is held once, and values stay what they were."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as jnp
from meshwright import lax
from meshwright.lowering.in_place import in_place

LAYERS, ROWS, WIDTH = 3, 5, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=WIDTH).astype("f4")
CACHE = RNG.normal(size=(LAYERS, ROWS, WIDTH)).astype("f4")


def update(cache, x, t):
    return lax.dynamic_update_slice(cache, x[None], (t, 0))


UPDATES = {
    "slice": update,
    "set": lambda c, x, t: c.at[t].set(x),
    "add": lambda c, x, t: c.at[t].add(x),
    "max": lambda c, x, t: c.at[np.array([0, ROWS - 1])].max(np.float32(2) * x),
    "twice": lambda c, x, t: update(update(c, x, t), 2 * x, t + 1),
    "of-what-it-replaces": lambda c, x, t: update(c, x + c.sum(0), t),
    "of-what-was-replaced": lambda c, x, t: (lambda new: update(new, new.sum(0), 0))(update(c, x, t)),
}
NOT_IN_PLACE = {
    "whole-row": lambda c, x, t: c * 2 + x,
    "read-otherwise": lambda c, x, t: update(c, x, t) + c[0],
}


def step(x, cache, t, change, **options):
    def layer(x, row):
        row = change(row, x, t)
        return jnp.tanh(x + row.sum(0)), row

    return lax.scan(layer, x, cache, **options)


def expected(x, cache, t, change, reverse=False):
    rows = [None] * LAYERS
    for i in reversed(range(LAYERS)) if reverse else range(LAYERS):
        rows[i] = np.asarray(change(jnp.asarray(cache[i]), jnp.asarray(x), t))
        x = np.tanh(x + rows[i].sum(0))
    return x, np.stack(rows)


def scans_left(fun, *args, donated=(1,)):
    """The number of scans of which rows are stacked in another array."""
    jaxpr = in_place(donated).apply(mw.make_jaxpr(fun)(*args))
    return str(jaxpr).count("scan[\n")


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"unroll": 2}], ids=str)
@pytest.mark.parametrize("name", [*UPDATES, *NOT_IN_PLACE])
def test_values(name, options):
    change = {**UPDATES, **NOT_IN_PLACE}[name]
    got = mw.jit(lambda x, c: step(x, c, 1, change, **options), donate_argnums=1)(X, jnp.asarray(CACHE))
    for a, b in zip(got, expected(X, CACHE, 1, change, **{k: v for k, v in options.items() if k == "reverse"})):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", UPDATES)
def test_rows_are_changed_in_place(name):
    assert scans_left(lambda x, c: step(x, c, 1, UPDATES[name]), X, CACHE) == 0


@pytest.mark.parametrize("name", NOT_IN_PLACE)
def test_rows_that_are_read_otherwise_are_not(name):
    assert scans_left(lambda x, c: step(x, c, 1, NOT_IN_PLACE[name]), X, CACHE) == 1


def test_arrays_that_are_read_otherwise_are_not():
    assert scans_left(lambda x, c: step(x, c, 1, update), X, CACHE, donated=()) == 1
    assert scans_left(lambda x, c: (step(x, c, 1, update), c.sum()), X, CACHE) == 1
    assert scans_left(lambda x, c: (step(x, c, 1, update), c), X, CACHE) == 1
    assert scans_left(lambda x, c: step(x, c + 1, 1, update), X, CACHE, donated=()) == 0


def test_views_of_several_arrays_are_of_their_own():
    """A barrier has a result for each operand."""

    def fenced(x, first, second):
        first, second = lax.optimization_barrier((first, second))
        return step(x, second, 1, update), first

    assert scans_left(fenced, X, CACHE, CACHE, donated=(1,)) == 1
    assert scans_left(fenced, X, CACHE, CACHE, donated=(2,)) == 0


def test_inside_of_loops():
    """What a loop carries is its own, its constants are not."""

    def generate(x, cache):
        return lax.scan(lambda c, t: (step(*c, t, update), None), (x, cache), jnp.arange(ROWS))[0]

    def from_the_same(x, cache):
        return lax.scan(lambda x, t: (step(x, cache, t, update)[0], None), x, jnp.arange(ROWS))[0]

    assert scans_left(generate, X, CACHE) == 1
    assert scans_left(from_the_same, X, CACHE) == 2
    x, cache = X, CACHE
    for t in range(ROWS):
        x, cache = expected(x, cache, t, update)
    for a, b in zip(mw.jit(generate)(X, CACHE), (x, cache)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_split_over_devices_it_is_held_once():
    shape = 8, 64, 16
    mesh = mw.make_mesh((4,), ("d",))
    at = mw.NamedSharding(mesh, mw.P(None, None, "d"))

    def decode(x, cache, t):
        def layer(x, row):
            row = lax.dynamic_update_slice(row, x[None], (t, 0))
            return jnp.tanh(x + row.sum(0)), row

        return lax.scan(layer, x, cache)

    x, cache = np.ones(16, np.float32), RNG.normal(size=shape).astype("f4")
    small = mw.NamedSharding(mesh, mw.P("d"))
    lowered = mw.jit(decode, donate_argnums=1, in_shardings=(small, at, None)).lower(x, jnp.asarray(cache), 3)
    part = lowered.partition()
    part.verify(x, cache, 3)
    assert part.peak_bytes < 1.5 * cache.nbytes / 4
    assert lowered.compile().memory_analysis().temp_size_in_bytes < cache.nbytes / 2
