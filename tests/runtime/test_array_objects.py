"""Arrays as objects: every dtype in and out, pickling, copying, printing, shards, placement."""

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, SingleDeviceSharding
from meshwright import PartitionSpec as P

MESH = mw.make_mesh((4, 2), ("x", "y"))
X = np.arange(32, dtype=np.float32).reshape(8, 4)
DTYPES = (
    "bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32", "complex64", "bfloat16",
    "int2", "uint2", "int4", "uint4", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float8_e3m4", "float8_e4m3", "float4_e2m1fn",
)  # fmt: skip


def values_of(dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return np.array([[0, 1, 1, 0], [1, 1, 0, 1]]).astype(kind)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_in_and_out(dtype):
    values = values_of(dtype)
    rows = NamedSharding(MESH, P("y"))
    for array, want in (
        (mnp.asarray(values), values),
        (mw.device_put(values), values),
        (mw.device_put(values, rows), values),
        (mw.device_put(values[:, ::2]), values[:, ::2]),
        (mnp.asarray(np.asfortranarray(values)), values),
        (mw.jit(lambda x: x.T)(values), values.T),
        (mw.jit(lambda x: x.T, in_shardings=rows)(values), values.T),
        (mw.jit(lambda: values)(), values),
        (mnp.asarray(values)[1], values[1]),
        (mnp.asarray(values[0, 1]), values[0, 1]),
        (mnp.asarray(values[:0]), values[:0]),
        (copy.deepcopy(mnp.asarray(values)), values),
        (pickle.loads(pickle.dumps(mnp.asarray(values))), values),
        (mnp.asarray(pickle.loads(pickle.dumps(values))), values),
    ):
        assert array.dtype == values.dtype and array.shape == want.shape
        back = np.asarray(array)
        assert back.dtype == values.dtype and back.shape == want.shape
        np.testing.assert_array_equal(back.astype(np.complex64), want.astype(np.complex64))
    assert f"dtype={values.dtype.name})" in repr(mnp.asarray(values))


def test_nan_of_a_format_without_zero():
    values = np.array([1, 2, np.nan]).astype(ml_dtypes.float8_e8m0fnu)
    np.testing.assert_array_equal(np.asarray(mnp.asarray(values)).astype(np.float32), [1, 2, np.nan])


# --- pickling, copies, text ---------------------------------------------------------------------------------
def test_pickling_keeps_value_and_type_but_not_the_devices():
    array = pickle.loads(pickle.dumps(mw.device_put(X, NamedSharding(MESH, P("x")))))
    np.testing.assert_array_equal(array, X)
    assert isinstance(array.sharding, SingleDeviceSharding) and not array.committed
    assert pickle.loads(pickle.dumps(mnp.asarray(3.0))).weak_type
    for sharding in (NamedSharding(MESH, P("x")), SingleDeviceSharding(mw.devices()[3]), MESH, mw.PartitionSpec("x")):
        assert pickle.loads(pickle.dumps(sharding)) == sharding


def test_copies_have_their_own_memory_and_the_same_place():
    array = mw.device_put(X, NamedSharding(MESH, P("x")))
    for copied in (copy.copy(array), copy.deepcopy(array), copy.deepcopy({"a": [array]})["a"][0]):
        assert copied.buffer.unsafe_buffer_pointer() != array.buffer.unsafe_buffer_pointer()
        assert copied.sharding == array.sharding and copied.committed
        np.testing.assert_array_equal(copied, X)


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (lambda: mnp.float32(1.5), "Array(1.5, dtype=float32)"),
        (lambda: mnp.asarray(3), "Array(3, dtype=int32, weak_type=True)"),
        (lambda: mnp.array([True, False]), "Array([ True, False], dtype=bool)"),
        (lambda: mnp.array([[1, 2], [3, 4]]), "Array([[1, 2],\n       [3, 4]], dtype=int32)"),
        (lambda: mnp.ones(2, "bfloat16"), "Array([1, 1], dtype=bfloat16)"),
        (lambda: mnp.zeros((0, 3)), "Array([], shape=(0, 3), dtype=float32)"),
        (lambda: mnp.array([1, 2], "int4"), "Array([1, 2], dtype=int4)"),
        (lambda: mnp.array([1 + 2j]), "Array([1.+2.j], dtype=complex64)"),
        (lambda: mw.device_put(X[:1], NamedSharding(MESH, P("x"))), "Array([[0., 1., 2., 3.]], dtype=float32)"),
    ],
)
def test_repr(array, text):
    assert repr(array()) == text


