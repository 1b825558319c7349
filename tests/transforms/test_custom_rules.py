"""Batching rules, gradients and transposes of the user's own, and what derivatives keep; ``jax`` as oracle."""

import functools

import jax
import jax.ad_checkpoint
import jax.custom_batching
import jax.custom_derivatives
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import errors
from meshwright.transforms.residuals import saved_residuals

X = np.arange(1, 7, dtype=np.float32).reshape(2, 3) / 3
Y = np.array([2.0, 5.0, -1.0], np.float32)
LIBRARIES = ((mw, mnp), (jax, jnp))


def same(make, *args, rtol=1e-5):
    """What ``make(library, its numpy)`` gives on ``args`` is the same for both."""
    found, wanted = (make(library, np_)(*args) for library, np_ in LIBRARIES)
    for got, want in zip(mw.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, want, rtol=rtol)
        assert np.shape(got) == np.shape(want)


# --- custom_vmap --------------------------------------------------------------------------------------------
def with_rule(library, np_):
    """Its batched form is distinct from its meaning, so that one sees which was used."""

    @library.custom_batching.custom_vmap
    def f(x, tree):
        return {"a": np_.sin(x) * tree["y"], "b": tree["y"] + 0.0}

    @f.def_vmap
    def rule(axis_size, in_batched, xs, tree):
        x_batched, tree_batched = in_batched
        assert isinstance(x_batched, bool) and set(tree_batched) == {"y"}
        out = np_.cos(xs) * tree["y"] * axis_size
        return {"a": out, "b": tree["y"] + 100.0}, {"a": True, "b": tree_batched["y"]}

    return f


@pytest.mark.parametrize("in_axes, values", [((0, None), (X[:, 0], Y[0])), ((0, 0), (Y, Y + 1))], ids=["x", "both"])
def test_custom_vmap_rules(in_axes, values):
    def make(library, np_):
        f = with_rule(library, np_)
        return library.vmap(lambda x, y: f(x, {"y": y}), in_axes=in_axes)

    same(make, *values)
    same(lambda library, np_: library.jit(make(library, np_)), *values)
    same(lambda library, np_: lambda x, y: with_rule(library, np_)(x, {"y": y}), *(np.ravel(v)[0] for v in values))


def test_custom_vmap_axes_other_than_the_first():
    def make(library, np_):
        @library.custom_batching.custom_vmap
        def f(x):
            return x.sum()

        @f.def_vmap
        def rule(axis_size, in_batched, xs):
            assert xs.shape == (3, 2) and axis_size == 3
            return xs[:, 0] - xs[:, 1], True

        return library.vmap(f, in_axes=1)

    same(make, X)


def test_custom_vmap_forward_derivatives():
    def make(library, np_):
        f = with_rule(library, np_)
        g = lambda x, y: f(x, {"y": y})["a"]  # noqa: E731
        along = lambda x, t: library.jvp(lambda v: g(v, 3.0), (x,), (t,))  # noqa: E731
        return library.vmap(along)

    same(make, Y, Y * 2)
    same(
        lambda library, np_: library.jacfwd(
            lambda x: library.vmap(lambda v: with_rule(library, np_)(v, {"y": 2.0}))(x)
        ),
        Y,
    )


def test_custom_vmap_with_custom_vjp():
    def make(library, np_):
        @library.custom_vjp
        @library.custom_batching.custom_vmap
        def f(x, y):
            return np_.sin(x) * y

        f.fun.def_vmap(lambda size, batched, xs, ys: (np_.cos(xs) * ys, True))
        f.defvjp(lambda x, y: (f(x, y), (np_.cos(x), np_.sin(x), y)), lambda r, g: (r[0] * g * r[2], r[1] * g))
        return lambda x, y: (library.vmap(f)(x, y), library.grad(f)(x[0], y[0]), library.vmap(library.grad(f))(x, y))

    same(make, Y, Y + 3)


def test_sequential_vmap():
    def make(library, np_):
        f = library.custom_batching.sequential_vmap(lambda x, t: {"s": x.sum() * t["k"], "c": np_.cumsum(x)})
        return library.vmap(f, in_axes=(1, None))

    same(make, X, {"k": np.float32(4)})
    same(lambda library, np_: library.jit(library.vmap(make(library, np_), in_axes=(None, 0))), X, {"k": Y})


