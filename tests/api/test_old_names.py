"""Code of 2021 to 2024 with the import swapped: old names at the module paths that they had."""

import numpy as np
import pytest
from refusals import message_of

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import lax
from meshwright.experimental import PartitionSpec, mesh_utils
from meshwright.experimental import export as old_export
from meshwright.experimental.maps import mesh, thread_resources, xmap
from meshwright.experimental.pjit import FROM_GDA, UNSPECIFIED, pjit, with_sharding_constraint
from meshwright.interpreters import pxla, sharded_jit
from meshwright.interpreters.pxla import Chunked, NoSharding, Replicated, ShardedAxis, ShardingSpec, Unstacked
from meshwright.sharding import GSPMDSharding, Mesh, NamedSharding, PmapSharding, PositionalSharding

DEVICES = mw.devices()
GRID = Mesh(np.array(DEVICES).reshape(4, 2), ("x", "y"))
A = np.arange(32.0, dtype=np.float32).reshape(8, 4)


# --- pjit ---------------------------------------------------------------------------------------------------
def test_pjit_with_axis_resources():
    """The tutorial of 2022: specs over the mesh of the block, None for whole."""

    def f(x, w):
        return with_sharding_constraint(x @ w, PartitionSpec("x", "y"))

    g = pjit(f, in_axis_resources=(PartitionSpec("x"), None), out_axis_resources=PartitionSpec(None, "y"))
    with mesh(GRID.devices, ("x", "y")):
        y = g(A, A.T)
        lowered = g.lower(A, A.T)
    assert y.sharding.spec == P(None, "y") and np.allclose(y, A @ A.T)
    assert [b.shape for b in y.device_buffers] == [(8, 4)] * 8
    assert y.device_buffers[3].device() == DEVICES[3]
    assert lowered.compile().input_shardings[0][1].is_fully_replicated
    with GRID:
        same = pjit(lambda x: x + 1, in_axis_resources=FROM_GDA, out_axis_resources=UNSPECIFIED)(y)
    assert same.sharding.spec == P(None, "y")


def test_pjit_refuses():
    f = pjit(lambda x: x, in_axis_resources=P("x"), out_axis_resources=None)
    assert "set one with meshwright.set_mesh(mesh) or 'with mesh:'" in message_of(mw.errors.MeshError, f, A)
    said = message_of(ValueError, pjit, lambda x: x, P("x"), in_shardings=P("x"))
    assert said == "pjit: in_axis_resources and in_shardings are two names of one argument; give one"


def test_jit_takes_unspecified():
    placed = mw.device_put(A, NamedSharding(GRID, P("y")))
    f = mw.jit(lambda x, w: x + w, in_shardings=(UNSPECIFIED, None), out_shardings=UNSPECIFIED)
    assert f(placed, A).sharding.spec == P("y")
    assert repr(UNSPECIFIED) == "UNSPECIFIED"


# --- sharded_jit --------------------------------------------------------------------------------------------
def test_sharded_jit():
    parts = sharded_jit.PartitionSpec

    def f(x, y):
        return sharded_jit.with_sharding_constraint(x @ y, parts(1, 2)) * 2

    g = sharded_jit.sharded_jit(f, in_parts=(parts(2, 1), None), out_parts=parts(2, 1))
    z = g(A, A.T)
    assert z.sharding == PositionalSharding(DEVICES[:2]).reshape(2, 1) and np.allclose(z, 2 * A @ A.T)
    assert [s.data.shape for s in z.addressable_shards] == [(4, 8)] * 2


def test_sharded_jit_refuses():
    parts, jit = sharded_jit.PartitionSpec, sharded_jit.sharded_jit
    assert message_of(ValueError, jit, f, (parts(2, 1), parts(4)), None) == (
        "sharded_jit: in_parts and out_parts have different numbers of parts: PartitionSpec(2, 1), PartitionSpec(4,); "
        "all must make one number of them, which num_partitions may give"
    )
    assert "have no parts" in message_of(ValueError, jit, f, None, None)
    assert "16 parts, there are 8 devices" in message_of(ValueError, jit, f, parts(16), None)
    assert "specs that name mesh axes" in message_of(ValueError, parts, "x")


