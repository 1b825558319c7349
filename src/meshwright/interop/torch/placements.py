"""DTensor's placements and ``DeviceMesh``, as shardings and meshes, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from meshwright.core.words import counted
from meshwright.errors import ArgumentTypeError, MeshError, ShardingError
from meshwright.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

AnyMesh = Mesh | AbstractMesh


# --- meshes -------------------------------------------------------------------------------------------------
def from_device_mesh(device_mesh: DeviceMesh) -> AbstractMesh:
    """The axes of a ``DeviceMesh``, without its devices.

    Raises:
      ArgumentTypeError: it is none.
    """
    if not isinstance(device_mesh, DeviceMesh):
        raise ArgumentTypeError(f"from_device_mesh: expected a DeviceMesh of torch, got {type(device_mesh).__name__}")
    names = device_mesh.mesh_dim_names or tuple(f"dim{i}" for i in range(device_mesh.ndim))
    return AbstractMesh(tuple(device_mesh.shape), tuple(names))


def to_device_mesh(mesh: AnyMesh, device_type: str = "cpu") -> DeviceMesh:
    """A mesh as a ``DeviceMesh`` of torch's processes: a device's number is the rank of its process.

    Raises:
      MeshError: torch has no process group yet, or one of fewer processes.
      ArgumentTypeError: no mesh.
    """
    mesh = as_mesh(mesh, "to_device_mesh")
    if not torch.distributed.is_initialized():
        raise MeshError("to_device_mesh: torch has no processes yet; call torch.distributed.init_process_group")
    ranks = [d.id for d in mesh.devices.flat] if isinstance(mesh, Mesh) else list(range(mesh.size))
    if max(ranks) >= (world := torch.distributed.get_world_size()):
        raise MeshError(
            f"to_device_mesh: {mesh} has device {max(ranks)}, of {counted(world, 'process', 'processes')} that torch "
            "has"
        )
    shape = tuple(mesh.shape.values())
    return DeviceMesh(device_type, torch.tensor(ranks).reshape(shape), mesh_dim_names=tuple(mesh.axis_names))


def as_mesh(mesh: Any, what: str) -> AnyMesh:
    """A mesh of ours; the axes of one of torch's.

    Raises:
      ArgumentTypeError: neither.
    """
    if isinstance(mesh, DeviceMesh):
        return from_device_mesh(mesh)
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        raise ArgumentTypeError(f"{what}: expected a Mesh, an AbstractMesh or a DeviceMesh, got {mesh!r}")
    return mesh


# --- placements ---------------------------------------------------------------------------------------------
def from_placements(placements: Sequence[Placement], mesh: AnyMesh, ndim: int) -> NamedSharding:
    """DTensor's placements (one for each dimension of the mesh) as a sharding of a tensor with ``ndim`` dimensions.

    Mesh dimensions that split the same dimension of the tensor do so from left to right, unless ``_StridedShard`` says
    that some to its right were applied before it: its factor is the number of parts that these make. (Sizes that the
    parts do not divide are split by torch in one step after another, here in one.)

    Raises:
      ShardingError: a pending sum (``Partial``), which no sharding of an argument says; another number of them; a
        dimension that the tensor does not have; a ``_StridedShard`` whose factor is no number of parts that axes to
        its right make.
      ArgumentTypeError: no placements, or no mesh.
    """
    mesh = as_mesh(mesh, "from_placements")
    if not isinstance(placements, (tuple, list)) or not all(isinstance(p, Placement) for p in placements):
        raise ArgumentTypeError(f"from_placements: expected a sequence of torch's placements, got {placements!r}")
    if len(placements) != len(mesh.axis_names):
        raise ShardingError(
            f"{counted(len(placements), 'placement')} for the {counted(len(mesh.axis_names), 'axis', 'axes')} of {mesh}"
        )
    dims: list[list[str]] = [[] for _ in range(ndim)]
    for axis, placement in reversed(list(zip(mesh.axis_names, placements))):
        if isinstance(placement, (Shard, _StridedShard)):
            _insert(axis, placement, dims, mesh)
        elif isinstance(placement, Partial):
            raise ShardingError(f"a pending sum over {axis!r} ({placement}) is no sharding; redistribute it first")
        elif not isinstance(placement, Replicate):
            raise ShardingError(f"the placement {placement!r} over {axis!r} is no sharding")
    return NamedSharding(mesh, PartitionSpec(*(tuple(d) if len(d) > 1 else d[0] if d else None for d in dims)))


def _insert(axis: str, placement: Any, dims: list[list[str]], mesh: AnyMesh) -> None:
    """Put an axis before those to its right, or behind as many of them as its factor says."""
    dim, ndim = placement.dim, len(dims)
    if not -ndim <= dim < ndim:
        raise ShardingError(f"{placement} over {axis!r}: the tensor has {counted(ndim, 'dimension')}")
    later, factor = dims[dim], getattr(placement, "split_factor", 1)
    parts = [math.prod(mesh.shape[a] for a in later[:n]) for n in range(len(later) + 1)]
    if factor not in parts:
        raise ShardingError(
            f"_StridedShard over {axis!r} with split_factor={factor}: the axes to its right that split dimension "
            f"{dim} make {' or '.join(map(str, parts))} parts"
        )
    later.insert(parts.index(factor), axis)


def axes_of(entry: Any) -> tuple[str, ...]:
    """The axes of an entry of a spec.

    Raises:
      ShardingError: an open entry, which says nothing yet.
    """
    if entry is None or isinstance(entry, str):
        return () if entry is None else (entry,)
    if not isinstance(entry, tuple):
        raise ShardingError(f"{entry} leaves a dimension open; a placement is one that has been chosen")
    return entry


def to_placements(sharding: NamedSharding) -> tuple[Placement, ...]:
    """A sharding as DTensor's placements, one for each axis of its mesh; where axes split a dimension in another order
    than the mesh has them, with ``_StridedShard``.

    Raises:
      ShardingError: a sharding that leaves a dimension open.
      ArgumentTypeError: it is none that names axes of a mesh.
    """
    if not isinstance(sharding, NamedSharding):
        raise ArgumentTypeError(f"to_placements: expected a NamedSharding, got {sharding!r}")
    shape = sharding.mesh.shape
    names = list(shape)
    placements: list[Placement] = [Replicate() for _ in names]
    for dim, entry in enumerate(sharding.spec):
        axes = axes_of(entry)
        for n, axis in enumerate(axes):
            at = names.index(axis)
            factor = math.prod(shape[a] for a in axes[:n] if names.index(a) > at)
            placements[at] = Shard(dim) if factor == 1 else _StridedShard(dim, split_factor=factor)
    return tuple(placements)
