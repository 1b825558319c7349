"""``cond`` and ``switch`` whose predicate is mapped: derivatives see only the branch that is taken, however infinite
the others are there; and loops whose carry is made anew at each step."""

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax

V = np.array([-1, 0, 0.5, 2, 3], np.float32)
W = np.array([2, -3, 1], np.float32)

#: functions of a scalar and a vector, whose untaken branches are infinite, or have infinite or undefined derivatives
SAFE = {
    "log": lambda x, w: lax.cond(x > 0, mnp.log, lambda x: 0 * x, x) * w.sum(),
    "sqrt": lambda x, w: lax.cond(x > 0, mnp.sqrt, mnp.zeros_like, x) * w.sum(),
    "inverse": lambda x, w: lax.cond(x != 0, lambda x: 1 / x, lambda x: x, x) * w.sum(),
    "closure": lambda x, w: lax.cond(x > 0, lambda: mnp.log(x) * w, lambda: x * w).sum(),
    "shared": lambda x, w: lax.cond(x > 0, lambda y, w: (mnp.log(x) * y * w).sum(), lambda y, w: y, 2 * x, w),
    "product": lambda x, w: lax.cond(x > 0, lambda x, w: mnp.dot(x**-0.5 * w, w), lambda x, w: x, x, w),
    "never": lambda x, w: lax.cond(x > 9, lambda x, w: (mnp.log(x - 9) * w).sum(), lambda x, w: (x * w).sum(), x, w),
    "switch": lambda x, w: lax.switch(
        (x > 0).astype(int) + (x > 1).astype(int),
        [lambda x, w: x, lambda x, w: mnp.log(x) * w[0], lambda x, w: (mnp.sqrt(x - 1) * w).sum()],
        x, w,
    ),
    "nested": lambda x, w: lax.cond(
        x > 0, lambda x: lax.cond(x > 1, lambda x: mnp.sqrt(x - 1) * w[0], lambda x: mnp.log(x) * w[1], x), mnp.sin, x
    ),
    "in scan": lambda x, w: lax.scan(
        lambda c, a: (lax.cond(c > 0, mnp.log, mnp.cos, c) + x * a, None), x, w
    )[0],
    "integers": lambda x, w: lax.cond(
        x > 0, lambda i: mnp.log(x) * mnp.take(w, i), lambda i: x, mnp.clip(x, 0, 2).astype(int)
    ),
}  # fmt: skip


def total(f):
    return lambda v, w: mnp.sum(mw.vmap(f, (0, None))(v, w))


@pytest.mark.parametrize("jitted", [False, True], ids=["", "jit"])
@pytest.mark.parametrize("name", SAFE)
def test_derivatives_see_the_taken_branch(name, jitted):
    f = SAFE[name]
    wrap = mw.jit if jitted else (lambda g: g)
    alone = [mw.grad(f, argnums=(0, 1))(x, W) for x in V]
    want = np.stack([a for a, _ in alone]), sum(b for _, b in alone)
    want = want[0], np.asarray(want[1])
    assert np.isfinite(want[0]).all() and np.isfinite(want[1]).all()
    for got, expected in zip(wrap(mw.grad(total(f), argnums=(0, 1)))(V, W), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)
    _, forward = wrap(lambda v, w: mw.jvp(total(f), (v, w), (v + 1, w + 2)))(V, W)
    np.testing.assert_allclose(forward, want[0] @ (V + 1) + want[1] @ (W + 2), rtol=1e-5)
    each = wrap(mw.vmap(mw.grad(f), (0, None)))(V, W)
    np.testing.assert_allclose(each, want[0], rtol=1e-5)
    stacked = wrap(mw.grad(lambda v: mnp.sum(mw.vmap(lambda u: total(f)(u, W))(v))))(np.stack([V, V[::-1]]))
    np.testing.assert_allclose(stacked, np.stack([want[0], want[0][::-1]]), rtol=1e-5)


@pytest.mark.parametrize("name", SAFE)
def test_second_derivatives_see_the_taken_branch(name):
    f = SAFE[name]
    want = np.stack([mw.grad(mw.grad(f))(x, W) for x in V])
    assert np.isfinite(want).all()
    got = mw.grad(lambda v: mnp.sum(mw.grad(lambda u: total(f)(u, W))(v)))(V)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SAFE)
def test_values_are_those_of_each_alone(name):
    want = [SAFE[name](x, W) for x in mnp.asarray(V)]
    np.testing.assert_allclose(mw.vmap(SAFE[name], (0, None))(V, W), np.stack(want), rtol=1e-6)


def test_batch_axes_of_operands_and_empty_batches():
    m = np.arange(6, dtype=np.float32).reshape(3, 2) - 1
    f = lambda x, y: lax.cond(y[0] > 0, lambda a: (mnp.log(y) * a).sum(), lambda a: a.sum(), x)  # noqa: E731
    mapped = lambda a, b: mnp.sum(mw.vmap(f, (1, 1))(a, b))  # noqa: E731
    want = np.stack([np.stack(mw.grad(f, (0, 1))(m[:, i], m[:, i] - (1 - i))) for i in range(2)], -1)
    got = mw.grad(mapped, (0, 1))(m, m - np.array([1, 0], np.float32))
    np.testing.assert_allclose(np.stack(got), want)
    assert mw.grad(lambda v: mw.vmap(lambda x: SAFE["log"](x, W))(v).sum())(V[:0]).shape == (0,)


