"""What the type of a value says of its sharding, where no mesh splits it, may be passed on as a sharding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp

X = np.arange(12, dtype=np.float32).reshape(4, 3)

#: of a library, its numpy, an array and the sharding in its type
BOTH = {
    "normal": lambda m, n, x, s: m.random.normal(m.random.key(0), (4, 3), out_sharding=s),
    "traced normal": lambda m, n, x, s: m.jit(lambda: m.random.normal(m.random.key(0), (4, 3), out_sharding=s))(),
    "bits": lambda m, n, x, s: m.random.bits(m.random.key(0), (4, 3), out_sharding=s),
    "zeros": lambda m, n, x, s: n.zeros((4, 3), device=s),
    "zeros as made": lambda m, n, x, s: n.zeros((4, 3), out_sharding=s),
    "zeros_like": lambda m, n, x, s: n.zeros_like(x, device=s),
    "full": lambda m, n, x, s: n.full((4, 3), 2.0, device=s),
    "full_like": lambda m, n, x, s: n.full_like(x, 2.0, device=s),
    "lax.full": lambda m, n, x, s: m.lax.full((4, 3), 2.0, sharding=s),
    "array": lambda m, n, x, s: n.array(x, device=s),
    "asarray": lambda m, n, x, s: n.asarray([1.0, 2.0], device=s),
    "reshape": lambda m, n, x, s: n.reshape(x, (2, 6), out_sharding=s),
    "einsum": lambda m, n, x, s: n.einsum("ij->ji", x, out_sharding=s),
    "traced device_put": lambda m, n, x, s: m.jit(lambda x: m.device_put(x, s))(x),
    "lowered": lambda m, n, x, s: m.jit(n.sin).lower(m.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)).compile()(x),
}
#: JAX refuses these, for which nothing is nothing to do
OURS = {
    "device_put": lambda x, s: mw.device_put(x, s),
    "reshard": lambda x, s: mw.reshard(x, s),
    "with_sharding_constraint": lambda x, s: mw.with_sharding_constraint(x, s),
    "traced constraint": lambda x, s: mw.jit(lambda x: mw.with_sharding_constraint(x, s))(x),
    "in_shardings": lambda x, s: mw.jit(lambda x: x, in_shardings=s)(x),
    "out_shardings": lambda x, s: mw.jit(lambda x: x, out_shardings=s)(x),
}


@pytest.mark.parametrize("name", BOTH)
def test_functions_take_the_sharding_of_a_type(name):
    ours, theirs = mnp.asarray(X), jnp.asarray(X)
    got = BOTH[name](mw, mnp, ours, mw.typeof(ours).sharding)
    want = BOTH[name](jax, jnp, theirs, jax.typeof(theirs).sharding)
    assert got.dtype == want.dtype and len(got.sharding.device_set) == 1
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("name", OURS)
def test_the_sharding_of_a_type_asks_for_nothing(name):
    x = mw.device_put(X, mw.NamedSharding(mw.make_mesh((2,), ("a",)), mw.P("a")))
    got = OURS[name](x, mw.typeof(x).sharding)
    assert got.sharding.shard_shape(got.shape) == (2, 3)
    np.testing.assert_array_equal(got, X)


def test_a_mesh_without_devices_is_still_refused(refuses):
    with refuses(TypeError, "no devices", "make_mesh"):
        mw.device_put(X, mw.NamedSharding(mw.AbstractMesh((2,), ("a",)), mw.P("a")))


def test_types_are_made_with_shardings():
    aval = mw.core.ShapedArray((4, 3), np.dtype(np.float32))
    assert mw.core.ShapedArray((4, 3), np.float32, sharding=None) is aval
    assert mw.core.ShapedArray((4, 3), np.float32, sharding=aval.sharding) is aval
    for kind, text in ((mw.sharding.AxisType.Explicit, "f32[4@a,3]"), (mw.sharding.AxisType.Auto, "f32[4,3]")):
        mesh = mw.AbstractMesh((2,), ("a",), axis_types=(kind,))
        split = mw.core.ShapedArray((4, 3), np.float32, sharding=mw.NamedSharding(mesh, mw.P("a", None)))
        assert text in str(split) and mw.core.ShapedArray((4, 3), np.float32, sharding=split.sharding) is split
