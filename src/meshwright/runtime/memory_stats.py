"""Memory statistics of devices, from XLA or by counting live arrays."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from typing import Any

from meshwright.hardware.this import memory_bytes
from meshwright.runtime.array import Array
from meshwright.runtime.devices import MEMORY_STATS, Device
from meshwright.runtime.pjrt.client import real_devices

#: the highest count of bytes on each device, by its number
_PEAKS: dict[int, int] = {}


def alive() -> list[Array]:
    """The live arrays that hold memory, found through Python's garbage collector."""
    return [x for x in gc.get_objects() if type(x) is Array and not x.is_deleted()]


def memory_stats(devices: Sequence[Device]) -> dict[Device, dict[str, int]]:
    """For each device ``bytes_in_use``, ``num_allocs`` (arrays), ``peak_bytes_in_use`` and ``bytes_limit``.

    For accelerators, XLA provides these and more. For CPUs and virtual devices it does not, so the shards of live
    arrays are counted on each device of their sharding. Memory of running programs is not included. The peak is the
    highest count so far, and the limit is the machine's memory.
    """
    known = {d: found for d in devices if not d.is_virtual and (found := _of_xla(d))}
    return {**_counted([d for d in devices if d not in known]), **known}


def _of_xla(device: Device) -> dict[str, int]:
    """XLA's statistics of the real device; empty if it has none."""
    return (real_devices()[device.hardware_id].memory_stats() if device.is_addressable else None) or {}


def _counted(devices: Sequence[Device]) -> dict[Device, dict[str, int]]:
    if not devices:
        return {}
    stats = {d: {"bytes_in_use": 0, "num_allocs": 0} for d in devices}
    for array in alive():
        for device, nbytes in _parts(array).items():
            if device in stats:
                stats[device]["bytes_in_use"] += nbytes
                stats[device]["num_allocs"] += 1
    for device, counters in stats.items():
        limit = _of_xla(device).get("bytes_limit", memory_bytes())
        _PEAKS[device.id] = max(_PEAKS.get(device.id, 0), counters["bytes_in_use"])
        counters |= {"peak_bytes_in_use": _PEAKS[device.id], "bytes_limit": limit}
    return stats


def _parts(array: Array) -> dict[Any, int]:
    """The bytes of an array on each device."""
    sharding = array.sharding
    nbytes = math.prod(sharding.shard_shape(array.shape)) * array.dtype.itemsize
    return dict.fromkeys(sharding.devices, nbytes)


MEMORY_STATS.fill(memory_stats)