def test_on_a_mesh():
    mesh = mw.make_mesh((2,), ("x",))
    split = mw.NamedSharding(mesh, mw.P("x"))
    v = np.tile(V, 2)[:8]
    f = mw.jit(mw.grad(total(SAFE["shared"]), argnums=(0, 1)), in_shardings=(split, None))
    want = [mw.grad(SAFE["shared"], argnums=(0, 1))(x, W) for x in v]
    got = f(v, W)
    np.testing.assert_allclose(got[0], np.stack([a for a, _ in want]), rtol=1e-5)
    np.testing.assert_allclose(got[1], sum(b for _, b in want), rtol=1e-5)


# --- carries that are made anew ------------------------------------------------------------------------------
FRESH = {
    "replaced": lambda m, l, x: l.scan(lambda c, _: (x * 2, ()), x, (), length=3)[0],
    "constant": lambda m, l, x: l.scan(lambda c, _: ((m.ones(3), c[0]), c[1] * x), (x, 2 * x), (), length=4)[1],
    "queue": lambda m, l, x: l.scan(
        lambda c, _: ((m.ones(3), *c[:-1]), ()), tuple(x * (i + 1) for i in range(5)), (), length=3
    )[0][-1],
    "rotated": lambda m, l, x: l.scan(
        lambda c, _: ((c[-1], *c[:-1]), ()), (x, *(m.ones(3) * i for i in range(4))), (), length=7
    )[0],
    "empty carry": lambda m, l, x: l.scan(lambda c, a: ((), a * x), (), m.arange(3.0))[1],
    "empty": lambda m, l, x: x + 0.0 * (l.scan(lambda c, a: ((), ()), (), (), length=1000)[0] == ()),
    "empty tuples": lambda m, l, x: l.scan(lambda c, _: ((c[0] * x, ()), ((), c[0])), (x, ()), (), length=3)[1][1],
    "nested": lambda m, l, x: l.scan(
        lambda c, _: l.scan(lambda d, _: ((x * d[1], m.ones(3)), ()), (c[0], m.zeros(3)), (), length=3),
        (x, x), (), length=2,
    )[0][0],
    "swapped": lambda m, l, x: l.scan(lambda c, _: ((c[1], m.sin(x)), c[0]), (x, m.zeros(3)), (), length=3)[1],
    "reverse": lambda m, l, x: l.scan(lambda c, a: ((m.ones(3), c[0] * a), c[1]), (x, x), x, reverse=True)[1],
    "fori": lambda m, l, x: l.fori_loop(0, 3, lambda i, c: (m.zeros(3) + i, c[0] * x), (x, x))[1],
}  # fmt: skip


@pytest.mark.parametrize("name", FRESH)
def test_fresh_carries_end(name):
    def derivatives(mod, m, l):
        f = lambda x: sum(m.sum(m.cos(y)) for y in mod.tree_util.tree_leaves(FRESH[name](m, l, x)))  # noqa: E731
        return mod.grad(f)(W), mod.grad(lambda x: m.sum(mod.grad(f)(x) * W))(W), mod.jit(mod.jacfwd(f))(W)

    for got, want in zip(derivatives(mw, mnp, lax), derivatives(jax, jax.numpy, jax.lax), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_random_keys_among_the_operands_of_branches_that_entries_choose():
    """Keys become words along a further batch axis, along which numbers are not batched."""

    def f(i, key, x):
        drawn = lambda k, x: (k, mw.random.normal(k) + x)  # noqa: E731
        return lax.cond(i > 0, drawn, lambda k, x: (mw.random.split(k)[0], x), key, x)

    keys, taken, x = mw.random.split(mw.random.key(0), 4), np.array([0, 1, 0, 1]), np.arange(4, dtype=np.float32)
    got_keys, got = mw.jit(mw.vmap(f))(taken, keys, x)
    for n, key in enumerate(keys):
        want_key, want = f(taken[n], key, x[n])
        assert np.array_equal(mw.random.key_data(got_keys[n]), mw.random.key_data(want_key))
        np.testing.assert_allclose(got[n], want, rtol=1e-6)


def test_what_all_branches_return_as_it_is_is_not_batched():
    """As in JAX, which takes such results out of the ``cond``."""
    y = np.arange(3, dtype=np.float32)

    def f(p, x, y):
        return mw.lax.cond(p == 0, lambda x, y: (x + 1, y, x), lambda x, y: (x * 2, y, x), x, y)

    xs, predicates = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([0, 1, 1, 0])
    outs = mw.vmap(f, in_axes=(0, 0, None), out_axes=(0, None, 0))(predicates, xs, y)
    changed = np.where(predicates[:, None] == 0, xs + 1, xs * 2)
    for got, want in zip(outs, (changed, y, xs), strict=True):
        np.testing.assert_array_equal(got, want)
    same = mw.vmap(lambda p, y: mw.lax.switch(p, [lambda y: y] * 3, y), in_axes=(0, None), out_axes=None)
    np.testing.assert_array_equal(same(predicates, y), y)
