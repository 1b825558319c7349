"""Device buffers from memory of other libraries, through DLPack."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from jaxlib import _jax
from jaxlib import xla_client as xc

from meshwright.core.dtypes import as_dtype
from meshwright.errors import DLPackError, DTypeError
from meshwright.runtime.pjrt import platforms
from meshwright.runtime.pjrt.buffers import buffer_from_numpy, dlpack_capsule
from meshwright.runtime.pjrt.client import real_devices, require_own_process

#: DLPack device types of host memory, including pinned memory of CUDA and ROCm. CUDA's managed memory (13) is excluded:
#: the host can read it, but might do so before a kernel has written it.
_HOST_MEMORY = (1, 3, 11)


def is_host_memory(exporter: Any) -> bool:
    """Whether an exporter's data is in host memory."""
    return exporter.__dlpack_device__()[0] in _HOST_MEMORY


def has_dlpack_type(dtype: Any) -> bool:
    """Whether arrays of a dtype can be exported through DLPack.

    Raises:
      DTypeError: not a dtype; this includes ``None``.

    Example:
      >>> mw.dlpack.is_supported_dtype("bfloat16"), mw.dlpack.is_supported_dtype("int4")
      (True, False)
    """
    if dtype is None:  # NumPy would take it for float64
        raise DTypeError("is_supported_dtype: expected a dtype (such as 'float32'), got None")
    return as_dtype(dtype).name not in ("int2", "int4", "uint2", "uint4")


def capsule(buffer: Any, dtype: np.dtype) -> Any:
    """A DLPack capsule of a buffer of a dtype, sharing its memory.

    Raises:
      DLPackError: DLPack has no such dtype.
    """
    if not has_dlpack_type(dtype):
        raise DLPackError(f"__dlpack__: DLPack has no {dtype}; convert the array first, with x.astype('int8')")
    return dlpack_capsule(buffer)


class _Tensor(ctypes.Structure):
    """What a capsule holds: ``DLTensor`` of ``dlpack.h``."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
    )  # fmt: skip


#: by the code of a kind in ``dlpack.h``: what its dtypes are called before their bits
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex"}
#: those whose code is that of one dtype
_SINGLE = {
    6: "bool", 7: "float8_e3m4", 8: "float8_e4m3", 9: "float8_e4m3b11fnuz", 10: "float8_e4m3fn", 11: "float8_e4m3fnuz",
    12: "float8_e5m2", 13: "float8_e5m2fnuz", 14: "float8_e8m0fnu", 17: "float4_e2m1fn",
}  # fmt: skip
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _type_of(made: Any) -> tuple[tuple[int, ...], np.dtype]:
    """The shape and dtype of a capsule that nobody took. XLA's buffers know theirs only where JAX is imported."""
    tensor = _Tensor.from_address(_pointer(made, b"dltensor"))
    name = _SINGLE.get(tensor.code) or f"{_KINDS.get(tensor.code, 'kind')}{tensor.bits}"
    return tuple(tensor.shape[i] for i in range(tensor.ndim)), as_dtype(name)


def buffer_from_dlpack(exporter: Any, real: int) -> tuple[Any, tuple[int, ...], np.dtype]:
    """A device buffer that shares the exporter's memory, or a copy from host memory to an accelerator, and its type.

    Raises:
      DLPackError: the memory is that of another device.
    """
    require_own_process()
    device, (kind, number) = real_devices()[real], exporter.__dlpack_device__()
    if kind in _HOST_MEMORY:
        if platforms.is_plugin():
            host = _on_host(exporter)
            return buffer_from_numpy(host, real, copy=True), host.shape, host.dtype
        made = exporter.__dlpack__()
        shape, dtype = _type_of(made)
        return _jax.dlpack_managed_tensor_to_buffer(made, device, None), shape, dtype
    if (kind, number) != (own := platforms.dlpack_device(device)):
        raise DLPackError(
            f"from_dlpack: a {type(exporter).__name__} in the memory of DLPack's device {(int(kind), number)}, and "
            f"arrays are made on {device}, which is {own}; move it first (x.cpu())"
        )
    stream = device.get_stream_for_external_ready_events()
    made = exporter.__dlpack__(stream=stream)
    shape, dtype = _type_of(made)
    return _jax.dlpack_managed_tensor_to_buffer(made, device, stream), shape, dtype


@cache
def _host_client() -> Any:
    return xc.make_cpu_client()


def _on_host(exporter: Any) -> np.ndarray:
    """The value of a tensor in host memory."""
    device = _host_client().local_devices()[0]
    buffer = _jax.dlpack_managed_tensor_to_buffer(exporter.__dlpack__(), device, None)
    return buffer._single_device_array_to_np_array_did_copy()[0]
