"""Function transformations against jax: arguments in all forms, and what wrong uses say."""

from __future__ import annotations

import functools

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_derivatives import SymbolicZero as JaxZero

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P

RNG = np.random.default_rng(3)
X = RNG.normal(size=(4, 3)).astype(np.float32)
Y = RNG.normal(size=3).astype(np.float32)
PAIR = ((mw, mnp), (jax, jnp))


def close(got, want):
    assert str(mw.tree.structure(got)).split("(", 1)[1].count("*") == jax.tree.structure(want).num_leaves
    for a, b in zip(mw.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=1e-6)


def both(run):
    close(*(run(m, n) for m, n in PAIR))


# --- derivatives --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("argnums", [0, 1, -1, (0,), (0, 2), (2, 0)])
def test_argnums(argnums):
    def run(m, n):
        def f(x, y, tree, scale=1.0):
            return (n.sin(x) * y * tree["a"] * scale).sum() + tree["b"] ** 2

        return m.value_and_grad(f, argnums)(X, Y, {"a": Y * 2, "b": 3.0}, scale=2.0)

    both(run)


def test_aux_and_complex_and_integers():
    def f(n):
        return lambda x: ((n.exp(x) * x).sum(), {"aux": x * 2})

    both(lambda m, n: m.grad(f(n), has_aux=True)(Y))
    both(lambda m, n: m.value_and_grad(f(n), has_aux=True)(Y))
    both(lambda m, n: m.jvp(f(n), (Y,), (Y + 1,), has_aux=True))
    both(lambda m, n: m.vjp(f(n), Y, has_aux=True)[2])
    z = (Y + 1j * Y[::-1]).astype(np.complex64)
    both(lambda m, n: m.grad(lambda z: (n.sin(z) * z).sum(), holomorphic=True)(z))
    both(lambda m, n: m.grad(lambda z: (abs(z) ** 2).sum().real)(z))
    both(lambda m, n: m.vjp(lambda z: n.sin(z), z)[1](z)[0])
    both(lambda m, n: m.jacrev(lambda z: abs(z * z[::-1]))(z))
    assert mw.grad(lambda i: mnp.sin(1.0 * i), allow_int=True)(3).shape == ()


def test_linearize_and_linear_transpose():
    def run(m, n):
        y, push = m.linearize(lambda x, t: (n.sin(x) @ t["w"], x), X, {"w": Y})
        return y, push(X * 2, {"w": Y + 1}), push(X, {"w": Y})

    both(run)

    def transposed(m, n):
        f = m.linear_transpose(lambda x, y: {"out": X @ x + 2 * y, "x": x[:2]}, Y, np.ones(4, np.float32))
        return f({"out": X[:, 0], "x": Y[:2]})

    both(transposed)
    shape = mw.ShapeDtypeStruct((3,), "float32")
    close(
        mw.jit(mw.linear_transpose(lambda x: X @ x, shape))(X[:, 1]), jax.linear_transpose(lambda x: X @ x, Y)(X[:, 1])
    )


def test_vjp_of_several_outputs_and_zeros():
    def run(m, n):
        out, pull = m.vjp(lambda x, y: (x * y, {"c": n.cos(y)}), X, Y)
        return out, pull((X, {"c": Y}))

    both(run)
    both(lambda m, n: m.grad(lambda x, y: (y**2).sum())(X, Y))


# --- vmap ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("jitted", [False, True])
def test_vmap_axes(jitted):
    def run(m, n):
        def f(x, tree, s):
            return {"a": x @ tree["w"] * s, "b": (tree["u"], x)}

        g = m.vmap(f, in_axes=(1, {"w": None, "u": 0}, None), out_axes={"a": 0, "b": (None, -1)})
        return (m.jit(g) if jitted else g)(X, {"w": X[:, 0], "u": np.float32([2, 2, 2])}, 3.0)

    def fixed(m, n):
        return m.vmap(lambda x: x + m.lax.axis_index("i"), axis_name="i", in_axes=-1, out_axes=-1)(X)

    close(mw.vmap(lambda x, u: {"a": x @ X[:, 0], "b": (u, x)}, (1, 0), {"a": 0, "b": (0, -1)})(X, Y),
          jax.vmap(lambda x, u: {"a": x @ X[:, 0], "b": (u, x)}, (1, 0), {"a": 0, "b": (0, -1)})(X, Y))  # fmt: skip
    both(fixed)
    both(lambda m, n: m.vmap(lambda: n.arange(2), axis_size=4)())
    both(lambda m, n: m.vmap(lambda x, *, k: x * k, in_axes=0)(X, k=X))
    both(lambda m, n: m.vmap(m.vmap(lambda x, y: x * y, (0, None)), (None, 0))(Y, X[:, 0]))
    both(lambda m, n: m.vmap(m.grad(lambda x, w: n.tanh(x @ w)), (0, None))(X, Y))
    both(lambda m, n: m.vmap(lambda x: x - m.lax.pmean(x, "i"), axis_name="i")(X))
    with pytest.raises(mw.errors.ArgumentError, match="out_axes is None for a result that differs"):
        run(mw, mnp)


