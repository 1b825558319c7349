"""The mesh that a function's arguments ask for."""

from __future__ import annotations

from meshwright.core.expected import as_integer
from meshwright.core.words import counted
from meshwright.errors import MeshError
from meshwright.sharding.abstract_mesh import AbstractMesh
from meshwright.sharding.current_mesh import require_mesh
from meshwright.sharding.mesh import AnyMesh


def mesh_asked(mesh: AnyMesh | None, num_devices: int | None, what: str) -> AnyMesh | None:
    """The mesh that two arguments ask for: ``mesh``, or one axis of ``num_devices``; None if neither is given.

    Raises:
      ArgumentError: ``num_devices`` is below 1.
      MeshError: ``mesh`` is not a mesh, or has another number of devices.
    """
    require_mesh(mesh, what)
    if num_devices is None:
        return mesh
    size = as_integer(f"{what}: num_devices", num_devices, 1)
    if mesh is not None and mesh.size != size:
        raise MeshError(f"{what}: {mesh} has {counted(mesh.size, 'device')}, not num_devices={size}; leave one out")
    return mesh if mesh is not None else AbstractMesh((size,), ("devices",))
