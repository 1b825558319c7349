"""Shardings and manual regions of JAX functions that are called in functions which Meshwright traces."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import meshwright as mw  # noqa: E402
from meshwright.errors import ArgumentTypeError, ImportProgramError, MeshError  # noqa: E402

P = jax.sharding.PartitionSpec
SHAPE, AXES = (3, 2), ("data", "model")
THEIRS = jax.sharding.AbstractMesh(SHAPE, AXES)
RNG = np.random.default_rng(0)
X, W = (RNG.normal(size=s).astype("f4") for s in ((6, 5), (5, 4)))


def layer(x, w):
    """A product split by both axes, of which each device takes the sines and multiplies them by its row."""
    y = jax.lax.with_sharding_constraint(x @ w, jax.sharding.NamedSharding(THEIRS, P("data", "model")))
    scaled = jax.shard_map(
        lambda y: jnp.sin(y) * (1 + jax.lax.axis_index("data")), mesh=THEIRS, in_specs=P(*AXES), out_specs=P(*AXES)
    )
    return scaled(y)


def expected(x, w):
    return jnp.sin(x @ w) * np.repeat(np.arange(1, 4), 2)[:, None]


OURS = mw.from_jax(layer)


def loss(f):
    return lambda x, w: (f(x, w) ** 2).sum()


def test_without_a_mesh_it_runs_on_one_device():
    np.testing.assert_allclose(mw.jit(OURS)(X, W), expected(X, W), rtol=1e-5)
    np.testing.assert_allclose(OURS(X, W), expected(X, W), rtol=1e-5)


def test_its_shardings_hold_on_the_mesh():
    part = mw.jit(lambda x, w: 2 * OURS(x, w)).lower(X, W).partition(mw.make_mesh(SHAPE, AXES))
    assert part.work.redundancy == 1 and not part.collectives
    assert part.out_shardings[0].spec == mw.P("data", "model")
    np.testing.assert_allclose(part(X, W), 2 * expected(X, W), rtol=1e-5)


def test_in_derivatives_too():
    lowered = mw.jit(mw.grad(loss(OURS), argnums=(0, 1))).lower(X, W)
    part = lowered.partition(mw.make_mesh(SHAPE, AXES))
    assert part.work.redundancy < 1.5
    for got, want in zip(part(X, W), jax.grad(loss(expected), argnums=(0, 1))(X, W)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "transformed",
    [
        lambda x, w: mw.linearize(lambda x: OURS(x, w), x)[1](x),
        lambda x, w: mw.jacfwd(lambda w: OURS(x, w).sum(0))(w),
        lambda x, w: mw.grad(lambda x: mw.numpy.sin(mw.checkpoint(OURS)(x, w)).sum())(x),
        lambda x, w: mw.jvp(mw.grad(lambda x: mw.numpy.sin(OURS(x, w)).sum()), (x,), (x,)),
    ],
    ids=["linearized", "jacobian", "rematerialized", "second derivative"],
)
def test_in_what_is_traced_last(transformed):
    part = mw.jit(transformed).lower(X, W).partition(mw.AbstractMesh(SHAPE, AXES))
    assert part.work.redundancy < 1.1
    part.verify(X, W)


def test_batched_too():
    xs = np.stack([X, 2 * X, -X])
    part = mw.jit(mw.vmap(OURS, in_axes=(0, None))).lower(xs, W).partition(mw.make_mesh(SHAPE, AXES))
    assert part.work.redundancy == 1
    np.testing.assert_allclose(part(xs, W), np.stack([expected(x, W) for x in xs]), rtol=1e-5)


def test_in_loops_and_branches_too():
    def repeated(x, w):
        y = mw.lax.fori_loop(0, 2, lambda i, y: OURS(x, w) + y, mw.numpy.zeros((6, 4)))
        return mw.lax.cond(x[0, 0] < 100, lambda: OURS(x, w) + y, lambda: y)

    part = mw.jit(repeated).lower(X, W).partition(mw.make_mesh(SHAPE, AXES))
    assert part.out_shardings[0].spec == mw.P("data", "model")
    np.testing.assert_allclose(part(X, W), 3 * expected(X, W), rtol=1e-5)


def test_a_mesh_that_does_not_fit_is_refused():
    with pytest.raises(MeshError, match=r"shardings for 6 devices, .* has 4; as .* use a mesh of 6 devices"):
        mw.jit(OURS).lower(X, W).partition(mw.AbstractMesh((4,), ("x",)))


def exchanged(x):
    """Sums along one axis, sent along the other, times the position along this."""

    def local(x):
        to_next = [(0, 1), (1, 2), (2, 0)]
        y = jax.lax.ppermute(jax.lax.psum(x, "model"), "data", to_next)
        return y * (1 + jax.lax.axis_index("data"))

    return jax.shard_map(local, mesh=THEIRS, in_specs=P(*AXES), out_specs=P("data"), check_vma=False)(x)


#: meshes of 3 times 2 devices, by the names and in the order of theirs, or only by the numbers of devices
MESHES = [
    ((3, 2), ("data", "model")),
    ((2, 3), ("model", "data")),
    ((2, 1, 3), ("model", "other", "data")),
    ((3, 2), ("rows", "columns")),
    ((3, 1, 2), ("a", "model", "b")),
]


def test_collectives_are_over_the_axes_of_their_region_on_any_mesh():
    x = RNG.normal(size=(6, 4)).astype("f4")
    want = np.roll(x.reshape(6, 2, 2).sum(1), 2, 0) * np.repeat(np.arange(1, 4), 2)[:, None]
    for sizes, names in MESHES:
        for f in (mw.from_jax(exchanged), mw.grad(lambda x: mw.numpy.sin(mw.from_jax(exchanged)(x)).sum())):
            mw.jit(f).lower(x).partition(mw.AbstractMesh(sizes, names)).verify(x)
        program = mw.from_jax(exchanged, x).partition(mw.make_mesh(sizes, names))
        np.testing.assert_allclose(program(x), want, rtol=1e-5)
    devices = np.array(mw.devices())[[4, 2, 0, 5, 1, 3]]
    for sizes, names in MESHES[:2]:
        mesh = mw.Mesh(devices.reshape(sizes), names)
        np.testing.assert_allclose(mw.jit(mw.from_jax(exchanged)).lower(x).partition(mesh)(x), want, rtol=1e-5)


def test_a_mesh_with_a_part_of_an_axis_is_refused():
    mesh = jax.sharding.AbstractMesh((2, 2), AXES)
    f = jax.shard_map(lambda x: jax.lax.psum(x, "model"), mesh=mesh, in_specs=P(*AXES), out_specs=P("data"))
    x = RNG.normal(size=(4, 4)).astype("f4")
    with pytest.raises(ImportProgramError, match=r"along a part of an axis only \(d:\(1\)2\); use a mesh"):
        mw.jit(mw.from_jax(f)).lower(x).partition(mw.AbstractMesh((4,), ("d",)))


def typed_layer(x, w):
    """Over explicit axes, so that what is kept for the derivative is split by its type."""
    x, w = jax.sharding.reshard(x, P("data")), jax.sharding.reshard(w, P(None, "model"))
    return jnp.tanh(jax.sharding.reshard(jax.nn.relu(x @ w), P("data")))


@pytest.mark.parametrize("transformed", ["grad", "hessian", "vmap"])
def test_derivatives_of_shardings_in_types(transformed):
    explicit = (jax.sharding.AxisType.Explicit,) * 2
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh(SHAPE, AXES, axis_types=explicit)):
        ours, theirs = (
            {
                "grad": lambda m, f: m.grad(loss(f), argnums=(0, 1)),
                "hessian": lambda m, f: m.grad(lambda w: (m.grad(loss(f))(X, w) ** 2).sum()),
                "vmap": lambda m, f: m.vmap(m.grad(lambda w: loss(f)(X, w))),
            }[transformed](m, f)
            for m, f in ((mw, mw.from_jax(typed_layer)), (jax, lambda x, w: jnp.tanh(jax.nn.relu(x @ w))))
        )
        args = {"grad": (X, W), "hessian": (W,), "vmap": (np.stack([W, W + 1]),)}[transformed]
        outs = mw.jit(ours)(*args)
    for got, want in zip(mw.tree.leaves(outs), jax.tree.leaves(theirs(*args)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_jax_cannot_transform_what_is_ours(refuses):
    with refuses(ArgumentTypeError, "a tracer of JAX's: float32[6,5]", "without from_jax", "to_jax"):
        jax.jit(mw.from_jax(expected))(X, W)