def test_custom_vmap_misused(refuses):
    f = mw.custom_batching.custom_vmap(lambda x: x * 2)
    with refuses(errors.ArgumentError, "custom_vmap", "no rule", "def_vmap"):
        f(1.0)

    def batched(rule):
        f.def_vmap(rule)
        return mw.vmap(f)(Y)

    with refuses(TypeError, "custom_vmap", "pair (out, out_batched)"):
        batched(lambda size, which, x: x)
    with refuses(TypeError, "custom_vmap", "structure", "(*, *)"):
        batched(lambda size, which, x: ((x, x), True))
    with refuses(errors.ShapeError, "f32[2]", "expected f32[3]", "out_batched is True", "size 3"):
        batched(lambda size, which, x: (x[:2], True))
    with refuses(errors.ShapeError, "f32[3]", "expected f32[]", "out_batched is False"):
        batched(lambda size, which, x: (x, False))
    f.def_vmap(lambda size, which, x: (x * 2, True))
    with refuses(errors.DifferentiationError, "custom_vmap", "reverse-mode", "custom_vjp"):
        mw.grad(f)(1.0)

    def closes_over(x):
        g = mw.custom_batching.custom_vmap(lambda y: x * y)
        g.def_vmap(lambda size, which, y: (y, True))
        return g(2.0)

    with refuses(errors.RuleError, "closes over", "argument"):
        mw.vmap(closes_over)(Y)


# --- custom_gradient, linear_call, fwd_and_bwd --------------------------------------------------------------
def test_custom_gradient():
    def make(library, np_):
        @library.custom_gradient
        def f(x, tree):
            s = np_.sin(x)
            return {"out": s * tree["k"]}, lambda ct: (ct["out"] * s * 10, {"k": ct["out"].sum() * 7})

        def scalar(x, k):
            return f(x, {"k": k})["out"].sum()

        both = library.value_and_grad(scalar, argnums=(0, 1))
        return lambda x, k: (both(x, k), library.jit(both)(x, k), library.vmap(both, in_axes=(0, None))(x, k))

    same(make, X, np.float32(3))


def test_custom_gradient_of_one_argument_and_closures():
    def make(library, np_):
        def outer(x, w):
            @library.custom_gradient
            def f(v):
                return v**2, lambda ct: ct * 5 * v

            return f(x) * w

        return library.grad(outer, argnums=(0, 1))

    same(make, 2.0, 3.0)


def test_custom_gradient_misused(refuses):
    with refuses(errors.DifferentiationError, "custom_gradient", "pair (output, rule)"):
        mw.custom_gradient(lambda x: x)(1.0)
    with refuses(errors.DifferentiationError, "f32[]", "f32[3]"):
        mw.grad(mw.custom_gradient(lambda x: (x.sum(), lambda ct: ct)))(Y)


def test_linear_call():
    def make(library, np_):
        call = library.custom_derivatives.linear_call
        scaled = lambda x, s: call(lambda r, v: v / r["s"], lambda r, ct: ct * r["s"] * 100, {"s": s}, x)  # noqa: E731

        def results(x, s):
            t = library.linear_transpose(functools.partial(scaled, s=s), x)
            twice = library.linear_transpose(lambda ct: t(ct)[0], x)
            push = lambda v: library.jvp(lambda u: scaled(u, s), (v,), (v * 3,))  # noqa: E731
            return (
                scaled(x, s), t(x), twice(x), push(x), library.grad(lambda v: scaled(v, s).sum())(x),
                library.jit(scaled)(x, s),
            )  # fmt: skip

        return results

    same(make, Y, np.float32(4))


def test_linear_call_in_batches():  # which JAX does not have
    def scaled(x, s):
        return mw.custom_derivatives.linear_call(lambda r, v: v / r, lambda r, ct: ct * r * 100, s, x)

    np.testing.assert_allclose(mw.vmap(scaled, in_axes=(1, None), out_axes=1)(X, 4.0), X / 4)
    np.testing.assert_allclose(mw.vmap(mw.grad(scaled), in_axes=(None, 0))(2.0, Y), Y * 100)
    np.testing.assert_allclose(mw.vmap(mw.grad(scaled))(Y, Y + 7), (Y + 7) * 100)


def test_linear_call_misused(refuses):
    call = mw.custom_derivatives.linear_call
    with refuses(errors.DifferentiationError, "fun_transpose", "f32[3]", "f32[]"):
        call(lambda r, x: x, lambda r, ct: ct.sum(), (), Y)
    with refuses(errors.DifferentiationError, "linear_call", "residuals", "stop_gradient"):
        mw.grad(lambda s: call(lambda r, x: x * r, lambda r, ct: ct * r, s, 2.0))(3.0)


@pytest.mark.parametrize("jitted", [True, False])
def test_fwd_and_bwd(jitted):
    def f(x, w, n):
        return {"y": (x @ w) ** n}, x.sum()

    fwd, bwd = mw.fwd_and_bwd(f, argnums=(0, 1), has_aux=True, jitted=jitted)
    jax_fwd, jax_bwd = jax.fwd_and_bwd(f, argnums=(0, 1), has_aux=True)
    for scale in (1.0, 2.0):
        out, residuals, aux = fwd(X * scale, X.T, 2.0)
        want, jax_residuals, jax_aux = jax_fwd(X * scale, X.T, 2.0)
        ct = {"y": np.array([[1, 2], [3, 5]], np.float32)}
        np.testing.assert_allclose(out["y"], want["y"], rtol=1e-5)
        np.testing.assert_allclose(aux, jax_aux, rtol=1e-5)
        for got, wanted in zip(bwd(residuals, ct), jax_bwd(jax_residuals, ct), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5)
    single = mw.fwd_and_bwd(lambda x: x**3, 0)
    assert float(single[1](single[0](2.0)[1], 1.0)) == 12.0


