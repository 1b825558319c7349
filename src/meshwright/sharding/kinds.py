"""Shardings of other kinds as named ones, and back.

Programs are laid out by :class:`NamedSharding` alone. A sharding of another kind stands for one over a mesh that
remembers the kind (:class:`MeshOf`): results over such a mesh are given back as what the user works with. And the
layouts of one set of devices can be said over any mesh whose axes cut the devices where they do, so that devices
decide what may meet, and not mesh objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.core.records import dataclass
from meshwright.sharding.base import Sharding
from meshwright.sharding.hlo import HloSharding
from meshwright.sharding.hlo_convert import atoms_counted, hlo_to_layout, own_order
from meshwright.sharding.layout import Layout
from meshwright.sharding.mesh import AbstractMesh, AnyMesh, Mesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import UNCONSTRAINED, PartitionSpec

#: a sharding over a :class:`MeshOf`, and the shape of its array, as the user's kind
Back = Callable[[NamedSharding, tuple[int, ...]], Sharding]


class MeshOf(Mesh):
    """The mesh that a sharding without one stands for; ``back`` makes shardings over it ones of the user's kind."""

    def __init__(self, devices: Any, axis_names: Sequence[str], back: Back) -> None:
        super().__init__(devices, axis_names)
        self.back = back

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MeshOf) and self.back == other.back and super().__eq__(other)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return MeshOf, (self.devices, self.axis_names, self.back)


def in_users_kind(sharding: Sharding, shape: Sequence[int]) -> Sharding:
    """The sharding of a result as the user's arguments have theirs: positional in, positional out."""
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, MeshOf):
        return sharding.mesh.back(sharding, tuple(shape))
    return sharding


def says_explicitly(sharding: Any, mesh: AnyMesh, layout: Layout) -> bool:
    """Whether a sharding is explicit, over this mesh, and of this layout."""
    if not isinstance(sharding, NamedSharding) or not sharding.is_explicit or type(sharding.mesh) is not type(mesh):
        return False
    types = dict(zip(mesh.axis_names, mesh.axis_types))
    same = sharding.mesh.axis_names == mesh.axis_names and sharding.mesh.update_axis_types(types) == mesh
    return same and sharding.layout(len(layout.dims)) == layout


# --- one set of devices, several meshes ---------------------------------------------------------------------
def common_mesh(meshes: Iterable[AnyMesh]) -> AnyMesh | None:
    """The one of several meshes over the same devices that can say the shardings of all; None if there is none.

    A mesh that the user named goes before one that a sharding without a mesh stands for.
    """
    several = sorted(dict.fromkeys(meshes), key=lambda mesh: isinstance(mesh, MeshOf))
    return next((m for m in several if all(_says(m, other) for other in several)), None)


def _says(mesh: AnyMesh, other: AnyMesh) -> bool:
    """Whether everything that can be laid out over ``other`` can be over ``mesh``, the devices being in some order."""
    if mesh == other:
        return True
    if _places(mesh, other) is None:
        return False
    meshes = mesh.abstract_mesh, other.abstract_mesh
    return all(atoms_over(*meshes, (axis,)) is not None for axis in other.abstract_mesh.atoms)


@lru_cache(maxsize=4096)
def atoms_over(mesh: AnyMesh, other: AnyMesh, axes: tuple[str, ...]) -> tuple[str, ...] | None:
    """``axes`` of ``other`` as atoms of ``mesh``, major to minor; None if they are none, or the devices are others."""
    if mesh.size != other.size:
        return None
    place = _places(mesh, other)
    if place is None:
        return None
    abstract = other.abstract_mesh
    numbers = np.zeros(other.size, np.int64)
    strides = dict(zip(abstract.atoms, _strides(abstract)))
    for atom in abstract.expand(axes):
        size = abstract.axis_size(atom)
        numbers = numbers * size + np.arange(other.size) // strides[atom] % size
    return atoms_counted(numbers[place], mesh.abstract_mesh)


def _strides(mesh: AbstractMesh) -> list[int]:
    sizes = mesh.atom_sizes
    return [int(np.prod(sizes[i + 1 :], dtype=np.int64)) for i in range(len(sizes))]


def _places(mesh: AnyMesh, other: AnyMesh) -> np.ndarray | None:
    """For each position of ``mesh``, where its device stands in ``other``; None if the devices are others."""
    ids, others = (m.device_ids if isinstance(m, Mesh) else tuple(range(m.size)) for m in (mesh, other))
    where = {device: i for i, device in enumerate(others)}
    if where.keys() != set(ids):
        return None
    return np.array([where[device] for device in ids])


@dataclass(frozen=True)
class LogicalDevice:
    """A device of a program by its number, where nothing more is known of it."""

    id: int

    def __repr__(self) -> str:
        return f"device {self.id}"


#: for each position of a mesh, the position whose tile the device there holds
Places = tuple[int, ...]


def in_own_order(sharding: HloSharding, ndim: int, mesh: AnyMesh) -> NamedSharding:
    """A tile assignment that numbers devices otherwise than ``mesh``: over the axes of the mesh, with the devices in
    the assignment's own order.

    Raises:
      ShardingError: the mesh has no axes for it.
    """
    order = own_order(sharding)
    layout = hlo_to_layout(sharding, ndim, mesh.abstract_mesh, order)
    by_number = sorted(mesh.devices.flat, key=lambda d: d.id) if isinstance(mesh, Mesh) else None
    devices = np.array([by_number[i] if by_number else LogicalDevice(i) for i in order], object)
    reordered = Mesh(devices.reshape(mesh.axis_sizes), mesh.axis_names)
    return NamedSharding(reordered, layout.to_spec(mesh.abstract_mesh))


@lru_cache(maxsize=4096)
def reordered(sharding: NamedSharding, mesh: AnyMesh) -> tuple[NamedSharding, Places] | None:
    """A sharding over a mesh of the same devices in another order: the one with its tiles over ``mesh``, and who has
    them. None if the devices are others, or the axes cut them elsewhere."""
    if mesh.size != sharding.mesh.size or (places := _places(mesh, sharding.mesh)) is None:
        return None
    translated = over(NamedSharding(sharding.abstract_mesh, sharding.spec), mesh.abstract_mesh)
    if translated is None:
        return None
    return NamedSharding(mesh, translated.spec), tuple(places.tolist())


@lru_cache(maxsize=4096)
def over(sharding: NamedSharding, mesh: AnyMesh) -> NamedSharding | None:
    """The sharding of the same tiles on the same devices over ``mesh``; None if its axes cannot say that."""
    if sharding.mesh == mesh:
        return sharding
    entries: list[Any] = []
    for dim, entry in enumerate(sharding.spec):
        atoms = atoms_over(mesh, sharding.mesh, sharding.spec.axes(dim))
        if atoms is None:
            return None
        entries.append(entry if entry is UNCONSTRAINED else mesh.abstract_mesh.coalesce(atoms))
    return NamedSharding(mesh, PartitionSpec(*entries))
