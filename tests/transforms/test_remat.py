"""checkpoint: equal results, and what is kept for the backward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.errors import ArgumentError, ArgumentTypeError
from meshwright.ir.jaxpr import all_eqns
from meshwright.ir.verify import verify

RNG = np.random.default_rng(11)
W = RNG.normal(size=(5, 5)).astype(np.float32)
X = RNG.normal(size=(4, 5)).astype(np.float32)
POLICIES = mw.checkpoint_policies


def close(got, want):
    got, want = mw.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) == len(want)
    for a, b in zip(got, want):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=1e-5)


def network(n, name=lambda x, _: x, jit=lambda f: f):
    def layer(w, x):
        return n.sin(name(jit(lambda x: n.cos(x @ w))(x), "hidden"))

    return lambda w, x: layer(w, layer(w, x))


def loss(m, n, **options):
    f = m.checkpoint(network(n), **options)
    return lambda w, x: (f(w, x) ** 2).sum()


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("policy", [None, "dots_saveable", "everything_saveable", "nothing_saveable"])
def test_gradients(policy, jitted):
    want = jax.value_and_grad(loss(jax, jnp), (0, 1))(W, X)
    f = mw.value_and_grad(loss(mw, mnp, policy=policy and getattr(POLICIES, policy)), (0, 1))
    close((mw.jit(f) if jitted else f)(W, X), want)


def test_other_transformations():
    f, g = loss(mw, mnp), loss(jax, jnp)
    close(mw.jvp(f, (W, X), (W * W, X + 1)), jax.jvp(g, (W, X), (W * W, X + 1)))
    close(mw.vmap(mw.grad(f), (None, 0))(W, X), jax.vmap(jax.grad(g), (None, 0))(W, X))
    close(mw.grad(lambda w: (mw.grad(f)(w, X) ** 2).sum())(W), jax.grad(lambda w: (jax.grad(g)(w, X) ** 2).sum())(W))
    close(mw.grad(mw.checkpoint(mw.checkpoint(f)))(W, X), jax.grad(g)(W, X))


def backward(f):
    """The equations of the second computation, and the shapes that it is given."""
    jaxpr = mw.make_jaxpr(mw.grad(f))(W, X)
    verify(jaxpr)
    (eqn,) = (e for e in jaxpr.eqns if e.op.name == "checkpoint")
    return [e.op.name for e in all_eqns(eqn.op.jaxpr.jaxpr)], [a.aval.shape for a in eqn.invars]


def test_nothing_is_kept_without_a_policy():
    names, shapes = backward(loss(mw, mnp))
    assert shapes == [(5, 5), (4, 5), (4, 5)]  # the arguments and the cotangent
    assert names.count("cos") == 4 and names[0] == "optimization_barrier"
    assert "optimization_barrier" not in backward(loss(mw, mnp, prevent_cse=False))[0]


def test_policies_keep_products_and_names():
    everything = backward(loss(mw, mnp))[0].count("dot_general")
    kept, shapes = backward(loss(mw, mnp, policy=POLICIES.dots_saveable))
    assert everything - kept.count("dot_general") == 2 and len(shapes) == 5
    f = mw.checkpoint(network(mnp, mw.checkpoint_name, mw.jit), policy=POLICIES.save_only_these_names("hidden"))
    named, shapes = backward(lambda w, x: (f(w, x) ** 2).sum())
    assert len(shapes) == 5 and named.count("cos") < 4
    none = mw.checkpoint(network(mnp, mw.checkpoint_name), policy=POLICIES.save_any_names_but_these("hidden"))
    assert len(backward(lambda w, x: (none(w, x) ** 2).sum())[1]) == 3
    batched = mw.checkpoint(lambda w, x: mnp.sin(mnp.einsum("bi,bij->bj", x, mnp.stack([mnp.sin(w)] * 4))))
    with_policy = mw.checkpoint(batched.__wrapped__, policy=POLICIES.dots_with_no_batch_dims_saveable)
    assert backward(lambda w, x: with_policy(w, x).sum()) == backward(lambda w, x: batched(w, x).sum())


def test_memory_of_a_compiled_program():
    def chain(wrap):
        def f(x):
            for _ in range(8):
                x = wrap(lambda y: mnp.tanh(mnp.exp(mnp.tanh(mnp.exp(y @ W)))))(x)  # XLA does sines twice by itself
            return x.sum()

        lowered = mw.jit(mw.grad(f)).lower(np.zeros((4000, 5), np.float32))
        return lowered.partition(num_devices=1).peak_bytes

    assert chain(mw.checkpoint) < 0.6 * chain(lambda f: f)


def test_inside_scan_and_partitioned():
    def f(m, l, wrap):
        def loss(w, x):
            return (l.scan(lambda c, _: (wrap(lambda c: m.tanh(c @ w))(c), None), x, None, length=3)[0] ** 2).sum()

        return loss

    close(mw.grad(f(mnp, lax, mw.checkpoint))(W, X), jax.grad(f(jnp, jax.lax, jax.checkpoint))(W, X))
    forward = next(e for e in mw.make_jaxpr(mw.grad(f(mnp, lax, mw.checkpoint)))(W, X).eqns if e.op.name == "scan")
    assert [v.aval.shape for v in forward.outvars] == [(4, 5), (3, 4, 5)]  # only the carry is stacked
    mesh = mw.AbstractMesh((2, 2), ("a", "b"))
    ins = NamedSharding(mesh, P(None, "b")), NamedSharding(mesh, P("a"))
    mw.jit(mw.grad(f(mnp, lax, mw.checkpoint)), in_shardings=ins).lower(W, X).partition().verify(W, X)


def test_static_arguments_closures_and_decorator():
    @mw.checkpoint
    def twice(x):
        return x * 2

    @mw.checkpoint(policy=POLICIES.dots_saveable)
    def thrice(x):
        return x * 3

    assert float(mw.grad(lambda x: twice(x) + thrice(x) * x)(1.0)) == 8.0
    power = mw.checkpoint(lambda x, n: x**n if n > 1 else x, static_argnums=1)
    assert float(mw.grad(lambda x: power(x, 3))(2.0)) == 12.0
    assert float(mw.grad(lambda s: mw.checkpoint(lambda x: mnp.sin(x) * s * s)(1.0))(2.0)) == pytest.approx(
        4 * np.sin(1.0), rel=1e-6
    )
    with pytest.raises(ArgumentError, match="static_argnums"):
        mw.checkpoint(lambda x: x, static_argnums=3)(1.0)
    with pytest.raises(ArgumentTypeError, match="policy must be a function"):
        mw.checkpoint(lambda x: x, policy="dots")