def test_str_and_format():
    array = mnp.array([[1.0, 2.0]])
    assert str(array) == f"{array}" == "[[1. 2.]]" and str(mnp.asarray(3)) == "3"
    scalar = mnp.float32(1.5)
    assert f"{scalar:.3f} {mnp.int32(7):04d}" == "1.500 0007" and "%.1f %d" % (scalar, mnp.int32(7)) == "1.5 7"  # noqa: UP031
    big = repr(mnp.zeros((2000, 3)))
    assert "..." in big and big.count("\n") == 6


# --- shards -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rows", "spec", "shapes", "replicas"),
    [
        (8, P("x", "y"), {(2, 2)}, 1),
        (8, P(None, "y"), {(8, 2)}, 4),
        (8, P(), {(8, 4)}, 8),
        (8, P(("y", "x")), {(1, 4)}, 1),
        (7, P("x"), {(2, 4), (1, 4)}, 2),
        (5, P(("x", "y")), {(1, 4), (0, 4)}, 1),
        (3, P("x", "y"), {(1, 2), (0, 2)}, 1),
    ],
    ids=str,
)
def test_addressable_shards(rows, spec, shapes, replicas):
    array = mw.device_put(X[:rows], NamedSharding(MESH, spec))
    shards = array.addressable_shards
    assert [s.device for s in shards] == mw.devices() and {s.data.shape for s in shards} == shapes
    covered = np.zeros((rows, 4), int)
    for shard in shards:
        np.testing.assert_array_equal(shard.data, X[:rows][shard.index])
        covered[shard.index] += 1
        assert shard.data.devices() == {shard.device} and str(shard.device.id) in repr(shard)
    assert (covered == replicas).all()
    assert sorted({s.replica_id for s in shards if s.data.size}) == list(range(replicas))
    assert array.is_fully_addressable and array.is_fully_replicated == (spec == P())


def test_shards_of_a_single_device():
    (shard,) = mw.device_put(X, mw.devices()[3]).addressable_shards
    assert shard.device == mw.devices()[3] and shard.data.shape == (8, 4) and shard.replica_id == 0


# --- placement ----------------------------------------------------------------------------------------------
def test_device_put_on_devices_meshes_and_trees():
    device = mw.devices()[3]
    rows, columns = NamedSharding(MESH, P("x")), NamedSharding(mw.make_mesh((8,), ("z",)), P(None, "z"))
    array = mw.device_put(X, device)
    assert array.devices() == {device} and array.device == device and array.committed
    moved = mw.device_put(mw.device_put(array, rows), columns)
    assert moved.sharding == columns and moved.device == columns and moved.devices() == set(mw.devices())
    np.testing.assert_array_equal(moved, X)
    pair = mw.device_put({"a": X, "b": [X, 1.0]}, {"a": rows, "b": device})
    assert pair["a"].sharding == rows and pair["b"][1].device == device and pair["b"][1] == 1.0
    assert not mw.device_put(X).committed
    assert mw.reshard(moved, rows).sharding == rows
    assert mw.with_sharding_constraint(moved, SingleDeviceSharding(device)).device == device


@pytest.mark.parametrize("what", ["cpu", 3, MESH])
def test_places_that_are_none(refuses, what):
    with refuses(TypeError, "device_put", "expected a Sharding", repr(what)):
        mw.device_put(X, what)


def test_things_that_cannot_be_put(refuses):
    for what in ("text", object(), {"a": [len]}):
        with refuses(TypeError, "expected an array or a number"):
            mw.device_put(what)