def test_spmd_axis_name_reaches_constraints_and_shard_map():
    mesh = mw.make_mesh((2, 4), ("data", "model"))
    x = np.arange(48, dtype=np.float32).reshape(2, 8, 3)

    def pinned(x):
        return lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P("model")))

    def spec_of(f):
        lowered = mw.jit(f).lower(x)
        (eqn,) = (e for e in lowered.program.jaxpr.eqns if e.op.name == "sharding_constraint")
        lowered.partition().verify(x)
        return eqn.op.sharding.spec

    assert spec_of(mw.vmap(pinned, spmd_axis_name="data")) == P(("data",), "model")
    assert spec_of(mw.vmap(pinned))[1] == "model" and "data" not in spec_of(mw.vmap(pinned))

    part = mw.shard_map(lambda x: x - lax.psum(x, "model"), mesh=mesh, in_specs=P("model"), out_specs=P("model"))
    plain, split = mw.vmap(part), mw.vmap(part, spmd_axis_name="data")
    np.testing.assert_array_equal(mw.jit(split)(x), mw.jit(plain)(x))
    names = [e.op.in_specs for e in mw.make_jaxpr(split)(x).eqns if e.op.name == "shard_map"]
    assert names == [(P(("data",), "model"),)]
    with pytest.raises(mw.errors.ShardingError, match="divide the mapped size 3"):
        mw.vmap(part, in_axes=2, spmd_axis_name="data")(x.transpose(1, 0, 2))


# --- custom rules -------------------------------------------------------------------------------------------
def test_custom_jvp_forms():
    def run(m, n):
        @functools.partial(m.custom_jvp, nondiff_argnums=(0, 2))
        def apply(f, x, power, y=1.0):
            return {"out": f(x) ** power * y}

        @apply.defjvp
        def _(f, power, primals, tangents):
            (x, y), (tx, ty) = primals, tangents
            return apply(f, x, power, y), {"out": 10 * tx + ty * 3}

        def g(x, y):
            return apply(n.sin, x, 3, y=y)["out"].sum()

        return m.value_and_grad(g, (0, 1))(Y, 2.0), m.vmap(m.grad(g), (0, None))(X, 1.0), m.jit(m.grad(g))(Y, 1.0)

    both(run)

    def sums(m, n):
        f = m.custom_jvp(lambda x, y, z: x * y + z)
        f.defjvps(lambda t, out, x, y, z: 5 * t * out, None, lambda t, out, x, y, z: t)
        return m.jvp(f, (Y, Y + 1, Y), (Y, Y, Y * 3)), m.grad(lambda y: f(Y, y, Y).sum())(Y)

    both(sums)


def test_custom_jvp_of_a_method():
    class Model:
        def __init__(self, scale):
            self.scale = scale

        @functools.partial(mw.custom_jvp, nondiff_argnums=(0,))
        def __call__(self, x):
            return x * self.scale

    def rule(self, primals, tangents):
        return self(*primals), tangents[0] * 100

    Model.__call__.defjvp(rule)
    assert float(mw.grad(Model(3.0))(2.0)) == 100


def test_symbolic_zeros_in_custom_jvp():
    def run(m, n, zero):
        seen = []
        f = m.custom_jvp(lambda x, y: (x * y, y))

        def rule(primals, tangents):
            (x, y), (tx, ty) = primals, tangents
            seen.append([type(t) is zero for t in (tx, ty)])
            tangent = tx * y if type(tx) is not zero else n.zeros_like(x)
            return f(x, y), (tangent, ty)

        f.defjvp(rule, symbolic_zeros=True)
        return m.grad(lambda x: f(x, Y)[0].sum())(Y), seen

    got, want = run(mw, mnp, mw.SymbolicZero), run(jax, jnp, JaxZero)
    close(got[0], want[0])
    assert got[1] == want[1] == [[False, True]]


