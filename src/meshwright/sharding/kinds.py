"""Conversion of other kinds of shardings to named ones, and back.

Programs are laid out by :class:`NamedSharding` only. A sharding of another kind becomes one over a mesh that remembers
the kind (:class:`MeshOf`), and results over such a mesh are converted back to that kind. Layouts of one set of devices
can be expressed over any mesh whose axes split the devices at the same boundaries, so whether arrays can be used
together depends on their devices and not on mesh objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from meshwright.core.records import dataclass
from meshwright.sharding.abstract_mesh import AbstractMesh, AnyMachine
from meshwright.sharding.base import Sharding
from meshwright.sharding.hlo import HloSharding
from meshwright.sharding.hlo_convert import atoms_counted, hlo_to_layout, order_on
from meshwright.sharding.layout import Layout
from meshwright.sharding.mesh import AnyMesh, Mesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import UNCONSTRAINED, PartitionSpec

#: converts a sharding over a :class:`MeshOf`, given the shape of its array, to the user's kind
Back = Callable[[NamedSharding, tuple[int, ...]], Sharding]


class MeshOf(Mesh):
    """The mesh behind a sharding that has none; ``back`` converts shardings over it to the user's kind."""

    def __init__(self, devices: Any, axis_names: Sequence[str], back: Back, *, machine: AnyMachine = None) -> None:
        super().__init__(devices, axis_names, machine=machine)
        self.back = back

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MeshOf) and self.back == other.back and super().__eq__(other)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(MeshOf, machine=self.machine), (self.devices, self.axis_names, self.back)


def in_users_kind(sharding: Sharding, shape: Sequence[int]) -> Sharding:
    """Convert the sharding of a result to the kind of the user's arguments: positional in, positional out."""
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, MeshOf):
        return sharding.mesh.back(sharding, tuple(shape))
    return sharding


def says_explicitly(sharding: Any, mesh: AnyMesh, layout: Layout) -> bool:
    """Whether a sharding is explicit, over this mesh, and has this layout."""
    if not isinstance(sharding, NamedSharding) or not sharding.is_explicit or type(sharding.mesh) is not type(mesh):
        return False
    types = dict(zip(mesh.axis_names, mesh.axis_types))
    same = sharding.mesh.axis_names == mesh.axis_names and sharding.mesh.update_axis_types(types) == mesh
    return same and sharding.layout(len(layout.dims)) == layout


# --- one set of devices, several meshes ---------------------------------------------------------------------
def common_mesh(meshes: Iterable[AnyMesh]) -> AnyMesh | None:
    """The mesh over which the shardings of all ``meshes`` can be expressed; None if none of them allows it.

    Meshes that the user named take precedence over those behind other kinds of shardings.
    """
    several = sorted(dict.fromkeys(meshes), key=lambda mesh: isinstance(mesh, MeshOf))
    return next((m for m in several if all(_says(m, other) for other in several)), None)


def _says(mesh: AnyMesh, other: AnyMesh) -> bool:
    """Whether all layouts over ``other`` can be expressed over ``mesh``, possibly with another device order."""
    if mesh == other:
        return True
    if _places(mesh, other) is None:
        return False
    meshes = mesh.abstract_mesh, other.abstract_mesh
    return all(atoms_over(*meshes, (axis,)) is not None for axis in other.abstract_mesh.atoms)


@lru_cache(maxsize=4096)
def atoms_over(mesh: AnyMesh, other: AnyMesh, axes: tuple[str, ...]) -> tuple[str, ...] | None:
    """``axes`` of ``other`` as atoms of ``mesh``, major to minor; None if impossible or the devices differ."""
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
    """For each position of ``mesh``, the position of its device in ``other``; None if the devices differ."""
    ids, others = (m.flat_ids if isinstance(m, Mesh) else tuple(range(m.size)) for m in (mesh, other))
    where = {device: i for i, device in enumerate(others)}
    if where.keys() != set(ids):
        return None
    return np.array([where[device] for device in ids])


@dataclass(frozen=True)
class LogicalDevice:
    """A device of which only the number in the program is known."""

    id: int

    def __repr__(self) -> str:
        return f"device {self.id}"


#: for each position of a mesh, the position whose tile its device holds
Places = tuple[int, ...]


def in_own_order(sharding: HloSharding, ndim: int, mesh: AnyMesh) -> NamedSharding:
    """Express a tile assignment that the mesh's axes do not follow over these axes, with a device order of its own.

    Raises:
      ShardingError: it does not fit the value, or the number of devices.
    """
    sharding.check(ndim, mesh.size)
    order = order_on(sharding, mesh.abstract_mesh)
    layout = hlo_to_layout(sharding, ndim, mesh.abstract_mesh, order)
    by_number = sorted(mesh.devices.flat, key=lambda d: d.id) if isinstance(mesh, Mesh) else None
    devices = np.array([by_number[i] if by_number else LogicalDevice(i) for i in order], object)
    reordered = Mesh(devices.reshape(mesh.axis_sizes), mesh.axis_names)
    return NamedSharding(reordered, layout.to_spec(mesh.abstract_mesh))


@lru_cache(maxsize=4096)
def reordered(sharding: NamedSharding, mesh: AnyMesh) -> tuple[NamedSharding, Places] | None:
    """Translate a sharding to ``mesh``, which has the same devices in another order, and the places of the tiles.

    None if the devices differ, or if the axes of ``mesh`` split them at other boundaries.
    """
    if mesh.size != sharding.mesh.size or (places := _places(mesh, sharding.mesh)) is None:
        return None
    translated = over(NamedSharding(sharding.abstract_mesh, sharding.spec), mesh.abstract_mesh)
    if translated is None:
        return None
    return NamedSharding(mesh, translated.spec), tuple(places.tolist())


@lru_cache(maxsize=4096)
def over(sharding: NamedSharding, mesh: AnyMesh) -> NamedSharding | None:
    """The sharding with the same tiles on the same devices over ``mesh``; None if its axes cannot express it."""
    if sharding.mesh == mesh:
        return sharding
    entries: list[Any] = []
    for dim, entry in enumerate(sharding.spec):
        atoms = atoms_over(mesh, sharding.mesh, sharding.spec.axes(dim))
        if atoms is None:
            return None
        entries.append(entry if entry is UNCONSTRAINED else mesh.abstract_mesh.coalesce(atoms))
    return NamedSharding(mesh, PartitionSpec(*entries))
