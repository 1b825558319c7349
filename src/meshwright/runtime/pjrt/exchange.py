"""Device buffers from memory of other libraries, through DLPack."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from jaxlib import _jax
from jaxlib import xla_client as xc

from meshwright.errors import DLPackError
from meshwright.runtime.pjrt import platforms
from meshwright.runtime.pjrt.client import buffer_from_numpy, real_devices, require_own_process

#: DLPack's numbers of memory that is the host's: also that of it which CUDA's and ROCm's devices read. Not memory that
#: CUDA moves to where it is used (13): the host can read it, and may do so before a kernel has written it.
_HOST_MEMORY = (1, 3, 11)


def is_host_memory(exporter: Any) -> bool:
    """Whether what an exporter has is in the host's memory."""
    return exporter.__dlpack_device__()[0] in _HOST_MEMORY


def buffer_from_dlpack(exporter: Any, real: int) -> Any:
    """A device buffer that shares the exporter's memory; one that holds a copy, if that is main memory and the device
    an accelerator.

    Raises:
      DLPackError: it is the memory of another device.
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
    """The value of a tensor in main memory."""
    device = _host_client().local_devices()[0]
    buffer = _jax.dlpack_managed_tensor_to_buffer(exporter.__dlpack__(), device, None)
    return buffer._single_device_array_to_np_array_did_copy()[0]