@pytest.mark.parametrize("wrap", [lambda m, f: f, lambda m, f: m.jit(f), lambda m, f: m.vmap(f, (0, None))])
def test_symbolic_zeros_in_custom_vjp(wrap):
    def run(m, zero):
        seen = []
        f = m.custom_vjp(lambda x, y: (x * y, y + 1))

        def fwd(x, y):
            seen.append((x.perturbed, y.perturbed))
            return (x.value * y.value, y.value + 1), (x.value, y.value)

        def bwd(saved, cts):
            seen.append([type(ct) is zero for ct in cts])
            assert cts[1].shape == Y.shape and str(cts[1].dtype) == "float32"
            return cts[0] * saved[1] * 7, None

        f.defvjp(fwd, bwd, symbolic_zeros=True)
        return wrap(m, m.grad(lambda x, y: f(x, y)[0].sum()))(
            X if "vmap" in str(wrap.__code__.co_names) else Y, Y
        ), seen

    got, want = run(mw, mw.SymbolicZero), run(jax, JaxZero)
    close(got[0], want[0])
    assert got[1] == want[1] == [(True, False), [False, True]]


# --- checkpoint, jit and the rest ---------------------------------------------------------------------------
def test_offloading_keeps_values_in_the_memory_of_the_host():
    policies = mw.checkpoint_policies
    policy = policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["a"], names_which_can_be_offloaded=["b"]
    )
    dots = policies.offload_dot_with_no_batch_dims("device", "pinned_host")

    def f(x):
        return mnp.sin(mw.checkpoint_name(mnp.sin(x @ X.T), "b")).sum()

    for p in (policy, dots):
        assert "<host>[4,4] = memory_put[kind=pinned_host]" in str(
            mw.make_jaxpr(mw.grad(mw.checkpoint(f, policy=p)))(X)
        )
    want = mw.grad(f)(X)
    for p in (policy, dots):
        np.testing.assert_allclose(mw.grad(mw.checkpoint(f, policy=p))(X), want, rtol=1e-6)


def test_checkpoint_with_names_inside_scan():
    def loss(m, l, n, wrap):
        def body(c, w):
            return wrap(lambda c, w: n.tanh(m.name(n.sin(c @ w), "kept")))(c, w), None

        return lambda w: (l.scan(body, X, w)[0] ** 2).sum()

    class Ours:
        name = staticmethod(mw.checkpoint_name)

    class Theirs:
        name = staticmethod(jax.ad_checkpoint.checkpoint_name)

    w = RNG.normal(size=(5, 3, 3)).astype(np.float32)
    save = mw.checkpoint_policies.save_only_these_names("kept")
    ours = mw.grad(loss(Ours, lax, mnp, functools.partial(mw.checkpoint, policy=save)))
    close(ours(w), jax.grad(loss(Theirs, jax.lax, jnp, lambda f: f))(w))
    (forward, *_) = (e for e in mw.make_jaxpr(ours)(w).eqns if e.op.name == "scan")
    # the carry, and of each step the carry that goes in and the kept value
    assert [v.aval.shape for v in forward.outvars] == [(4, 3), (5, 4, 3), (5, 4, 3)]


def test_jit_of_static_and_inline():
    f = mw.jit(lambda x, n, flag=False: x**n if flag else x * n, static_argnums=1, static_argnames="flag")
    assert f(3.0, 2).item() == 6 and f(3.0, 2, flag=True).item() == 9
    inlined = mw.jit(lambda x: mnp.sin(x) * 2, inline=True)
    outer = mw.make_jaxpr(lambda x: inlined(x) + mw.jit(mnp.cos)(x))(1.0)
    kept = [e.op.name for e in outer.eqns]
    assert kept.count("jit") <= 2 and float(mw.jit(lambda x: inlined(x))(0.5)) == pytest.approx(2 * np.sin(0.5))
    shape = mw.eval_shape(lambda t, k: {"y": t["x"] @ X.T, "k": k}, {"x": mw.ShapeDtypeStruct((7, 3), "float32")}, 2)
    assert shape["y"].shape == (7, 4) and shape["k"].dtype == np.int32


