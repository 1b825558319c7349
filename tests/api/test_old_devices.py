"""Arrays and functions over many devices as of 2021 and 2022: global device arrays, soft_pmap, sharded_jit in pmap."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.experimental.global_device_array import GlobalDeviceArray, get_shard_indices, get_shard_shape
from meshwright.experimental.maps import Mesh, soft_pmap
from meshwright.experimental.pjit import FROM_GDA, pjit
from meshwright.interpreters.sharded_jit import PartitionSpec, sharded_jit, with_sharding_constraint
from meshwright.sharding import PartitionSpec as P

MESH = Mesh(np.array(mw.devices()).reshape(4, 2), ("x", "y"))
WHOLE = np.arange(64, dtype=np.float32).reshape(8, 8)


def made_by_callback(axes):
    return GlobalDeviceArray.from_callback((8, 8), MESH, axes, lambda index: WHOLE[index])


def made_by_batched_callback(axes):
    asked = []

    def parts(indices):
        asked.extend(indices)
        return [WHOLE[i] for i in indices]

    found = GlobalDeviceArray.from_batched_callback((8, 8), MESH, axes, parts)
    assert len(asked) == len({str(i) for i in asked})
    return found


def made_with_devices(axes):
    def parts(pairs):
        return [mw.device_put(WHOLE[index], device) for index, devices in pairs for device in devices]

    return GlobalDeviceArray.from_batched_callback_with_devices((8, 8), MESH, axes, parts)


def made_of_buffers(axes):
    indices = get_shard_indices((8, 8), MESH, axes)
    return GlobalDeviceArray((8, 8), MESH, axes, [mw.device_put(WHOLE[i], d) for d, i in indices.items()])


@pytest.mark.parametrize("make", [made_by_callback, made_by_batched_callback, made_with_devices, made_of_buffers])
@pytest.mark.parametrize("axes", [P("x", "y"), ["y"], P(None, "x")])
def test_global_device_arrays(make, axes):
    x = make(axes)
    assert isinstance(x, GlobalDeviceArray) and not isinstance(mnp.ones(3), GlobalDeviceArray)
    assert x.mesh == MESH and x.mesh_axes == P(*axes)
    np.testing.assert_array_equal(x, WHOLE)
    for shard in x.local_shards:
        np.testing.assert_array_equal(shard.data, WHOLE[shard.index])
    assert x.local_data(0).shape == get_shard_shape((8, 8), MESH, axes)
    with MESH:
        y = pjit(lambda a: a @ a.T, in_axis_resources=FROM_GDA, out_axis_resources=P("x"))(x)
    np.testing.assert_allclose(y, WHOLE @ WHOLE.T)


def test_soft_pmap_has_several_indices_a_device():
    x, w = np.arange(48, dtype=np.float32).reshape(16, 3), np.float32(2)
    f = soft_pmap(lambda a, b: (lax.psum(a * b, "i"), a + lax.axis_index("i")), "i", in_axes=(0, None))
    total, moved = f(x, w)
    np.testing.assert_allclose(total, np.broadcast_to(2 * x.sum(0), x.shape))
    np.testing.assert_array_equal(moved, x + np.arange(16)[:, None])
    assert {s.data.shape for s in moved.addressable_shards} == {(2, 3)}
    np.testing.assert_array_equal(soft_pmap(lambda tree: tree["a"] + 1)({"a": x}), x + 1)


def layer(x, w):
    return mnp.tanh(with_sharding_constraint(mnp.dot(x, w), PartitionSpec(2, 1)))


def test_sharded_jit_inside_of_pmap_has_devices_for_each_index():
    x = np.sin(np.arange(192, dtype=np.float32)).reshape(4, 6, 8)
    w = np.cos(np.arange(80, dtype=np.float32)).reshape(8, 10)
    sharded = sharded_jit(layer, in_parts=(PartitionSpec(2, 1), None), out_parts=PartitionSpec(1, 2))
    f = mw.pmap(lambda a, b: lax.pmean(sharded(a, b), "i"), axis_name="i", in_axes=(0, None))
    want = np.tanh(x @ w)
    np.testing.assert_allclose(f(x, w), np.broadcast_to(want.mean(0), want.shape), rtol=1e-4, atol=1e-5)
    part = f.lower(x, w).partition()
    assert part.mesh.shape == {"i": 4, "parts": 2} and {c.axes for c in part.collectives} == {("parts",), ("i",)}
    text = str(part.jaxpr)
    assert "f32[3,10] = dot_general" in text  # half of the rows of each index

    grads = mw.pmap(mw.grad(lambda a: sharded(a, w).sum()))(x)
    np.testing.assert_allclose(grads, (1 - want**2) @ w.T, rtol=1e-4, atol=1e-4)


def test_sharded_jit_inside_of_pmap_in_two_dimensions():
    x = np.sin(np.arange(64, dtype=np.float32)).reshape(2, 4, 8)
    sharded = sharded_jit(lambda a: a * 2, in_parts=PartitionSpec(2, 2), out_parts=None)
    f = mw.pmap(sharded)
    np.testing.assert_allclose(f(x), 2 * x)
    assert "f32[1,2,4]" in str(f.lower(x).partition().jaxpr)
    with pytest.raises(mw.errors.ArgumentError, match="it takes 3 × 4 = 12 devices"):
        f(np.ones((3, 4, 8), np.float32))


def test_the_backend_of_2022_says_its_platform():
    from meshwright.lib import xla_bridge

    assert xla_bridge.default_backend() == xla_bridge.get_backend().platform == mw.default_backend()
