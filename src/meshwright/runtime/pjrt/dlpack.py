"""Device buffers from memory of other libraries, through DLPack."""

from __future__ import annotations

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


def capsule(buffer: Any) -> Any:
    """A DLPack capsule of a buffer, sharing its memory.

    Raises:
      DLPackError: DLPack has no such dtype.
    """
    if not has_dlpack_type(buffer.dtype):
        raise DLPackError(f"__dlpack__: DLPack has no {buffer.dtype}; convert the array first, with x.astype('int8')")
    return dlpack_capsule(buffer)


def buffer_from_dlpack(exporter: Any, real: int) -> Any:
    """A device buffer that shares the exporter's memory, or a copy from host memory to an accelerator.

    Raises:
      DLPackError: the memory is that of another device.
    """
    require_own_process()
    device, (kind, number) = real_devices()[real], exporter.__dlpack_device__()
    if kind in _HOST_MEMORY:
        if platforms.is_plugin():
            return buffer_from_numpy(_on_host(exporter), real, copy=True)
        return _jax.dlpack_managed_tensor_to_buffer(exporter.__dlpack__(), device, None)
    if (kind, number) != (own := platforms.dlpack_device(device)):
        raise DLPackError(
            f"from_dlpack: a {type(exporter).__name__} in the memory of DLPack's device {(int(kind), number)}, and "
            f"arrays are made on {device}, which is {own}; move it first (x.cpu())"
        )
    stream = device.get_stream_for_external_ready_events()
    return _jax.dlpack_managed_tensor_to_buffer(exporter.__dlpack__(stream=stream), device, stream)


@cache
def _host_client() -> Any:
    return xc.make_cpu_client()


def _on_host(exporter: Any) -> np.ndarray:
    """The value of a tensor in host memory."""
    device = _host_client().local_devices()[0]
    buffer = _jax.dlpack_managed_tensor_to_buffer(exporter.__dlpack__(), device, None)
    return buffer._single_device_array_to_np_array_did_copy()[0]