# --- what wrong uses say ------------------------------------------------------------------------------------
def misuse():
    f = mw.custom_jvp(lambda x: x * 2)
    f.defjvp(lambda p, t: (p[0] * 2, t[0][None]))
    g = mw.custom_jvp(lambda x: x * 2)
    g.defjvp(lambda p, t: p[0])
    yield TypeError, ("scalar output", "shape (3,)", "jacrev"), lambda: mw.grad(lambda x: x * 2)(Y)
    yield TypeError, ("one scalar output", "has_aux=True"), lambda: mw.grad(lambda x: (x.sum(), x))(Y)
    yield TypeError, ("argument x", "int32", ".astype(float)"), lambda: mw.grad(lambda x: x * 2.0)(3)
    yield TypeError, ("params['n']", "int32"), lambda: mw.grad(lambda params: params["w"])({"w": 1.0, "n": 2})
    yield TypeError, ("real floating-point output", "holomorphic=True"), lambda: mw.grad(lambda x: x * 1j)(1.0)
    yield TypeError, ("needs complex inputs", "float32"), lambda: mw.grad(lambda x: x, holomorphic=True)(1.0)
    yield ValueError, ("argnums=2", "1 positional"), lambda: mw.grad(lambda x: x, argnums=2)(1.0)
    yield TypeError, ("pair (output, aux)",), lambda: mw.grad(lambda x: x, has_aux=True)(1.0)
    yield TypeError, ("expected a function", "3"), lambda: mw.grad(3)
    yield TypeError, ("f32[4,3]", "f32[3]", "must be equal"), lambda: mw.jvp(lambda x: x, (X,), (Y,))
    yield TypeError, ("tuples or lists",), lambda: mw.jvp(lambda x: x, X, X)
    yield TypeError, ("structure",), lambda: mw.jvp(lambda x: x, (X,), (X, X))
    yield TypeError, ("primals are a list", "tangents a tuple"), lambda: mw.jvp(lambda x: x, [X], (X,))
    yield TypeError, ("cotangent", "f32[3]", "f32[4,3]"), lambda: mw.vjp(lambda x: x, X)[1](Y)
    yield TypeError, ("structure of the cotangent",), lambda: mw.vjp(lambda x: x, X)[1]((X, X))
    yield NotImplementedError, ("sin", "not linear"), lambda: mw.linear_transpose(mnp.sin, X)(X)
    yield TypeError, ("linear_transpose", "i32[]"), lambda: mw.linear_transpose(lambda x: x * 2.0, 3)(1)
    yield (
        TypeError,
        ("reverse-mode", "while_loop", "scan"),
        lambda: mw.grad(lambda x: lax.while_loop(lambda c: c < 9, lambda c: c * 2, x))(1.0),
    )
    yield TypeError, ("carry",), lambda: lax.scan(lambda c, x: (c[:1], x), Y, X)
    yield TypeError, ("carry",), lambda: lax.scan(lambda c, x: (c * 1j, x), Y, X)
    yield TypeError, ("f32[1,3]", "same shape and dtype"), lambda: mw.grad(lambda x: f(x).sum())(Y)
    yield TypeError, ("pair (output, output tangent)",), lambda: mw.grad(lambda x: g(x).sum())(Y)
    yield ValueError, ("no rule is set", "defjvp"), lambda: mw.custom_jvp(lambda x: x)(1.0)
    yield ValueError, ("use defjvp instead",), lambda: mw.custom_jvp(lambda x: x, (0,)).defjvps(None)
    yield TypeError, ("one size", "4", "3"), lambda: mw.vmap(lambda x, y: x)(X, Y)
    yield ValueError, ("no argument is mapped", "axis_size"), lambda: mw.vmap(lambda x: x, None)(X)
    yield ValueError, ("axis 2", "shape (4, 3)"), lambda: mw.vmap(lambda x: x, 2)(X)
    yield ValueError, ("2 entries", "1 positional"), lambda: mw.vmap(lambda x: x, (0, 0))(X)
    yield NameError, ("'i'", "not in scope", "vmap"), lambda: lax.psum(X, "i")


CASES = list(misuse())


@pytest.mark.parametrize("kind, words, run", CASES, ids=[" ".join(w) for _, w, _ in CASES])
def test_errors(refuses, kind, words, run):
    with refuses(kind, *words):
        run()


def test_leaked_values_name_their_line(refuses):
    kept = []
    mw.grad(lambda x: (kept.append(mnp.sin(x)), x)[1])(1.0)
    mw.vmap(lambda x: (kept.append(x * 2), x)[1])(X)
    mw.jit(lambda x: (kept.append(x * 3), x)[1])(X)
    for value in kept:
        with refuses(mw.errors.UnexpectedTracerError, "after the traced function had returned", "Return it"):
            value + 1
    with refuses(mw.errors.UnexpectedTracerError, "test_transformations.py"):
        mnp.sin(kept[-1])
