"""What ``vjp`` and ``linearize`` return is a tree: through ``jit``, ``vmap``, loops and branches; ``jax`` as oracle."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp

X = np.arange(1, 7, dtype=np.float32).reshape(2, 3) / 3
LIBRARIES = ((mw, mnp), (jax, jnp))


def function(m, p):
    def f(x):
        y = m.lax.fori_loop(0, 3, lambda i, c: p.sin(c) * x, x)
        return {"y": y, "x": m.checkpoint(p.exp)(x)}

    return f


def pull(m, p):
    return lambda x: m.vjp(function(m, p), x)[1]


def push(m, p):
    return lambda x: m.linearize(function(m, p), x)[1]


def both(x):
    return {"y": x, "x": 2 * x}


CASES = {
    "out of jit": lambda m, p: lambda x: m.jit(pull(m, p))(x)(both(x)),
    "into jit": lambda m, p: lambda x: m.jit(lambda g, ct: g(ct))(pull(m, p)(x), both(x)),
    "through jit": lambda m, p: lambda x: m.jit(lambda g, ct: g(ct))(m.jit(pull(m, p))(x), both(x)),
    "linearize through jit": lambda m, p: lambda x: m.jit(lambda g, t: g(t))(m.jit(push(m, p))(x), x + 1),
    "inside jit": lambda m, p: m.jit(lambda x: m.jit(lambda g, ct: g(ct))(m.jit(pull(m, p))(x), both(x))),
    "vmap": lambda m, p: lambda x: m.vmap(lambda g, y: g(both(y)))(m.vmap(pull(m, p))(x), x),
    "scan": lambda m, p: (
        lambda x: m.lax.scan(lambda c, g: (c, g({"y": x[0], "x": c})), x[1], m.lax.map(pull(m, p), x))[1]
    ),
    "cond": lambda m, p: (
        lambda x: m.lax.cond(x[0, 0] < 1, lambda g: g(both(x)), lambda g: g(both(3 * x)), pull(m, p)(x))
    ),
    "tree": lambda m, p: lambda x: m.tree.map(p.asarray, pull(m, p)(x))(both(x)),
    "second derivative": lambda m, p: m.grad(
        lambda x: (m.jit(lambda g, ct: g(ct))(m.jit(pull(m, p))(x), both(x))[0] ** 2).sum()
    ),
    "constant": lambda m, p: lambda x: m.jit(lambda g: g(p.ones(())))(m.vjp(lambda x: p.float32(3.0), x)[1]),
    "one value twice": lambda m, p: (
        lambda x: m.jit(lambda g: g((x, 2 * x)))(m.jit(lambda x: m.vjp(lambda y: (y * x, p.sin(y) * x), x)[1])(x))
    ),
    "aux": lambda m, p: lambda x: m.linearize(lambda x: (x**2, (x, 3 * x)), x, has_aux=True)[2],
    "beside aux": lambda m, p: lambda x: m.linearize(lambda x: (x**2, 3 * x), x, has_aux=True)[1](x),
}


@pytest.mark.parametrize("name", CASES)
def test_like_jax(name):
    found, wanted = (CASES[name](m, p)(X) for m, p in LIBRARIES)
    for got, want in zip(mw.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_traced_once_for_the_same_program():
    traced = []

    @mw.jit
    def apply(g, ct):
        traced.append(1)
        return g(ct)

    make = mw.jit(lambda x: mw.vjp(lambda x: mnp.sin(x) * x, x)[1])
    for x in (X, X + 1):
        np.testing.assert_allclose(apply(make(x), X)[0], X * (np.cos(x) * x + np.sin(x)), rtol=1e-5)
    assert len(traced) == 1


def test_structure_keeps_no_values():
    x = mnp.asarray(X)
    f_vjp = mw.vjp(lambda x: mnp.sin(mnp.sin(x)), x)[1]
    inside = [weakref.ref(leaf) for leaf in mw.tree.leaves(f_vjp)]
    structure = mw.tree.structure(f_vjp)
    assert inside and structure.num_leaves == len(inside)
    del f_vjp, x
    gc.collect()
    assert [r() for r in inside] == [None] * len(inside)


def test_reduce_axes_is_refused(refuses):
    for run in (
        lambda: mw.vjp(mnp.sin, 1.0, reduce_axes=("i",)),
        lambda: mw.grad(mnp.sin, reduce_axes=("i",)),
        lambda: mw.linear_transpose(lambda x: x, 1.0, reduce_axes=("i",)),
    ):
        with refuses(ValueError, "reduce_axes=('i',)", "psum"):
            run()
