"""NumPy and DLPack in and out: memory is shared where that is said, and copied where it must be."""

import ctypes
import gc

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, errors
from meshwright import PartitionSpec as P

ROWS = NamedSharding(mw.make_mesh((4, 2), ("x", "y")), P("x"))


def aligned(count, offset=0):
    """``count`` floats that start ``offset`` bytes after a multiple of 64."""
    raw = np.zeros(count * 4 + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    values = raw[start : start + count * 4].view(np.float32)
    values[:] = np.arange(count)
    return values


def address(array):
    return array.buffer.unsafe_buffer_pointer()


# --- NumPy in -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sharding", [None, ROWS, mw.devices()[3]], ids=["default", "mesh", "device"])
def test_device_put_shares_the_memory_of_aligned_arrays(sharding):
    values = aligned(4096)
    array = mw.device_put(values, sharding)
    assert address(array) == values.ctypes.data
    np.testing.assert_array_equal(array, np.arange(4096))


@pytest.mark.parametrize(
    "change",
    [
        lambda v: aligned(v.size, offset=4),
        lambda v: np.asfortranarray(v.reshape(64, 64)),
        lambda v: v[::2],
        lambda v: v.astype(np.float64),
        lambda v: np.frombuffer(v.tobytes(), np.float32),
    ],
    ids=["unaligned", "transposed", "strided", "float64", "read-only"],
)
def test_device_put_copies_what_it_cannot_share(change):
    values = change(aligned(4096))
    array = mw.device_put(values)
    want = values.copy()
    if values.flags.writeable:
        values[...] = -1
    np.testing.assert_array_equal(array, want)


@pytest.mark.parametrize("count", [64, 1 << 20])
def test_arguments_of_jitted_functions_are_copied(count):
    values = aligned(count)
    step = mw.jit(lambda x: (x, x + 1))
    same, more = step(values)
    values[:] = -1  # at once: the program may still be running
    np.testing.assert_array_equal(same, np.arange(count))
    np.testing.assert_array_equal(more, np.arange(count) + 1)


def test_array_functions_copy_numpy_values():
    values = aligned(64)
    arrays = [f(values) for f in (mnp.array, mnp.asarray, mnp.ravel, mnp.atleast_1d)]
    arrays += [mnp.asarray(memoryview(values)), mnp.asarray(values) + 0, mnp.stack([values])[0]]
    values[:] = -1
    for array in arrays:
        np.testing.assert_array_equal(array, np.arange(64))


def test_shared_memory_lives_as_long_as_the_array():
    array = mw.device_put(aligned(1 << 16))
    gc.collect()
    aligned(1 << 16)[:] = -1
    np.testing.assert_array_equal(array, np.arange(1 << 16))


# --- NumPy out ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sharding", [None, ROWS], ids=["one device", "mesh"])
def test_asarray_shares_memory_and_is_read_only(sharding):
    array = mw.device_put(aligned(4096), sharding) * 2
    view = np.asarray(array)
    assert view.ctypes.data == address(array) and np.asarray(array).ctypes.data == view.ctypes.data
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    assert mw.device_get({"a": array})["a"].ctypes.data == address(array)


def test_np_array_copies():
    array = mnp.arange(8.0)
    copied = np.array(array)
    copied[0] = 7
    assert array[0] == 0 and np.asarray(array, dtype=np.int64).dtype == np.int64
    assert array.__array__(copy=True).flags.writeable


def test_a_view_keeps_the_memory_of_its_array():
    view = np.asarray(mnp.arange(4096.0) * 2)
    gc.collect()
    _ = mnp.zeros(4096) + 3
    np.testing.assert_array_equal(view, np.arange(4096) * 2)


# --- DLPack -------------------------------------------------------------------------------------------------
class Foreign:
    """An exporter that has nothing but the protocol."""

    def __init__(self, values):
        self.values = values
        self.asked = []

    def __dlpack__(self, **options):
        self.asked.append(options)
        return self.values.__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)


def test_dlpack_in():
    foreign = Foreign(aligned(64))
    array = mnp.from_dlpack(foreign)
    np.testing.assert_array_equal(array, np.arange(64))
    assert len(foreign.asked) == 1


class Labelled(Foreign):
    """An exporter that says, in the capsule too, that its memory is of another kind."""

    def __init__(self, values, kind):
        super().__init__(values)
        self.kind = kind

    def __dlpack__(self, **options):
        capsule = super().__dlpack__(**options)
        kind = ctypes.c_int32.from_address(_POINTER(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p))
        kind.value = self.kind
        return capsule

    def __dlpack_device__(self):
        return (self.kind, 0)


_POINTER = ctypes.pythonapi.PyCapsule_GetPointer
_POINTER.restype, _POINTER.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


@pytest.mark.parametrize("make", [lambda: aligned(64), lambda: mnp.arange(64).astype("bfloat16")], ids=["f32", "bf16"])
def test_dlpack_in_of_memory_that_devices_read(make, refuses):
    for pinned in (3, 11):  # CUDA's, ROCm's
        array = mnp.from_dlpack(Labelled(make(), pinned))
        np.testing.assert_array_equal(np.asarray(array + 1, np.float32), np.arange(1, 65))
    for elsewhere in (2, 13):  # 13: the host reads it, but a kernel may be writing it
        with refuses(errors.DLPackError, f"the memory of DLPack's device ({elsewhere}, 0)", "move it first"):
            mnp.from_dlpack(Labelled(make(), elsewhere))


def test_dlpack_out_shares_memory():
    array = mnp.arange(64.0) * 2
    assert array.__dlpack_device__() == (1, 0)
    for options in ({}, {"device": "cpu"}, {"copy": False}):
        assert np.from_dlpack(array, **options).ctypes.data == address(array)
    capsule = array.__dlpack__(stream=None, max_version=(1, 1), dl_device=(1, 0), copy=None)
    assert type(capsule).__name__ == "PyCapsule"
    sharded = mw.device_put(np.arange(64.0), ROWS) * 2
    np.testing.assert_array_equal(np.from_dlpack(sharded), np.arange(64) * 2)


def test_dlpack_copy():
    array = mnp.arange(64.0) * 2
    copied = np.from_dlpack(array, copy=True)
    assert copied.ctypes.data != address(array)
    np.testing.assert_array_equal(copied, np.arange(64) * 2)


def test_dlpack_to_another_device_or_stream(refuses):
    array = mnp.arange(4.0)
    with refuses(BufferError, "dl_device=(2, 0)", "main memory"):
        array.__dlpack__(dl_device=(2, 0))
    with refuses(errors.DLPackError, "stream=1"):
        array.__dlpack__(stream=1)


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "complex64", "float4_e2m1fn", "float8_e5m2", "int4", "uint2"])
def test_dlpack_has_the_dtypes_that_are_supported(refuses, dtype):
    array = mnp.zeros(2, dtype)
    if mw.dlpack.is_supported_dtype(dtype):
        assert type(array.__dlpack__()).__name__ == "PyCapsule"
    else:
        with refuses(errors.DLPackError, f"DLPack has no {dtype}", "astype"):
            array.__dlpack__()


def test_dlpack_supports_no_dtype_that_is_none(refuses):
    with refuses(errors.DTypeError, "is_supported_dtype", "got None"):
        mw.dlpack.is_supported_dtype(None)


def test_dlpack_of_dtypes_that_numpy_lacks():
    array = mnp.arange(8, dtype="bfloat16")
    assert type(array.__dlpack__()).__name__ == "PyCapsule"
    back = mnp.from_dlpack(array)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