def f(x):
    return x


# --- xmap ---------------------------------------------------------------------------------------------------
def test_xmap_with_resources():
    """Named contraction, a gradient inside, and the layouts that axis_resources ask for."""
    product = xmap(
        lambda a, b: lax.psum(a * b, "k"),
        in_axes=(["i", "k"], {0: "k", 1: "j"}),
        out_axes={0: "j", 1: "i"},
        axis_resources={"i": "x", "j": "y"},
    )
    with GRID:
        y = product(A, A[:4])
    assert y.sharding.spec == P("y", "x") and np.allclose(y, (A @ A[:4]).T)

    def loss(w, x, t):
        return lax.pmean(mnp.sum((x @ w - t) ** 2), "batch")

    gradient = xmap(
        lambda w, x, t: mw.grad(loss)(w, x, t),
        in_axes=[{}, {0: "batch"}, {0: "batch"}],
        out_axes={},
        axis_resources={"batch": ("x", "y")},
    )
    w, t = np.ones((4, 3), np.float32), np.ones((8, 3), np.float32)
    with GRID:
        got = gradient(w, A, t)
    assert np.allclose(got, mw.grad(lambda w: ((A @ w - t) ** 2).sum() / 8)(w))


def test_xmap_sizes_and_nesting():
    """An axis that no argument has, results that do not have an axis, and an xmap in an xmap."""
    wide = xmap(lambda x: x + lax.axis_index("n"), in_axes={0: "i"}, out_axes={1: "n", 0: "i"}, axis_sizes={"n": 3})
    assert np.allclose(wide(A[:, 0]), A[:, :1] + np.arange(3))
    inner = xmap(lambda x: lax.psum(x, ("i", "j")), in_axes={0: "j"}, out_axes={})
    assert float(xmap(inner, in_axes=["i", ...], out_axes=[...])(A)) == A.sum()


XMAP_REFUSALS = [
    (
        ValueError,
        lambda: xmap(lambda a, b: a * b, ({0: "i"}, {0: "j"}), {0: "i", 1: "j"}, axis_resources={"i": "x", "j": "x"}),
        "axes 'i' and 'j' are both split by the mesh axis 'x', but one value has both: operands of mul at",
    ),
    (
        TypeError,
        lambda: xmap(lambda a, b: a, ({0: "i"}, {}), {}),
        "a result has the named axes 'i', which its out_axes",
    ),
    (
        NameError,
        lambda: xmap(lambda a, b: a, ({0: "i"}, {}), {0: "i"}, axis_resources={"i": "q"}),
        "the mesh axes ['q']",
    ),
    (
        ValueError,
        lambda: xmap(lambda a, b: a, ({0: "i"}, {0: "i"}), {0: "i"}),
        "axis 'i' has size 8, but dimension 0 of argument[1] of shape (4,), which in_axes {0: 'i'} makes it, has",
    ),
    (
        ValueError,
        lambda: xmap(lambda a, b: b, ({0: "i"}, {0: "j"}), {0: "j"}, axis_sizes={"j": 6}, axis_resources={"i": "x"}),
        "axis 'j' has size 6",
    ),
    (ValueError, lambda: xmap(lambda a, b: a, (["i", "k"], {}), {}), "argument[0] has shape (8,), which does not have"),
]


@pytest.mark.parametrize("kind, make, words", XMAP_REFUSALS)
def test_xmap_refuses_calls(kind, make, words):
    with GRID:
        assert words in message_of(kind, make(), A[:, 0], A[0])


