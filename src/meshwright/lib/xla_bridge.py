"""Backends, which compile computations and hold buffers.

Now: ``jit(f).lower(*args).compile()``, and ``device_put``. This is the layer below, for computations that are built by
hand or by :func:`meshwright.xla_computation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from meshwright.api.environment import default_backend
from meshwright.runtime.devices import (
    device_count,
    devices,
    local_device_count,
    local_devices,
    process_count,
    process_index,
    require_backend,
)
from meshwright.runtime.pjrt.backend import XLA_CLASSES, PjrtBackend

host_id, host_count = process_index, process_count

__all__ = [
    "backends", "default_backend", "device_count", "devices", "get_backend", "get_compile_options",
    "get_device_backend", "host_count", "host_id", "local_device_count", "local_devices", "process_count",
    "process_index",
]  # fmt: skip


@cache
def _backend() -> PjrtBackend:
    return PjrtBackend(devices())


def get_backend(platform: str | None = None) -> PjrtBackend:
    """The backend, with one XLA device for each of :func:`meshwright.devices`.

    Raises:
      DeviceError: the platform is not the configured one.

    Example:
      >>> computation = mw.xla_computation(lambda x, y: x * y)(2.0, 3.0)
      >>> backend = mw.lib.xla_bridge.get_backend("cpu")
      >>> compiled = backend.compile(computation)
      >>> [out] = compiled.execute([backend.buffer_from_pyval(np.float32(x)) for x in (5, 7)])
      >>> float(out.to_py())
      35.0
    """
    require_backend(platform, "get_backend")
    return _backend()


def backends() -> dict[str, PjrtBackend]:
    """All backends by platform. There is only one."""
    return {get_backend().platform: get_backend()}


def get_device_backend(device: Any = None) -> PjrtBackend:
    """The backend of a device."""
    return get_backend(getattr(device, "platform", None))


def get_compile_options(
    num_replicas: int, num_partitions: int, device_assignment: Any = None, use_spmd_partitioning: bool = True
) -> Any:
    """Compile options for these numbers of replicas and partitions.

    ``device_assignment`` has a row of devices, or of their numbers, for each replica.

    Example:
      >>> options = mw.lib.xla_bridge.get_compile_options(2, 1, device_assignment=[[1], [0]])
      >>> options.num_replicas
      2
    """
    options = XLA_CLASSES["CompileOptions"]()
    options.num_replicas, options.num_partitions = num_replicas, num_partitions
    options.executable_build_options.use_spmd_partitioning = use_spmd_partitioning
    if device_assignment is not None:
        options.device_assignment = XLA_CLASSES["DeviceAssignment"].create(_grid(device_assignment, num_partitions))
    return options


def _grid(assignment: Sequence[Any], num_partitions: int) -> np.ndarray:
    ids = [getattr(d, "id", d) for d in np.array(assignment, object).reshape(-1)]
    return np.array(ids, np.int64).reshape(-1, num_partitions)
