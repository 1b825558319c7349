"""Rules of ``custom_jvp`` and ``custom_vjp``: they run on values where there are values, close over traced values of
any enclosing transformation, and may call their own function. Expected derivatives are those of the plain function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.errors import DifferentiationError, TracerBoolConversionError

X, V = np.float32(2), np.array([2, -3, 5], np.float32)


# --- on values ----------------------------------------------------------------------------------------------
def kinked(x):
    if x > 0:
        return x * x
    return -x


def by_jvp(form):
    f = mw.custom_jvp(kinked)

    def rule(primals, tangents):
        ((x,), (t,)) = primals, tangents
        return f(x), (2 * x * t if x > 0 else -t)

    if form == "defjvps":
        f.defjvps(lambda t, out, x: 2 * x * t if x > 0 and out > 0 else -t)
    else:
        f.defjvp(rule)
    return f


def by_vjp(form):
    f = mw.custom_vjp(kinked)

    def fwd(x):
        return (f(x) if form == "calls itself" else x * x if x > 0 else -x), x

    f.defvjp(fwd, lambda x, ct: (2 * x * ct if x > 0 and ct > 0 else -ct,))
    return f


KINKED = {
    "jvp": by_jvp("defjvp"),
    "jvps": by_jvp("defjvps"),
    "vjp": by_vjp("plain"),
    "vjp, calls itself": by_vjp("calls itself"),
}
BOTH_MODES = ("jvp", "jvps")
ON_VALUES = {
    "call": (lambda f, x: f(x), lambda x: x * x if x > 0 else -x),
    "grad": (lambda f, x: mw.grad(f)(x), lambda x: 2 * x if x > 0 else -1),
    "vjp": (lambda f, x: mw.vjp(f, x)[1](np.float32(1))[0], lambda x: 2 * x if x > 0 else -1),
    "grad of grad": (lambda f, x: mw.grad(mw.grad(f))(x), lambda x: 2 if x > 0 else 0),
    "grad of product": (lambda f, x: mw.grad(lambda y: f(y) * y)(x), lambda x: 3 * x * x if x > 0 else -2 * x),
    "jvp": (lambda f, x: mw.jvp(f, (x,), (np.float32(1),))[1], lambda x: 2 * x if x > 0 else -1),
    "linearize": (lambda f, x: mw.linearize(f, x)[1](np.float32(1)), lambda x: 2 * x if x > 0 else -1),
}


@pytest.mark.parametrize("how", ON_VALUES)
@pytest.mark.parametrize("kind", KINKED)
def test_functions_and_rules_decide_by_values(kind, how):
    if how in ("jvp", "linearize") and kind not in BOTH_MODES:
        pytest.skip("reverse mode only")
    run, want = ON_VALUES[how]
    for x in (np.float32(3), np.float32(-2)):
        np.testing.assert_allclose(run(KINKED[kind], x), want(float(x)))


@pytest.mark.parametrize("transform", [mw.jit, mw.vmap, mw.checkpoint])
def test_traced_values_decide_nothing(refuses, transform):
    with refuses(TracerBoolConversionError, "where"):
        transform(KINKED["jvp"])(V if transform is mw.vmap else X)


# --- over traced values -------------------------------------------------------------------------------------
def jvp_of(y, itself):
    f = mw.custom_jvp(lambda x: mnp.sin(x) * y)
    f.defjvp(lambda p, t: ((f(*p) if itself else mnp.sin(p[0]) * y), t[0] * mnp.cos(p[0]) * y))
    return f


def vjp_of(y, itself):
    f = mw.custom_vjp(lambda x: mnp.sin(x) * y)
    f.defvjp(lambda x: ((f(x) if itself else mnp.sin(x) * y), mnp.cos(x)), lambda c, ct: (ct * c * y,))
    return f


def backward_alone(y, itself):
    f = mw.custom_vjp(lambda x, z: mnp.sin(x) * z)
    f.defvjp(lambda x, z: (mnp.sin(x) * z, mnp.cos(x)), lambda c, ct: (ct * c * y, None))
    return lambda x: f(x, lax.stop_gradient(y))


def plain(y, itself):
    return lambda x: mnp.sin(x) * y


MADE = {"jvp": jvp_of, "vjp": vjp_of, "backward": backward_alone}
grad = mw.grad

#: functions of a maker ``m`` of the function of x over y; all are derivatives by x
ENCLOSING = {
    "jit": lambda m: mw.jit(lambda y: grad(lambda x: m(y)(x))(X))(3.0),
    "jit of vmap": lambda m: mw.jit(mw.vmap(lambda y: grad(lambda x: m(y)(x))(X)))(V),
    "vmap": lambda m: mw.vmap(lambda y: grad(lambda x: m(y)(x))(X))(V),
    "vmap inside": lambda m: grad(lambda x: mnp.sum(mw.vmap(lambda z: m(3.0)(z) * z)(mnp.stack([x, 2 * x]))))(X),
    "vmap between": lambda m: mw.vmap(lambda y: grad(lambda x: mnp.sum(mw.vmap(lambda z: m(y)(z))(x)))(V))(V),
    "jit inside": lambda m: mw.jit(lambda y: grad(lambda x: mw.jit(lambda z: m(y)(z))(x))(X))(3.0),
    "jit closes": lambda m: grad(lambda x: mw.jit(lambda y: m(y)(x))(3.0))(X),
    "jit of grad of jit": lambda m: mw.jit(grad(lambda x: mw.jit(lambda y: m(y)(x))(3.0)))(X),
    "scan": lambda m: mw.jit(lambda y: grad(lambda x: lax.scan(lambda c, _: (m(y)(c), None), x, None, length=3)[0])(X))(
        3.0
    ),
    "scan over": lambda m: grad(lambda x: lax.scan(lambda c, y: (c + m(y)(x), None), 0.0, V)[0])(X),
    "cond": lambda m: grad(lambda x: lax.cond(True, lambda y: m(y)(x), lambda y: y, 3.0))(X),
    "checkpoint": lambda m: mw.jit(lambda y: grad(mw.checkpoint(lambda x: m(y)(x)))(X))(3.0),
    "vmap of jit": lambda m: mw.vmap(lambda y: mw.jit(lambda v: grad(lambda x: m(y)(x))(v))(X))(V),
    "grad of vmap": lambda m: grad(lambda x: mnp.sum(mw.vmap(lambda y: m(y)(x))(V)))(X),
}
#: further derivatives, by y or by x again, which go through the rules
FURTHER = {
    "grad": lambda m: grad(lambda y: grad(lambda x: m(y)(x))(X))(3.0),
    "jit of grad": lambda m: mw.jit(grad(lambda y: grad(lambda x: m(y)(x))(X)))(3.0),
    "by x again": lambda m: grad(grad(lambda x: m(3.0)(x)))(X),
    "by x again, in jit": lambda m: mw.jit(lambda y: grad(grad(lambda x: m(y)(x)))(X))(3.0),
}


@pytest.mark.parametrize("itself", [False, True], ids=["", "calls itself"])
@pytest.mark.parametrize("case", [*ENCLOSING, *FURTHER])
@pytest.mark.parametrize("kind", MADE)
def test_rules_close_over_traced_values(kind, case, itself):
    run = {**ENCLOSING, **FURTHER}[case]
    want = run(lambda y: plain(y, itself))
    if (kind, case) in BAD or (kind, case, itself) in BAD:
        with pytest.raises(DifferentiationError):
            run(lambda y: MADE[kind](y, itself))
        return
    np.testing.assert_allclose(run(lambda y: MADE[kind](y, itself)), want, rtol=1e-5)


BAD = {
    # By y the function's own derivative is wanted, while its rule calls it.
    ("vjp", "grad", True),
    ("vjp", "jit of grad", True),
}


def test_what_is_closed_over_is_differentiated():
    for run in (
        lambda m: grad(lambda y: m(y)(X))(3.0),
        lambda m: grad(lambda y: m(y)(y))(3.0),
        lambda m: grad(lambda y: mw.jit(lambda z: m(z)(y))(2 * y))(3.0),
        lambda m: grad(lambda x: lax.scan(lambda c, _: (m(c)(x), None), x, None, length=2)[0])(X),
        lambda m: grad(lambda x: mnp.sum(mw.vmap(lambda y: m(y)(x))(x * V)))(X),
        lambda m: mw.vmap(lambda v: grad(lambda y: mw.vmap(lambda x: m(y)(x))(V).sum())(v))(V),
    ):
        for itself in (False, True):
            want = run(lambda y: plain(y, False))
            np.testing.assert_allclose(run(lambda y, i=itself: jvp_of(y, i)), want, rtol=1e-5)
            with pytest.raises(DifferentiationError, match="closes over"):
                run(lambda y, i=itself: vjp_of(y, i))


# --- under vmap, with results that depend on nothing ---------------------------------------------------------
@pytest.mark.parametrize("jitted", [False, True])
def test_constant_functions_with_derivatives(jitted):
    wrap = mw.jit if jitted else (lambda f: f)
    straight = mw.custom_jvp(lambda x: 1.0)
    straight.defjvp(lambda p, t: (mnp.float32(1.0), 5 * t[0]))
    through = mw.custom_vjp(lambda x: mnp.float32(1.0))
    through.defvjp(lambda x: (mnp.float32(1.0), None), lambda _, ct: (5 * ct,))
    for f in (straight, through):
        got = wrap(mw.grad(lambda v, f=f: mnp.sum(mw.vmap(f)(v) * V)))(V)
        np.testing.assert_allclose(got, 5 * V)
        np.testing.assert_allclose(wrap(mw.vmap(mw.grad(f)))(V), [5, 5, 5])


# --- optimize_remat -----------------------------------------------------------------------------------------
def product(optimize, itself):
    f = mw.custom_vjp(lambda x, y: mnp.sin(x) * y)
    f.defvjp(
        lambda x, y: ((f(x, y) if itself else mnp.sin(x) * y), (mnp.cos(x), mnp.sin(x), y)),
        lambda r, ct: (ct * r[0] * r[2], ct * r[1]),
        optimize_remat=optimize,
    )
    return f


REMAT = {
    "checkpoint": lambda f: grad(mw.checkpoint(lambda x: f(x, 2.0)))(X),
    "by both": lambda f: grad(mw.checkpoint(f), argnums=(0, 1))(X, np.float32(3)),
    "twice": lambda f: grad(mw.checkpoint(mw.checkpoint(lambda x: f(mnp.sin(x), 2.0) * x)))(X),
    "policy": lambda f: grad(
        mw.checkpoint(lambda x: f(mnp.sin(x), 2.0) * x, policy=mw.checkpoint_policies.dots_saveable)
    )(X),
    "scan": lambda f: grad(lambda x: lax.scan(mw.checkpoint(lambda c, _: (f(c, 2.0), None)), x, None, length=3)[0])(X),
    "vmap": lambda f: mw.vmap(grad(mw.checkpoint(lambda x: f(x, 2.0))))(V),
    "grad of grad": lambda f: grad(grad(mw.checkpoint(lambda x: f(x, 2.0))))(X),
    "no derivative": lambda f: mw.checkpoint(lambda x: f(x, 2.0))(X),
}


@pytest.mark.parametrize("jitted", [False, True], ids=["", "jit"])
@pytest.mark.parametrize("itself", [False, True], ids=["", "calls itself"])
@pytest.mark.parametrize("case", REMAT)
def test_optimized_rematerialization(case, itself, jitted):
    def run(f):
        return mw.jit(lambda: REMAT[case](f))() if jitted else REMAT[case](f)

    want = run(lambda x, y: mnp.sin(x) * y)
    for got, expected in zip(mw.tree.leaves(run(product(True, itself))), mw.tree.leaves(want), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_batching_rules_are_set_through_a_function_with_derivatives():
    """As JAX documents custom_vmap for reverse mode: custom_vjp outside, and its rules set one after the other."""

    def program(m, n):
        @m.custom_vjp
        @m.custom_batching.custom_vmap
        def f(x, y):
            return n.sin(x) * y

        @f.def_vmap
        def rule(axis_size, in_batched, xs, ys):
            return n.cos(xs) * ys, True

        f.defvjp(lambda x, y: (f(x, y), (x, y)), lambda res, g: (3 * g * res[1], g * res[0]))
        x, y = n.arange(3.0), n.arange(2.0, 5.0)
        return m.vmap(f)(x, y), f(x[1], y[2]), m.grad(f, (0, 1))(x[1], y[2])

    for got, want in zip(mw.tree.leaves(program(mw, mnp)), jax.tree.leaves(program(jax, jnp)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_what_a_function_with_derivatives_lacks():
    plain = mw.custom_jvp(lambda x: x)
    assert not hasattr(plain, "def_vmap") and not hasattr(mw.custom_vjp(plain), "def_vmap")
