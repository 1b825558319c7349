"""Reductions by functions of a user's own, over dimensions and windows: values, batching, derivatives, partitioning."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax as peer

import meshwright as mw
from meshwright import PartitionSpec as P
from meshwright import lax
from meshwright.errors import ArgumentError, AxisError, DTypeError, RuleError, ShapeError

X = ((np.arange(30) * 7 % 23) / 8 - 1).astype(np.float32).reshape(5, 6)
I = np.arange(30, dtype=np.int32).reshape(5, 6)


def smooth(L):
    """Associative, with no op of its own: a + b + a b."""
    return lambda a, b: L.add(L.add(a, b), L.mul(a, b))


def best(L):
    """The larger of two values, with what stands beside it."""
    return lambda a, b: (L.max(a[0], b[0]), L.select(L.ge(a[0], b[0]), a[1], b[1]))


CASES = {
    "reduce": lambda L, x, i: L.reduce(x, np.float32(0), smooth(L), (1,)),
    "reduce over all": lambda L, x, i: L.reduce(x, np.float32(0.5), smooth(L), (0, 1)),
    "reduce by addition": lambda L, x, i: L.reduce(x, np.float32(2), L.add, (0,)),
    "reduce bits": lambda L, x, i: L.reduce(i, np.int32(0), L.bitwise_or, (0,)),
    "reduce of two": lambda L, x, i: L.reduce((x, i), (np.float32(-np.inf), np.int32(0)), best(L), (0,)),
    "window": lambda L, x, i: L.reduce_window(x, np.float32(0), smooth(L), (2, 3), (1, 2), "SAME"),
    "window with defaults": lambda L, x, i: L.reduce_window(x, np.float32(0), smooth(L), (2, 3)),
    "window, dilated": lambda L, x, i: L.reduce_window(
        x, np.float32(0), smooth(L), (2, 2), (1, 1), ((1, 0), (0, 2)), (2, 1), (1, 3)),
    "window of two": lambda L, x, i: L.reduce_window(
        (x, i), (np.float32(-np.inf), np.int32(0)), best(L), (2, 2), (2, 2), "VALID"),
    "window by a method": lambda L, x, i: L.reduce_window(x, np.float32(0), lambda a, b: a + b, (1, 3), (1, 1), "SAME"),
}  # fmt: skip


def check(ours, theirs, rtol=1e-6):
    ours, theirs = mw.tree.leaves(ours), jax.tree.leaves(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    check(CASES[name](lax, X, I), CASES[name](peer, X, I))


@pytest.mark.parametrize("name", ["reduce", "reduce of two", "window, dilated", "window of two"])
def test_batched(name):
    run = CASES[name]
    xs, js = np.stack([X, X[::-1] * 2, X**2], 1), np.stack([I, I + 3, I[::-1]], 1)
    ours = mw.vmap(lambda x, i: run(lax, x, i), in_axes=1)(xs, js)
    each = [run(peer, xs[:, k], js[:, k]) for k in range(3)]
    check(ours, jax.tree.map(lambda *rows: jnp.stack(rows), *each))


def windows(x, rows, columns):
    """All windows of a matrix, stacked in front."""
    m, n = x.shape[0] - rows + 1, x.shape[1] - columns + 1
    return jnp.stack([x[i : i + m, j : j + n] for i in range(rows) for j in range(columns)])


#: name of a case: the same in closed form, for JAX
CLOSED = {
    "reduce": lambda x: jnp.prod(1 + x, 1) - 1,
    "reduce over all": lambda x: 1.5 * jnp.prod(1 + x) - 1,
    "reduce of two": lambda x: jnp.max(x, 0),
    "reduce by addition": lambda x: 2 + jnp.sum(x, 0),
    "window with defaults": lambda x: jnp.prod(1 + windows(x, 2, 3), 0) - 1,
}


@pytest.mark.parametrize("name", CLOSED)
def test_derivatives(name):
    def ours(x):
        return mw.tree.leaves(CASES[name](lax, x, I))[0]

    closed = CLOSED[name]
    t = np.cos(np.arange(30, dtype=np.float32)).reshape(5, 6)
    check(mw.jvp(ours, (X,), (t,)), jax.jvp(closed, (X,), (t,)), 1e-5)
    check(mw.grad(lambda x: mw.numpy.sum(ours(x) ** 2))(X), jax.grad(lambda x: jnp.sum(closed(x) ** 2))(X), 1e-5)


def test_derivative_by_the_initial_value():
    closed = jax.grad(lambda c: jnp.sum((1 + c) * jnp.prod(1 + X, 0) - 1))(0.25)
    found = mw.grad(lambda c: mw.numpy.sum(lax.reduce(X, c, smooth(lax), (0,))))(np.float32(0.25))
    check(found, closed, 1e-5)


@pytest.mark.parametrize("name", ["reduce", "reduce of two", "window", "window of two"])
@pytest.mark.filterwarnings("ignore::meshwright.errors.PaddingWarning")
def test_on_a_mesh(name):
    mesh = mw.make_mesh((2, 3), ("x", "y"))
    split = mw.NamedSharding(mesh, P("x", "y"))
    run = mw.jit(lambda x, i: CASES[name](lax, x, i), in_shardings=(split, split))
    check(run(X, I), CASES[name](peer, X, I), 1e-5)


def test_known_functions_become_ops():
    found = mw.make_jaxpr(lambda x: lax.reduce(x, np.float32(-np.inf), lambda a, b: lax.max(b, a), (1,)))(X)
    assert [eqn.op.name for eqn in found.jaxpr.eqns] == ["reduce_max"]
    pooled = mw.make_jaxpr(lambda x: lax.reduce_window(x, np.float32(0), np.add, (2, 2)))(X)
    assert [eqn.op.name for eqn in pooled.jaxpr.eqns] == ["reduce_window_sum"]


def test_refusals(refuses):
    with refuses(ArgumentError, "reduce_window", "xor"):
        lax.reduce_window(X, np.float32(0), "xor", (1, 1))
    with refuses(ArgumentError, "reduce", "structure"):
        lax.reduce((X, X), (0.0,), best(lax), (0,))
    with refuses(ArgumentError, "computation must return scalars"):
        lax.reduce_window((X, X), (0.0, 0.0), lambda a, b: a[0], (1, 1))
    with refuses(ShapeError, "one shape"):
        lax.reduce((X, X[:2]), (0.0, 0.0), best(lax), (0,))
    with refuses(DTypeError, "reduce_window", "int32"):
        lax.reduce_window(X, np.int32(0), smooth(lax), (1, 1))
    with refuses(AxisError, "axis 2"):
        lax.reduce(X, np.float32(0), smooth(lax), (2,))
    with refuses(RuleError, "no derivative", "elementwise"):
        dotted = lambda a, b: a + b + 0 * lax.dot(lax.broadcast(a, (1,)), lax.broadcast(b, (1,)))  # noqa: E731
        mw.grad(lambda x: lax.reduce(x, np.float32(0), dotted, (0, 1)))(X)