def test_bwd_is_compiled_once():
    traces = []
    fwd, bwd = mw.fwd_and_bwd(lambda x: (traces.append(1), mnp.sin(x) * x)[1], 0)
    for x in (1.0, 2.0, 3.0):
        bwd(fwd(x)[1], 1.0)
    assert len(traces) == 1 and len(bwd._programs) == 1


def test_fwd_and_bwd_misused(refuses):
    fwd, bwd = mw.fwd_and_bwd(lambda x: x * 2, 0)
    with refuses(TypeError, "vjp", "structure"):
        bwd(fwd(1.0)[1], (1.0, 2.0))
    with refuses(ValueError, "fwd_and_bwd", "argument 3"):
        mw.fwd_and_bwd(lambda x: x * 2, 3)[0](1.0)


# --- what is kept -------------------------------------------------------------------------------------------
def test_saved_residuals(capsys):
    def f(x, y):
        return mw.jit(lambda v: mnp.sin(v) * y)(x).sum()

    kept = [(origin.split(" from ")[0], str(aval)) for aval, origin in saved_residuals(f, X, Y)]
    assert {("output of sin", "f32[2,3]"), ("output of cos", "f32[2,3]")} < set(kept) and len(kept) == 3
    keep = mw.checkpoint(lambda x: mnp.sin(mnp.sin(x)), policy=mw.checkpoint_policies.nothing_saveable)
    mw.ad_checkpoint.print_saved_residuals(keep, X)
    assert capsys.readouterr().out == "f32[2,3] from the argument x\n"


def test_names_of_values_are_strings(refuses):
    with refuses(TypeError, "checkpoint_name", "string", "3", "int"):
        mw.checkpoint_name(X, 3)


# --- float0 -------------------------------------------------------------------------------------------------
def loss(p):
    return (p["w"] * p["n"]).sum() * p["flag"]


P = {"w": np.ones(3, np.float32), "n": np.arange(3), "flag": True}


def test_derivatives_by_integers_are_float0():
    ours, theirs = mw.grad(loss, allow_int=True)(P), jax.grad(loss, allow_int=True)(P)
    for key in P:
        assert np.asarray(ours[key]).dtype == np.asarray(theirs[key]).dtype and ours[key].shape == theirs[key].shape
    assert ours["n"].dtype == mw.float0 == jax.float0
    (ct,) = mw.vjp(lambda n: n * 2.0, 3)[1](1.0)
    assert ct.dtype == mw.float0


def test_float0_goes_through_transformations():
    value, gradient = mw.jit(mw.value_and_grad(loss, allow_int=True))(P)
    assert float(value) == 3.0 and gradient["n"].dtype == mw.float0 and gradient["n"].shape == (3,)
    np.testing.assert_array_equal(gradient["w"], [0, 1, 2])
    lowered = mw.jit(mw.grad(loss, allow_int=True)).lower(P).compile()(P)
    assert lowered["flag"].dtype == mw.float0
    many = {"w": np.ones((4, 3), np.float32), "n": np.ones((3, 4), int), "flag": True}
    axes = {"w": 0, "n": 1, "flag": None}
    found = mw.vmap(mw.grad(loss, allow_int=True), in_axes=(axes,))(many)
    wanted = jax.vmap(jax.grad(loss, allow_int=True), in_axes=(axes,))(many)
    assert mw.tree.map(np.shape, found) == jax.tree.map(np.shape, wanted)
    assert found["n"].dtype == mw.float0
    second = mw.grad(lambda p: mw.grad(loss, allow_int=True)(p)["w"].sum(), allow_int=True)(P)
    np.testing.assert_array_equal(second["w"], 0)


def test_values_that_are_no_arrays(refuses):
    with refuses(TypeError, "device_put: x['a'][1]", "'text'"):
        mw.device_put({"a": [1, "text"]})
    with refuses(TypeError, "device_put", "object"):
        mw.device_put(object())
    thing = object()
    assert mw.device_get({"a": ["text", thing, 2]}) == {"a": ["text", thing, 2]}, "as JAX, which asks for __array__"


def test_aliases():
    assert mw.jacobian is mw.jacrev
    assert mw.ad_checkpoint.checkpoint_name is mw.checkpoint_name
    assert mw.custom_derivatives.closure_convert is mw.closure_convert


def test_functions_with_a_rule_for_vmap_return_arrays():
    from meshwright.custom_batching import custom_vmap, sequential_vmap

    doubled = custom_vmap(lambda x: {"y": 2 * x})
    doubled.def_vmap(lambda size, batched, x: ({"y": 2 * x}, {"y": batched[0]}))
    outs = doubled(1.5)["y"], sequential_vmap(lambda x: x + 1)(2)
    assert [(x.shape, x.dtype.name, x.weak_type) for x in outs] == [((), "float32", True), ((), "int32", True)]