def test_xmap_refuses_specs():
    assert message_of(ValueError, xmap, f, {0: "i"}, {0: "z"}) == (
        "xmap: out_axes has 'z', which neither in_axes nor axis_sizes brings in; name axes of these"
    )
    assert "axis_resources has 'z'" in message_of(ValueError, xmap, f, {0: "i"}, {}, axis_resources={"z": "x"})
    assert "names an axis twice" in message_of(ValueError, xmap, f, {0: "i", 1: "i"}, {})
    assert "negative dimension" in message_of(ValueError, xmap, f, {-1: "i"}, {})
    assert "expected {dimension: name}" in message_of(TypeError, xmap, f, "i", {})
    assert "one of them twice" in message_of(ValueError, xmap, f, {0: "i"}, {}, axis_resources={"i": ("x", "x")})
    call = xmap(f, {0: "i"}, {0: "i"}, axis_resources={"i": "x"})
    assert "no mesh is set" in message_of(mw.errors.MeshError, call, A)
    with GRID:
        assert "which do not divide it" in message_of(ValueError, call, A[:6])


def test_thread_resources():
    assert thread_resources.env.physical_mesh.empty
    with GRID:
        assert thread_resources.env.physical_mesh is GRID
        assert pxla.thread_resources.env.shape == {"x": 4, "y": 2}


# --- shardings of other kinds -------------------------------------------------------------------------------
KINDS = [
    PositionalSharding(DEVICES).reshape(4, 2),
    PositionalSharding(DEVICES).reshape(2, 4).T,
    PositionalSharding(DEVICES).reshape(4, 2).replicate(1),
    GSPMDSharding(DEVICES, "{devices=[4,2]<=[8]}"),
    GSPMDSharding(DEVICES, "{devices=[2,2,2]<=[8] last_tile_dim_replicate}"),
    PmapSharding.default((8, 4), 0, DEVICES),
    PmapSharding(DEVICES, ShardingSpec([Chunked([2]), Unstacked(4)], [ShardedAxis(1), ShardedAxis(0)])),
]


@pytest.mark.parametrize("sharding", KINDS, ids=repr)
def test_kinds_come_back(sharding):
    """A sharding of any kind works like the named one, and results have the user's kind."""
    x = mw.device_put(A, sharding)
    y = x * 2
    assert type(y.sharding) is type(sharding) and y.sharding.is_equivalent_to(sharding, 2)
    assert mw.jit(lambda x: (x + 1)[:, :], out_shardings=sharding)(A).sharding == sharding
    compiled = mw.jit(lambda x: x + 1).lower(x).compile()
    assert compiled.input_shardings[0][0] == sharding and compiled(x).sharding == sharding
    whole = np.full((8, 4), np.nan, np.float32)
    for shard in y.addressable_shards:
        assert shard.data.shape == sharding.shard_shape((8, 4))
        whole[shard.index] = shard.data
    assert np.array_equal(whole, 2 * A)


def test_devices_decide_what_may_meet():
    """Arrays on different meshes over the same devices work together, also with constraints over a third."""
    line = Mesh(np.array(DEVICES), ("a",))
    x, y = mw.device_put(A, NamedSharding(GRID, P("y", "x"))), mw.device_put(A, NamedSharding(line, P("a")))
    assert x.sharding.devices == y.sharding.devices
    grid = PositionalSharding(DEVICES).reshape(2, 4)

    @mw.jit
    def f(x, y):
        return lax.with_sharding_constraint(x + y, grid), x * y

    got, other = f(x, y)
    assert np.array_equal(got, 2 * A) and got.sharding.is_equivalent_to(grid, 2) and np.array_equal(other, A * A)
    assert f.lower(x, y).as_text().count('sdy.sharding_constraint %0 <@mesh, [{"x":(1)2}, {"x":(2)2, "y"}]>') == 1
    assert np.array_equal(y @ x.T, A @ A.T)
    manual = mw.shard_map(lambda a: lax.psum(a, "a"), mesh=line, in_specs=P("a"), out_specs=P())
    assert np.allclose(mw.jit(manual)(x), A.sum(0, keepdims=True))
    assert manual(y + x).sharding == NamedSharding(line, P())
    few = mw.device_put(A, PositionalSharding(DEVICES[:4]).reshape(4, 1))
    with pytest.raises(mw.errors.MeshError, match="cannot be used together"):
        x + few
    both = mw.shard_map(lambda a: lax.psum(a, "y"), mesh=GRID, in_specs=P("y"), out_specs=P())
    assert np.allclose(mw.jit(lambda x: both(x) + manual(x).sum())(A), both(A) + A.sum())


