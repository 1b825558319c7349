"""The mesh that the arguments of a function ask for."""

from __future__ import annotations

from meshwright.core.expected import as_integer
from meshwright.core.words import counted
from meshwright.errors import MeshError
from meshwright.sharding.mesh import AbstractMesh, AnyMesh, require_mesh


def mesh_asked(mesh: AnyMesh | None, num_devices: int | None, what: str) -> AnyMesh | None:
    """The mesh that two arguments ask for: itself, or one axis of so many devices; None if neither is given.

    Raises:
      ArgumentError: a number below one. MeshError: what is no mesh, or one of another number of devices.
    """
    require_mesh(mesh, what)
    if num_devices is None:
        return mesh
    size = as_integer(f"{what}: num_devices", num_devices, 1)
    if mesh is not None and mesh.size != size:
        raise MeshError(f"{what}: {mesh!r} has {counted(mesh.size, 'device')}, not num_devices={size}; leave one out")
    return mesh if mesh is not None else AbstractMesh((size,), ("devices",))
