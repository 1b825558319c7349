"""Kinds of memory: accepted, reported, in types; on the CPU nothing moves."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, P, SingleDeviceSharding
from meshwright.errors import ShardingError
from meshwright.sharding import (
    AbstractMesh,
    AxisType,
    GSPMDSharding,
    PmapSharding,
    PositionalSharding,
    Sharding,
    TypeSharding,
)

MESH = mw.make_mesh((2, 4), ("x", "y"))
X = np.arange(128, dtype=np.float32).reshape(8, 16)
HOST = NamedSharding(MESH, P("x"), memory_kind="pinned_host")
DEVICE = NamedSharding(MESH, P("x"))


def test_shardings_name_a_memory():
    assert (
        repr(HOST)
        == "NamedSharding(mesh=Mesh('x': 2, 'y': 4, axis_types=(Auto, Auto)), spec=P('x',), memory_kind=pinned_host)"
    )
    assert HOST == DEVICE.with_memory_kind("pinned_host") != DEVICE == HOST.with_memory_kind("device")
    assert HOST.memory_kind == "pinned_host" and DEVICE.memory_kind == "device"
    assert NamedSharding(MESH, P("x"), memory_kind="device") == DEVICE
    assert pickle.loads(pickle.dumps(HOST)) == HOST
    single = SingleDeviceSharding(mw.devices()[1], memory_kind="unpinned_host")
    assert repr(single) == "SingleDeviceSharding(device=CpuDevice(id=1), memory_kind=unpinned_host)"
    with pytest.raises(ShardingError) as error:
        NamedSharding(MESH, P(), memory_kind="vram")
    assert str(error.value) == (
        "NamedSharding: memory_kind='vram'; devices can address 'device', 'pinned_host', 'unpinned_host'"
    )


#: one of each class of shardings, for ``X``
OF_EACH_CLASS = {
    type(s): s
    for s in (
        DEVICE,
        TypeSharding(AbstractMesh((2, 4), ("x", "y"), AxisType.Explicit), P("x", None)),
        SingleDeviceSharding(mw.devices()[3]),
        GSPMDSharding(mw.devices()[::-1], "{devices=[4,2]<=[8]}"),
        PositionalSharding(mw.devices()[::-1]).reshape(2, 4),
        PmapSharding.default(X.shape, devices=mw.devices()[::-1]),
    )
}


def classes_below(cls):
    return {cls, *(c for sub in cls.__subclasses__() for c in classes_below(sub))}


def test_there_is_a_sharding_of_each_class():
    assert set(OF_EACH_CLASS) == {c for c in classes_below(Sharding) if c.__module__.startswith("meshwright.")} - {
        Sharding
    }


@pytest.mark.parametrize("kind", ["device", "pinned_host", "unpinned_host"])
@pytest.mark.parametrize("cls", OF_EACH_CLASS, ids=lambda cls: cls.__name__)
def test_every_sharding_keeps_its_memory(cls, kind):
    plain = OF_EACH_CLASS[cls]
    if kind != "device" and not cls.has_memory_kinds:
        with pytest.raises(ShardingError, match=f"{cls.__name__} is always in the device's memory"):
            plain.with_memory_kind(kind)
        return
    sharding = plain.with_memory_kind(kind)
    assert (sharding == plain) == (kind == "device") and sharding.with_memory_kind("device") == plain
    assert repr(sharding) == repr(sharding.with_memory_kind(kind)) and (repr(sharding) == repr(plain)) == (
        kind == "device"
    )
    for same in (sharding, pickle.loads(pickle.dumps(sharding)), copy.deepcopy(sharding)):
        assert type(same) is cls and same == sharding and hash(same) == hash(sharding)
        assert same.memory_kind == same.to_named().memory_kind == kind
        assert same.is_equivalent_to(plain, X.ndim) == (kind == "device") and repr(same) == repr(sharding)
        assert same.is_equivalent_to(sharding, X.ndim)
    if cls is not TypeSharding:
        array = mw.device_put(X, sharding)
        assert array.sharding == sharding and array.sharding.memory_kind == kind
        doubled = mw.jit(lambda x: x * 2)(array)
        assert doubled.sharding.memory_kind == kind and isinstance(doubled.sharding, cls)
        host = mw.jit(lambda x: x * 2, out_shardings=sharding)(X)
        assert host.sharding.is_equivalent_to(sharding, X.ndim)
        np.testing.assert_array_equal(np.asarray(host), X * 2)


def test_devices_list_their_memories():
    device = mw.devices()[2]
    assert [m.kind for m in device.addressable_memories()] == ["device", "pinned_host", "unpinned_host"]
    assert (
        device.default_memory().kind == "device" and repr(device.memory("pinned_host")) == "CpuDevice(id=2):pinned_host"
    )
    assert device.memory("pinned_host").addressable_by_devices() == [device]
    with pytest.raises(ShardingError, match="memory_kind='nope'"):
        device.memory("nope")


def test_results_are_in_the_memory_that_types_or_out_shardings_say():
    host, device = mw.device_put(X, HOST), mw.device_put(X, DEVICE)
    assert str(mw.typeof(host)) == "f32<host>[8,16]" and host.sharding.memory_kind == "pinned_host"

    def f(host, device):
        return host * 2, host + device, mw.device_put(device + 1, HOST), mw.device_put(host, DEVICE), device - 1

    outs = mw.jit(f, out_shardings=(None, None, None, None, HOST))(host, device)
    kinds = [x.sharding.memory_kind for x in outs]
    assert kinds == ["pinned_host", "device", "pinned_host", "device", "pinned_host"]
    for out, want in zip(outs, (X * 2, X + X, X + 1, X, X - 1)):
        np.testing.assert_array_equal(np.asarray(out), want)
    assert (host + 1).sharding.memory_kind == "pinned_host"
    assert mw.device_put(host, DEVICE).sharding == DEVICE
    assert mw.jit(lambda x: x, in_shardings=HOST)(X).sharding.memory_kind == "pinned_host"


def test_programs_say_which_memory_their_arguments_and_results_are_in():
    host = mw.device_put(X, HOST)
    for lowered in (
        mw.jit(lambda x: (x + 1, x)).lower(host),
        mw.jit(lambda x: (x + 1, x)).lower(mw.ShapeDtypeStruct(X.shape, X.dtype, sharding=HOST)),
        mw.jit(lambda x: (x + 1, x), in_shardings=HOST).lower(X),
    ):
        part, compiled = lowered.partition(), lowered.compile()
        assert part.in_shardings == [HOST] and part.out_shardings == [HOST, HOST]
        assert compiled.input_shardings == ((HOST,), {}) and compiled.output_shardings == (HOST, HOST)
        assert [x.sharding for x in compiled(host)] == [HOST, HOST]
    one = SingleDeviceSharding(mw.devices()[1], memory_kind="pinned_host")
    assert mw.jit(lambda x: x + 1).lower(mw.device_put(X, one)).compile().input_shardings == ((one,), {})


def test_arguments_placed_in_another_memory_are_refused():
    host, device = mw.device_put(X, HOST), mw.device_put(X, DEVICE)
    for there, here in ((host, device), (device, host)):
        calls = (
            mw.jit(lambda x: x + 1, in_shardings=there.sharding),
            mw.jit(lambda x: x + 1).lower(there).compile(),
            mw.jit(lambda x: x + 1).lower(there).partition(),
        )
        for call in calls:
            with pytest.raises(ShardingError, match="and it has NamedSharding"):
                call(here)
            np.testing.assert_array_equal(np.asarray(call(there)), X + 1)


def test_on_one_device():
    where = SingleDeviceSharding(mw.devices()[0], memory_kind="pinned_host")
    host = mw.device_put(X, where)
    assert host.sharding == where and (host + host).sharding == where
    out = mw.jit(lambda x: (x * 2, mw.device_put(x, SingleDeviceSharding(mw.devices()[0]))))(host)
    assert [x.sharding.memory_kind for x in out] == ["pinned_host", "device"]
    np.testing.assert_array_equal(np.asarray(out[0]), X * 2)


def test_offloaded_values_are_counted_apart():
    policy = mw.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["a"], names_which_can_be_offloaded=["b"]
    )

    def f(x):
        x = mw.checkpoint_name(mnp.sin(x), "b")
        return mnp.sin(mw.checkpoint_name(mnp.sin(x), "a")).sum()

    step = mw.jit(mw.grad(mw.checkpoint(f, policy=policy)), in_shardings=DEVICE)
    part = step.partition(X)
    assert part.memory.host_bytes == 8 * 16 * 4 // 2
    assert "256 B of that are in the host's memory" in str(part.memory)
    np.testing.assert_allclose(np.asarray(step(X)), np.asarray(mw.grad(f)(X)), rtol=1e-5)
    assert mw.jit(lambda x: x * 2, out_shardings=HOST).partition(mw.device_put(X, HOST)).memory.host_bytes == 512
    with pytest.raises(ValueError, match="b is to be saved and offloaded"):
        mw.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=["b"], names_which_can_be_offloaded=["b"]
        )


def test_spaces():
    """The memory of devices, or of their hosts, whatever the sharding is: in programs and outside, in trees."""
    space = mw.memory.Space
    host = mw.device_put(mw.device_put(X, DEVICE), space.Host)
    assert host.sharding == HOST and mw.typeof(host).memory_space is space.Host
    back, plain = mw.device_put([host, X], [space.Device, None])
    assert back.sharding == DEVICE and mw.typeof(plain).memory_space is space.Device
    assert mw.device_put(X, space.Host).sharding.memory_kind == "pinned_host"

    @mw.jit
    def f(x):
        return mw.device_put({"a": x, "b": mw.device_put(x, space.Device) + 1}, {"a": space.Device, "b": space.Host})

    out = f(host)
    assert {k: v.sharding.memory_kind for k, v in out.items()} == {"a": "device", "b": "pinned_host"}
    np.testing.assert_array_equal(np.asarray(out["b"]), X + 1)
    assert repr(space.Host) == str(space.Host) == "MemorySpace.Host"


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_other_platforms_are_told_what_is_in_the_hosts_memory(platform):
    def step(w, x):
        y = mnp.tanh(x @ mw.device_put(w, mw.memory.Space.Device))
        return mw.device_put(y, HOST), y.sum()

    part = mw.jit(step, in_shardings=(HOST, DEVICE)).partition(np.ones((16, 16), np.float32), X)
    text = str(part.module(platform))
    assert text.count('{mhlo.memory_kind = "pinned_host"}') == 2  # the first argument, and the first result
    places = [
        line.split('_xla_buffer_placement = "')[1].split('"')[0] for line in text.splitlines() if "@annotate" in line
    ]
    assert places == ["device", "pinned_host"]
    assert "memory_kind" not in str(part.module("cpu")) and "annotate" not in str(part.module("cpu"))
