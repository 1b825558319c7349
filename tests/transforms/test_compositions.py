"""Transformations of transformations, of every kind of function; ``jax`` as oracle."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp

X = np.linspace(0.3, 1.7, 6, dtype=np.float32).reshape(2, 3)
LIBRARIES = ((mw, mnp), (jax, jnp))


def same(make, *args, rtol=1e-4):
    found, wanted = (make(m, p)(*map(p.asarray, args)) for m, p in LIBRARIES)
    assert mw.tree.map(np.shape, found) == jax.tree.map(np.shape, wanted)
    for got, want in zip(mw.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-5)


def scan(m, p):
    def step(c, y):
        a, n, none = c
        return (a * p.sin(y), n + 1, none), {"a": a, "n": n, "none": None}

    return lambda x: m.lax.scan(step, (x[0], 0, None), x)[1]["a"] * x


def loop_in_scan(m, p):
    return lambda x: m.lax.scan(lambda c, y: (c + y, m.lax.fori_loop(0, 2, lambda i, z: p.sin(z) * c, y)), x[0], x)[1]


def branches(m, p):
    return lambda x: m.lax.switch((2 * x[0].sum()).astype("int32") % 3, [p.sin, lambda y: y * y, lambda y: 3 * y], x)


def products_kept(m, p):
    return m.checkpoint(lambda x: p.sin(x @ x.T) @ x, policy=m.checkpoint_policies.dots_saveable)


def own_jvp(m, p):
    f = m.custom_jvp(lambda x: p.sin(x) * x)
    f.defjvp(lambda ps, ts: (f(ps[0]), ts[0] * (p.cos(ps[0]) * ps[0] + p.sin(ps[0]))))
    return f


def chosen(m, p):
    return lambda x: m.lax.associative_scan(lambda a, b: a * b + a, p.sort(p.sin(3 * x), axis=-1) * x)


FUNCTIONS = (scan, loop_in_scan, branches, products_kept, own_jvp, chosen)
TRANSFORMATIONS = {
    "jit": lambda m, p, f: m.jit(f),
    "checkpoint": lambda m, p, f: m.checkpoint(f),
    "vmap": lambda m, p, f: lambda x: m.vmap(f, in_axes=2, out_axes=-1)(p.stack([x, x + 0.3], 2)),
    "jvp": lambda m, p, f: lambda x: m.jvp(f, (x,), (p.cos(x),))[1],
    "linearize": lambda m, p, f: lambda x: m.linearize(f, x)[1](p.cos(x)),
    "grad": lambda m, p, f: m.grad(lambda x: (f(x) ** 2).sum()),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("outer", TRANSFORMATIONS)
def test_pairs(function, outer):
    # each outer one with two inner ones, other ones for each function: all pairs occur
    names = list(TRANSFORMATIONS)
    start = names.index(outer) + FUNCTIONS.index(function)
    for inner in (names[start % 6], names[(start + 3) % 6]):
        same(lambda m, p: TRANSFORMATIONS[outer](m, p, TRANSFORMATIONS[inner](m, p, function(m, p))), X)  # noqa: B023


@pytest.mark.parametrize("order", list(itertools.permutations(("jit", "vmap", "grad"))), ids=" ".join)
def test_three_deep(order):
    def make(m, p):
        f = scan(m, p)
        for name in order:
            f = TRANSFORMATIONS[name](m, p, f)
        return f

    same(make, X)


def test_takes_that_clip_know_no_negative_positions():
    indices = np.array([[0, -1], [5, 1]], np.int32)
    same(lambda m, p: m.vmap(lambda a, i: p.take(a, i, axis=0, mode="clip")), X, indices)
    same(lambda m, p: m.grad(lambda a: (p.take(a, indices, axis=1, mode="clip") ** 2).sum()), X)
    np.testing.assert_array_equal(mnp.take(X, -1, axis=1, mode="clip"), np.take(X, -1, axis=1, mode="clip"))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)])
def test_derivatives_of_sorting_nothing(shape):
    same(lambda m, p: m.grad(lambda a: p.sort(a, axis=0).sum()), np.zeros(shape, np.float32))
    same(lambda m, p: m.jacfwd(lambda a: p.sort(a, axis=-1)), np.zeros(shape, np.float32))
