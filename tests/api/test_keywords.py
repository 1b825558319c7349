"""Keywords of JAX's signatures that few programs use; ``jax`` as oracle where it computes."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp

X = np.arange(1, 7, dtype=np.float32).reshape(2, 3) / 3
LIBRARIES = ((mw, mnp), (jax, jnp))

#: what JAX's signatures have for its own use, or for devices that are not here
NOT_HERE = {
    "vmap": {"sum_match"},
    "ShapeDtypeStruct": {"manual_axis_type", "is_ref"},
}  # fmt: skip
FUNCTIONS = (
    "jvp vjp linearize linear_transpose grad value_and_grad jacfwd jacrev hessian vmap pmap jit checkpoint remat "
    "custom_jvp custom_vjp custom_gradient closure_convert named_call eval_shape make_jaxpr device_put device_get "
    "block_until_ready pure_callback fwd_and_bwd shard_map ShapeDtypeStruct named_scope reshard typeof"
).split()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_are_those_of_jax(name):
    found, wanted = (list(inspect.signature(getattr(m, name)).parameters.values()) for m, _ in LIBRARIES)
    by_name = {p.name: p for p in found}
    missing = {p.name for p in wanted} - set(by_name)
    assert missing == NOT_HERE.get(name, set())
    kinds = {p.name: (p.kind, by_name[p.name].kind) for p in wanted if p.name in by_name}
    assert all(want in (got, inspect.Parameter.POSITIONAL_ONLY) for want, got in kinds.values()), kinds
    positional = [[p.name for p in ps if p.kind is not p.KEYWORD_ONLY] for ps in (found, wanted)]
    common = set(positional[0]) & set(positional[1])
    assert [n for n in positional[0] if n in common] == [n for n in positional[1] if n in common]


def same(make, *args):
    found, wanted = (make(m, p)(*args) for m, p in LIBRARIES)
    for got, want in zip(mw.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def own_jvp(m, p):
    f = m.custom_jvp(lambda scale, x, power: scale(x) ** power, nondiff_argnums=(0,), nondiff_argnames=("power",))
    f.defjvp(jvp=lambda scale, power, ps, ts: (f(scale, ps[0], power), power * 10 * ts[0]))
    return lambda x: m.jvp(lambda x: f(lambda y: 3 * y, x, power=2), (x,), (x + 1,))


def own_vjp(m, p):
    f = m.custom_vjp(lambda scale, x, power: scale(x) ** power, nondiff_argnames=["power", "scale"])
    fwd = lambda scale, x, power: (scale(x) ** power, x)  # noqa: E731
    f.defvjp(fwd, lambda scale, power, x, ct: (scale(ct) * power,), optimize_remat=False)
    return m.grad(lambda x: f(lambda y: 3 * y, x, 2).sum())


def test_nondiff_argnames():
    same(own_jvp, X)
    same(own_vjp, X)


def test_checkpoint_with_static_names():
    np_of = {"sin": mnp.sin}
    f = mw.checkpoint(lambda x, name, n=2: np_of[name](x) * n, static_argnames=("name", "n"))
    for call in (lambda x: f(x, name="sin", n=3), lambda x: f(x, "sin", 3), lambda x: f(x, "sin", n=3)):
        np.testing.assert_allclose(mw.grad(lambda x: call(x).sum())(X), 3 * np.cos(X), rtol=1e-6)  # noqa: B023


def test_device_put():
    memory = np.zeros(256, np.float32)
    start = -memory.ctypes.data % 64 // 4
    host = memory[start : start + 6]  # aligned, so that it is not copied unless that is asked for
    host[:] = X.ravel()
    shared, apart = mw.device_put(host), mw.device_put(host, may_alias=False, src=mw.devices()[0])
    again = mw.device_put(shared, may_alias=False)
    moved = mw.device_put(again, mw.devices()[1], donate=True)
    host[:] = 0
    for x, want in ((shared, 0 * host), (apart, X.ravel()), (again, X.ravel()), (moved, X.ravel())):
        np.testing.assert_array_equal(x, want)


def test_devices_and_backends():
    f = mw.jit(lambda x: 2 * x, device=mw.devices()[3], backend="cpu")
    assert f(X).devices() == {mw.devices()[3]}
    np.testing.assert_array_equal(f(X), 2 * X)
    np.testing.assert_array_equal(mw.pmap(lambda x: 2 * x, backend="cpu")(X), 2 * X)


def test_stages_say_what_they_take_and_return():
    def stages(m, p):
        traced = m.jit(lambda x, *, y: {"z": x[0] * y, "x": x}, donate_argnames="y").trace(X, y=X[0])
        return traced, traced.lower(), traced.lower().compile()

    for ours, theirs in zip(stages(mw, mnp), stages(jax, jnp)):
        for name in ("args_info", "out_info"):
            found, wanted = mw.tree.leaves(getattr(ours, name)), jax.tree.leaves(getattr(theirs, name))
            assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in wanted]
        assert [x.donated for x in mw.tree.leaves(ours.args_info)] == [False, True]
        assert ours.donate_argnums == theirs.donate_argnums == (1,)
        assert ours.in_tree == mw.tree.structure(((0,), {"y": 0}))
        assert ours.out_tree == mw.tree.structure({"z": 0, "x": 0})


def test_refused(refuses):
    with refuses(ValueError, "concrete=True", "static_argnums"):
        mw.checkpoint(mnp.sin, concrete=True)
    with refuses(ValueError, "device_put", "donate", "may_alias"):
        mw.device_put(X, donate=True, may_alias=True)
    with refuses(RuntimeError, "jit", "backend='tpu'", "'cpu'"):
        mw.jit(mnp.sin, backend="tpu")
    with refuses(RuntimeError, "pmap", "backend='gpu'"):
        mw.pmap(mnp.sin, backend="gpu")
    with refuses(ValueError, "device and shardings exclude"):
        mw.jit(mnp.sin, device=mw.devices()[0], out_shardings=mw.SingleDeviceSharding(mw.devices()[0]))
    for make in (mw.custom_jvp, mw.custom_vjp):
        with refuses(ValueError, "nondiff_argnames", "'power'"):
            make(lambda x: x, nondiff_argnames=("power",))