def test_specs_of_pmap():
    spec = ShardingSpec([Unstacked(4), NoSharding(), Chunked(2)], [ShardedAxis(1), Replicated(2), ShardedAxis(0)])
    assert spec.mesh_shape == (2, 2, 4) and spec.cuts == (4, 2)
    assert str(spec.sharding_proto()) == "{devices=[4,1,2,2]<=[4,4]T(1,0) last_tile_dim_replicate}"
    indices = pxla.spec_to_indices((4, 3, 6), spec)
    assert indices[1] == (1, slice(None), slice(0, 3)) and indices[12] == (0, slice(None), slice(3, 6))
    assert ShardingSpec.of(NamedSharding(GRID, P("y", None, "x")), (2, 5, 8)) == ShardingSpec(
        [Unstacked(2), NoSharding(), Chunked(4)], [ShardedAxis(1), ShardedAxis(0)]
    )
    assert mw.device_put(A, KINDS[5]).sharding_spec == KINDS[5].sharding_spec
    assert repr(ShardingSpec([Chunked(2)], [Replicated(4), ShardedAxis(0)])) == (
        "ShardingSpec(sharding=(Chunked(chunks=(2,)),), mesh_mapping=(Replicated(replicas=4), ShardedAxis(axis=0)))"
    )
    assert "each needs one ShardedAxis" in message_of(ValueError, ShardingSpec, [Chunked(2)], [Replicated(4)])
    assert "dimension 0 of shape (3, 3, 6)" in message_of(ValueError, spec.indices, (3, 3, 6))
    assert "8 devices for a grid of shape (4,)" in message_of(
        ValueError, PmapSharding, DEVICES, ShardingSpec([Unstacked(4)], [ShardedAxis(0)])
    )
    assert "does not say which device" in message_of(ValueError, GSPMDSharding, DEVICES, "{manual}")
    assert "names 4 devices" in message_of(ValueError, GSPMDSharding, DEVICES, "{devices=[4]<=[4]}")


# --- placing ------------------------------------------------------------------------------------------------
def test_device_put_sharded_and_replicated():
    x = mw.device_put_sharded([{"a": mnp.full(3, i)} for i in range(4)], DEVICES[:4])["a"]
    assert x.shape == (4, 3) and x.sharding == PmapSharding.default((4, 3), 0, DEVICES[:4])
    shard = x.addressable_shards[2]
    assert (
        repr(shard) == "Shard(device=CpuDevice(id=2), index=(2, slice(None, None, None)), replica_id=0, data=[2 2 2])"
    )
    y = mw.device_put_replicated(np.arange(3), DEVICES)
    assert y.shape == (8, 3) and all(np.array_equal(b.to_py(), np.arange(3)) for b in y.device_buffers)
    assert np.array_equal(mw.pmap(lambda a, b: a + b)(x, y[:4]), np.arange(3) + np.arange(4)[:, None])
    assert mnp.ones(3).device_buffer.device() == DEVICES[0]
    assert "device_buffer: the array is on 8 devices" in message_of(ValueError, lambda: y.device_buffer)
    put = mw.device_put_sharded
    assert "3 shards for 2 devices" in message_of(ValueError, put, [1, 2, 3], DEVICES[:2])
    assert "got float32[2] and float32[3]" in message_of(
        ValueError, put, [np.ones(2, "f"), np.ones(3, "f")], DEVICES[:2]
    )
    assert "must have one structure" in message_of(ValueError, put, [(1,), [1]], DEVICES[:2])


def test_devices_by_backend():
    assert mw.devices("cpu") == mw.local_devices(backend="cpu") == DEVICES
    assert (mw.host_id(), mw.host_count(), mw.host_ids()) == (0, 1, [0])
    assert mw.tree_map(lambda x: x + 1, {"a": 1}) == {"a": 2}


