"""``jax.experimental.mesh_utils``: devices arranged as a mesh. Virtual ones are alike, so that any order is good."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

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
    """Devices in an array of ``mesh_shape``, for :class:`meshwright.Mesh`; all of them unless they are given.

    Devices with coordinates (those of a :func:`meshwright.target`) are placed so that neighbours along a dimension are
    connected, if that can be; the two other arguments ask for what is always done.

    Raises:
      MeshError: another number of devices.

    Example:
      >>> from meshwright.experimental import mesh_utils
      >>> mw.Mesh(mesh_utils.create_device_mesh((4, 2)), ("data", "model")).shape["data"]  # of 8 devices
      4
    """
    found = list(all_devices() if devices is None else devices)
    shape = tuple(int(n) for n in mesh_shape)
    if len(found) != math.prod(shape):
        raise MeshError(
            f"create_device_mesh: a mesh of shape {shape} needs {math.prod(shape)} devices, there are {len(found)}; "
            "give devices, or set meshwright.config.update('num_devices', ...) before they are first used"
        )
    return placed(found, shape)


def create_hybrid_device_mesh(
    mesh_shape: Sequence[int],
    dcn_mesh_shape: Sequence[int],
    devices: Sequence[Any] | None = None,
    *,
    process_is_granule: bool = False,
    should_sort_granules_by_key: bool = True,
    allow_split_physical_axes: bool = False,
) -> np.ndarray:
    """:func:`create_device_mesh` of slices that a slower network joins; there is one slice here.

    Raises:
      MeshError: ``dcn_mesh_shape`` asks for several slices, or another number of devices.
    """
    if math.prod(dcn_mesh_shape) != 1 or len(dcn_mesh_shape) != len(mesh_shape):
        raise MeshError(
            f"create_hybrid_device_mesh: dcn_mesh_shape {tuple(dcn_mesh_shape)} must be ones, as many as in mesh_shape "
            f"{tuple(mesh_shape)}: all devices are in one process; use create_device_mesh"
        )
    return create_device_mesh(mesh_shape, devices)
