"""Derivatives of functions with integer and bool arguments and results: ``float0``; ``jax`` is the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp

X = np.array([0.5, 1.0, 2.0], np.float32)
N = np.array([2, 1, 0], np.int32)
LIBRARIES = ((mw, mnp), (jax, jnp))


def none(*shape):
    return np.zeros(shape, mw.float0)


def mixed(x, n):
    return x * n, n + 1, x > 1


def scanned(m, p):
    def step(c, y):
        return (c[0] * y[0] + c[1], c[1] + y[1]), (c[1], c[0] > 1)

    return lambda x, n: m.lax.scan(step, (x[0], n[0]), (x, n))


def looped(m, p):
    step = lambda c: (c[0] * 2, c[1] + 1, ~c[2])  # noqa: E731
    return lambda x, n: m.lax.while_loop(lambda c: c[1] < 5, step, (x, n[0], n > 1))


def chosen(m, p):
    return lambda x, n: m.lax.cond(n[0] > 1, lambda a, b: (a * b, b), lambda a, b: (a, b + 1), x, n)


def own_jvp(m, p):
    f = m.custom_jvp(lambda x, n: (x * n, n))

    def rule(primals, tangents):
        assert tangents[1].dtype == mw.float0 and tangents[1].shape == np.shape(primals[1])
        return f(*primals), (7 * tangents[0], tangents[1])

    f.defjvp(rule)
    return f


def own_vjp(m, p, by_integers=None):
    f = m.custom_vjp(lambda x, n: (x * n, n + 1))

    def bwd(x, ct):
        assert ct[1].dtype == mw.float0 and ct[1].shape == np.shape(x)
        return 5 * ct[0], by_integers

    f.defvjp(lambda x, n: (f(x, n), x), bwd)
    return f


def pushed(f):
    return lambda m, p: lambda x, n: m.jvp(f(m, p), (x, n), (x, none(3)))


def linear(f):
    return lambda m, p: lambda x, n: m.linearize(f(m, p), x, n)[1](x, none(3))


def pulled(f, *cts):
    def make(m, p):
        def run(x, n):
            out, pull = m.vjp(f(m, p), x, n)
            return pull(m.tree.map(lambda y: y + 1 if y.dtype == X.dtype else none(*y.shape), out))

        return run

    return make


PROGRAMS = {
    "op": lambda m, p: mixed, "scan": scanned, "while": looped, "cond": chosen, "custom_jvp": own_jvp,
    "custom_vjp": own_vjp,
}  # fmt: skip
CASES = {
    f"{how.__name__} {name}": how(f)
    for name, f in PROGRAMS.items()
    for how in (pushed, linear, pulled)
    if (how, name) != (pulled, "while") and (how == pulled or name != "custom_vjp")
}
CASES |= {
    "jit jvp": lambda m, p: m.jit(pushed(PROGRAMS["op"])(m, p)),
    "jit vjp": lambda m, p: m.jit(pulled(own_vjp)(m, p)),
    "argument": lambda m, p: lambda x, n: m.jit(lambda t: m.jvp(mixed, (x, n), (x, t)))(none(3)),
    "argument of inner": lambda m, p: lambda x, n: m.jit(m.jit(lambda t: m.jvp(mixed, (x, n), (x, t))))(none(3)),
    "argument of stage": lambda m, p: lambda x, n: m.jit(lambda t: (t, x)).lower(none(3)).compile()(none(3)),
    "vmap jvp": lambda m, p: lambda x, n: m.vmap(lambda *a: (a[2], m.jvp(mixed, a[:2], (a[0], a[2]))))(x, n, none(3)),
    "vmap jit jvp": lambda m, p: lambda x, n: m.vmap(
        m.jit(lambda x, n, t: m.jvp(mixed, (x, n), (x, t))), in_axes=(1, 1, 1), out_axes=(1, -1)
    )(x[:, None] + x, n[:, None] + n, none(3, 3)),
    "vmap custom_jvp": lambda m, p: m.vmap(m.grad(lambda x, n: own_jvp(m, p)(x, n)[0])),
    "vmap custom_vjp": lambda m, p: m.vmap(m.grad(lambda x, n: own_vjp(m, p)(x, n)[0])),
    "float0 cotangent": lambda m, p: m.grad(lambda x, n: own_vjp(m, p, none(3))(x, n)[0].sum()),
    "scan of custom_vjp": lambda m, p: m.grad(
        lambda x, n: m.lax.scan(lambda c, k: (own_vjp(m, p)(c, k)[0], c), x.sum(), n)[0]
    ),
    "linear_transpose": lambda m, p: lambda x, n: m.linear_transpose(lambda k: p.cumsum(3 * k), n)(n),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_like_jax(name):
    found, wanted = (CASES[name](m, p)(p.asarray(X), p.asarray(N)) for m, p in LIBRARIES)
    assert mw.tree.map(np.shape, found) == jax.tree.map(np.shape, wanted)
    for got, want in zip(mw.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (got.dtype == mw.float0) == (want.dtype == jax.float0)
        if got.dtype != mw.float0:
            np.testing.assert_allclose(got, want, rtol=1e-6)


def test_misused(refuses):
    for run in (lambda t: mw.jvp(mixed, (X, N), (X, t)), lambda t: mw.linearize(mixed, X, N)[1](X, t)):
        with refuses(TypeError, "mixed", "tangents[1] has type i32[3]", "numpy.zeros((3,), float0)"):
            run(N)
        with refuses(TypeError, "tangents[1] has type float0[2]", "primals[1] has type i32[3]", "equal"):
            run(none(2))
    f = mw.custom_jvp(lambda x, n: (x, n))
    f.defjvp(lambda primals, tangents: (primals, (tangents[0], primals[1])))
    with refuses(TypeError, "tangent of output[1] of type i32[3]", "numpy.zeros(shape, float0)"):
        mw.jvp(f, (X, N), (X, none(3)))
    for f, ins, outs in ((lambda n: n * 2.0, "i32[3]", "f32[3]"), (lambda n: n > 0, "i32[3]", "bool[3]")):
        with refuses(TypeError, "linear_transpose", f"takes {ins} and returns {outs}"):
            mw.linear_transpose(f, N)(N)