class Chip:
    """A device of one of two slices."""

    def __init__(self, number):
        self.id, self.process_index, self.slice_index = number, number % 2, number // 4


def test_device_meshes():
    assert mesh_utils.create_device_mesh((4, 2))[1, 0] == DEVICES[2]
    hybrid = mesh_utils.create_hybrid_device_mesh((2, 2), (1, 2), [Chip(i) for i in range(8)])
    assert [[d.id for d in row] for row in hybrid] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    by_process = mesh_utils.create_hybrid_device_mesh((4,), (2,), [Chip(i) for i in range(8)], process_is_granule=True)
    assert [d.id for d in by_process] == [0, 2, 4, 6, 1, 3, 5, 7]
    said = message_of(mw.errors.MeshError, mesh_utils.create_hybrid_device_mesh, (4,), (2,))
    assert "the product 1, the number of granules" in said


# --- export -------------------------------------------------------------------------------------------------
def test_export_serialize_and_call():
    """Called elsewhere: only the bytes are left. It is differentiated, mapped and jitted like any function."""

    @mw.jit
    def f(params, x):
        return {"y": mnp.tanh(x @ params["w"]), "rest": [x.sum(), None]}

    exporting = mw.export.export(f, platforms=["cpu", "tpu"])
    blob = exporting({"w": mw.ShapeDtypeStruct((4, 3), "float32")}, mw.ShapeDtypeStruct((8, 4), "float32")).serialize()
    g = mw.export.deserialize(blob)
    params = {"w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)}
    assert repr(g) == "Exported('f', (f32[4,3], f32[8,4]) -> (f32[], f32[8,3]), platforms=('cpu', 'tpu'))"
    got, want = g.call(params, A), f(params, A)
    assert np.allclose(got["y"], want["y"]) and got["rest"][1] is None
    slopes = [mw.jit(mw.grad(lambda p, h=h: h(p, A / 9)["y"].sum()))(params)["w"] for h in (g.call, f)]
    assert np.allclose(*slopes)
    assert old_export.call(old_export.deserialize(old_export.serialize(g)))(params, A)["y"].shape == (8, 3)
    assert message_of(TypeError, g.call, {"w": A}, A) == (
        "'f' was exported for other types: argument[0]['w'] is f32[8,4], expected f32[4,3]; export it again"
    )
    assert "was exported for arguments" in message_of(ValueError, g.call, params)
    assert "not what Exported.serialize writes" in message_of(ValueError, mw.export.deserialize, b"other")
    assert "expected a jitted function" in message_of(TypeError, mw.export.export, len)
    assert "'vax'; name some of cpu" in message_of(ValueError, mw.export.export, f, platforms=["vax"])
    with pytest.raises(mw.errors.RuleError, match="no form of this kernel for tpu"):
        mw.export.export(mw.jit(mnp.linalg.eigvals), platforms=["tpu"])(mw.ShapeDtypeStruct((3, 3), "float32"))


def test_export_of_a_sharded_program():
    split = NamedSharding(GRID, P("x", "y"))
    h = mw.jit(lambda x: x.T @ x, in_shardings=split, out_shardings=NamedSharding(GRID, P("y")))
    e = mw.export.deserialize(mw.export.export(h)(mw.ShapeDtypeStruct((8, 4), "float32")).serialize())
    assert e.nr_devices == 8 and str(e.in_shardings_hlo[0]) == "{devices=[4,2]<=[8]}"
    assert str(e.out_shardings_hlo[0]) == "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"
    assert e.in_shardings_jax(GRID) == (split,)
    y = e.call(mw.device_put(A, split))
    assert y.sharding.is_equivalent_to(NamedSharding(GRID, P("y")), 2) and np.allclose(y, A.T @ A)
    back = e.vjp().call(A, np.ones((4, 4), np.float32))[0]
    assert np.allclose(back, mw.vjp(h, A)[1](mnp.ones((4, 4)))[0])
