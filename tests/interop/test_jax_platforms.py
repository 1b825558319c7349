"""JAX's programs that choose what they compute by platform, and that are lowered for several."""

import warnings

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402
from jax import export  # noqa: E402

import meshwright as mw  # noqa: E402

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
FUNCTIONS = {None: "sin", "v5e:2x2": "tanh", "h100": "exp"}


def chosen(x):
    return jax.lax.platform_dependent(x, cpu=jnp.sin, tpu=jnp.tanh, default=jnp.exp) * 2


def _forms():
    several = jax.jit(chosen).trace(X).lower(lowering_platforms=("tpu", "cpu", "cuda"))
    yield "function", mw.from_jax(jax.jit(chosen))
    yield "in a loop", mw.from_jax(lambda x: jax.lax.fori_loop(0, 1, lambda _, c: chosen(c), x))
    yield "lowered", mw.from_jax(several)
    inner = export.export(jax.jit(chosen), platforms=("cuda", "tpu", "cpu"))(X)
    yield "calls exported", mw.from_jax(jax.jit(lambda x: inner.call(x)))
    yield "exported", mw.from_jax(export.export(jax.jit(chosen), platforms=("cuda", "tpu", "cpu"))(X))


@pytest.mark.parametrize("name,form", list(_forms()), ids=[name for name, _ in _forms()])
@pytest.mark.parametrize("machine", FUNCTIONS)
def test_the_platform_of_the_machine_decides(name, form, machine):
    assert np.allclose(form(X), 2 * np.sin(X))
    program = form.lower(X) if hasattr(form, "function") else form
    part = program.partition(mw.AbstractMesh((4,), ("d",), machine=machine))
    text = str(part.jaxpr)
    assert {f for f in FUNCTIONS.values() if f"= {f} " in text} == {FUNCTIONS[machine]} and "cond[" not in text
    part.verify()


def test_derivatives():
    assert np.allclose(mw.grad(lambda x: mw.from_jax(chosen)(x).sum())(X), 2 * np.cos(X), atol=1e-6)


def test_kernels_of_other_platforms_are_no_warning_here():
    def kernel(x):
        return jax.ffi.ffi_call("my_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    with warnings.catch_warnings():
        warnings.simplefilter("error", mw.errors.ReplicationWarning)
        elsewhere = mw.from_jax(lambda x: jax.lax.platform_dependent(x, cuda=kernel, default=jnp.sin))
        assert np.allclose(elsewhere(X), np.sin(X))
    with pytest.warns(mw.errors.ReplicationWarning, match="'my_kernel' is not known"):
        mw.from_jax(lambda x: jax.lax.platform_dependent(x, cpu=kernel, cuda=jnp.cos, default=jnp.sin)).lower(X)


def test_what_some_platforms_lack_is_lowered_for_the_others():
    only = mw.from_jax(lambda x: jax.lax.platform_dependent(x, cpu=jnp.sin, tpu=jnp.tanh))  # nothing for GPUs
    assert np.allclose(only(X), np.sin(X))
    mesh = mw.AbstractMesh((4,), ("d",), machine="v5e:2x2")
    assert "= tanh " in str(only.lower(X).partition(mesh).jaxpr)
    with pytest.raises(mw.errors.ArgumentError, match="no function for cuda among cpu, tpu"):
        only.lower(X).partition(mw.AbstractMesh((4,), ("d",), machine="h100"))
