"""``jax.experimental.mesh_utils``: arranges devices as a mesh. The order of virtual devices does not matter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core.absent import absent as _absent
from meshwright.core.words import counted, there_are
from meshwright.errors import MeshError
from meshwright.hardware.placement import placed
from meshwright.runtime.devices import devices as all_devices

__all__ = ["create_device_mesh", "create_hybrid_device_mesh"]


def create_device_mesh(
    mesh_shape: Sequence[int],
    devices: Sequence[Any] | None = None,
    *,
    contiguous_submeshes: bool = False,
    allow_split_physical_axes: bool = False,
) -> np.ndarray:
    """An array of devices of shape ``mesh_shape``, for :class:`meshwright.Mesh`; by default, of all devices.

    Devices with coordinates (those of a :func:`meshwright.target`) are placed so that neighbours along a dimension are
    connected, if possible. The other two arguments are accepted for compatibility and have no effect.

    Raises:
      MeshError: the number of devices is not that of the mesh.

    Example:
      >>> from meshwright.experimental import mesh_utils
      >>> mw.Mesh(mesh_utils.create_device_mesh((4, 2)), ("data", "model")).shape["data"]  # of 8 devices
      4
    """
    chosen = list(all_devices() if devices is None else devices)
    shape = tuple(int(n) for n in mesh_shape)
    if len(chosen) != math.prod(shape):
        raise MeshError(
            f"create_device_mesh: a mesh of shape {shape} needs {counted(math.prod(shape), 'device')}, "
            f"{there_are(len(chosen))}; give devices, or set meshwright.config.update('num_devices', ...) "
            "before they are first used"
        )
    return placed(chosen, shape)


def create_hybrid_device_mesh(
    mesh_shape: Sequence[int],
    dcn_mesh_shape: Sequence[int],
    devices: Sequence[Any] | None = None,
    *,
    process_is_granule: bool = False,
    should_sort_granules_by_key: bool = True,
    allow_split_physical_axes: bool = False,
) -> np.ndarray:
    """An array of devices from several granules (slices or processes), which are connected by a slower network.

    The devices of a granule form a block of shape ``mesh_shape``, and blocks are arranged in the shape
    ``dcn_mesh_shape``. So axis ``i`` has size ``mesh_shape[i] * dcn_mesh_shape[i]``. The granule of a device is its
    ``slice_index`` if it has one, else (and with ``process_is_granule``) its process.

    Raises:
      MeshError: the shapes have different lengths, or the number of granules, or of devices in one, does not fit.
    """
    shape, blocks = (tuple(int(n) for n in s) for s in (mesh_shape, dcn_mesh_shape))
    granules: dict[int, list[Any]] = {}
    for device in all_devices() if devices is None else devices:
        place = None if process_is_granule else getattr(device, "slice_index", None)
        granules.setdefault(device.process_index if place is None else place, []).append(device)
    if len(shape) != len(blocks) or len(granules) != math.prod(blocks):
        raise MeshError(
            f"create_hybrid_device_mesh: dcn_mesh_shape {blocks} must have as many entries as mesh_shape {shape}, and "
            f"the product {len(granules)}, the number of granules (slices or processes) of these devices; within one "
            "granule use create_device_mesh"
        )
    order = sorted(granules) if should_sort_granules_by_key else list(granules)
    grid = np.stack([create_device_mesh(shape, granules[key]) for key in order]).reshape(*blocks, *shape)
    sides = [axis for i in range(len(shape)) for axis in (i, len(shape) + i)]
    return grid.transpose(sides).reshape([a * b for a, b in zip(blocks, shape)])


__getattr__ = _absent("experimental.mesh_utils")
