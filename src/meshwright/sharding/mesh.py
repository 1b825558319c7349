"""Meshes: grids of devices with named dimensions.

``AbstractMesh`` is the grid alone (sizes and names), which is all that propagation, partitioning and cost models need.
``Mesh`` adds the devices. Both are values with a precomputed hash, as they are part of every cache key on the way to an
executable. Both know their atomic axes (see ``axes``).

Source: ``jax.sharding.Mesh`` and ``AbstractMesh`` for the interface.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property, partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from meshwright.core.expected import as_integers, as_tuple
from meshwright.core.late import LateModule
from meshwright.core.slots import Slot
from meshwright.core.words import counted
from meshwright.errors import MeshError, ShardingError
from meshwright.hardware.fabric import Fabric, fabric_of
from meshwright.hardware.links import Link
from meshwright.hardware.machine import Machine, machine_for
from meshwright.sharding.axes import MOST_DEVICES, AxisPart, atomic_parts, parse_part
from meshwright.sharding.axes_of_types import AxesOfTypes
from meshwright.sharding.axis_type import AxisType, types_of

html = LateModule("html")
AxisTypes = AxisType | Sequence[AxisType] | None


@runtime_checkable
class DeviceLike(Protocol):
    """What a mesh requires of a device: an id that is unique among the devices of a program."""

    @property
    def id(self) -> int: ...


#: a machine, or its name
AnyMachine = Machine | str | None


class AbstractMesh(AxesOfTypes):
    """A mesh without devices: ``AbstractMesh((4, 2), ("data", "model"))``.

    ``machine`` is the hardware that it is for, ``"v5e:16x16"`` or a :class:`meshwright.hardware.Machine`; costs and
    times are then predicted for it.
    """

    def __init__(
        self,
        axis_sizes: Sequence[int],
        axis_names: Sequence[str],
        axis_types: AxisTypes = None,
        *,
        machine: AnyMachine = None,
    ) -> None:
        self.axis_sizes: tuple[int, ...] = as_integers("mesh: axis_sizes", axis_sizes)
        self.axis_names: tuple[str, ...] = as_tuple("mesh: axis_names", "a sequence of strings", axis_names)
        _check_axes(self.axis_sizes, self.axis_names)
        self.axis_types: tuple[AxisType, ...] = types_of("AbstractMesh", axis_types, self.axis_names)
        self.machine: Machine | None = None if machine is None else machine_for(machine, self.size)
        #: the links that the axes use
        self.fabric: Fabric = fabric_of(self.shape, self.machine)
        self._hash = hash((self.axis_sizes, self.axis_names))
        self._atoms_of: dict[str, tuple[str, ...]] = {}
        self._sizes: dict[tuple[str, ...], int] = {}

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, AbstractMesh):
            return NotImplemented
        same = self.axis_sizes == other.axis_sizes and self.axis_names == other.axis_names
        return same and self.axis_types == other.axis_types and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:  # the hash is not pickled, as string hashes differ between processes
        return _remade, (self.axis_sizes, self.axis_names, self.machine, self._key, self.axis_types)

    def __repr__(self) -> str:
        return f"AbstractMesh({_axes_text(self)}{_types_text(self)}{_machine_text(self)})"

    @property
    def _key(self) -> Fabric | None:
        """The known hardware, for comparisons."""
        return self.fabric if self.fabric.is_given else None

    def restricted(self, axis_names: Iterable[str]) -> AbstractMesh:
        """The mesh of some of the axes, on the same hardware."""
        names = as_tuple("mesh: axis_names", "a sequence of strings", axis_names)
        types = [dict(zip(self.axis_names, self.axis_types))[a] for a in names]
        key = self._key and self._key.restricted(names)
        return _remade([self.shape[a] for a in names], names, self.machine, key, types)

    def update_axis_types(self, types: Mapping[str, AxisType]) -> AbstractMesh:
        """The same mesh with other types for some axes."""
        new = _retyped(dict(zip(self.axis_names, self.axis_types)), types)
        if new == self.axis_types:
            return self
        return _remade(self.axis_sizes, self.axis_names, self.machine, self._key, new)

    def on(self, machine: AnyMachine) -> AbstractMesh:
        """The same mesh on a machine.

        Raises:
          MeshError: the machine has another number of devices.
        """
        return AbstractMesh(self.axis_sizes, self.axis_names, self.axis_types, machine=machine)

    @property
    def abstract_mesh(self) -> AbstractMesh:
        return self

    @property
    def empty(self) -> bool:
        return not self.axis_names

    @cached_property
    def shape(self) -> dict[str, int]:
        """Axis sizes by name, in mesh order."""
        return dict(zip(self.axis_names, self.axis_sizes))

    @cached_property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.axis_sizes)

    # --- atomic axes ----------------------------------------------------------------------------------------
    @cached_property
    def _parts(self) -> dict[str, AxisPart]:
        """The part of each atom, in mesh order: the first axis is the most significant."""
        shape = self.shape
        parts = (part for axis, size in shape.items() for part in atomic_parts(axis, size))
        return {part.name(shape[part.axis]): part for part in parts}

    @cached_property
    def atoms(self) -> tuple[str, ...]:
        """All atomic axes, in mesh order. Row-major over their sizes is row-major over the mesh."""
        return tuple(self._parts)

    @cached_property
    def atom_sizes(self) -> tuple[int, ...]:
        return tuple(part.size for part in self._parts.values())

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {atom: position for position, atom in enumerate(self._parts)}

    def atoms_of(self, axis: str) -> tuple[str, ...]:
        """The atoms of an axis, of a sub-axis such as ``data:(1)4``, or of an atom (itself)."""
        atoms = self._atoms_of.get(axis)
        if atoms is None:
            atoms = self._atoms_of[axis] = self._find_atoms(axis)
        return atoms

    def _find_atoms(self, axis: str) -> tuple[str, ...]:
        shape = self.shape
        if axis in shape:
            return tuple(part.name(shape[axis]) for part in atomic_parts(axis, shape[axis]))
        sub_axis = parse_part(axis) if isinstance(axis, str) else None
        if sub_axis is None or sub_axis.axis not in shape:
            raise ShardingError(
                f"axis {axis!r} is not an axis of the mesh: expected one of {self._known()}; "
                f"use one of these names or make a mesh that has {axis!r}"
            )
        parts = atomic_parts(sub_axis.axis, shape[sub_axis.axis])
        inside = [p for p in parts if sub_axis.pre <= p.pre and p.pre * p.size <= sub_axis.pre * sub_axis.size]
        starts_right = sub_axis.size == 1 or (bool(inside) and inside[0].pre == sub_axis.pre)
        if not starts_right or math.prod(p.size for p in inside) != sub_axis.size:
            splits = ", ".join(p.name(shape[sub_axis.axis]) for p in parts) or "none: its size is 1"
            raise ShardingError(
                f"sub-axis {axis!r} is not a part of axis {sub_axis.axis!r} of size {shape[sub_axis.axis]}: "
                f"expected consecutive parts of ({splits}); "
                "write it as these, or split the axis in the mesh itself"
            )
        return tuple(p.name(shape[sub_axis.axis]) for p in inside)

    def axis_size(self, axis: str) -> int:
        """The number of positions of an axis, sub-axis or atom."""
        if axis in self._parts:
            return self._parts[axis].size
        size = self.shape.get(axis)
        return size if size is not None else self.sizes(self.atoms_of(axis))

    def sizes(self, axes: Iterable[str]) -> int:
        """The product of the sizes of ``axes``, that is, the size of a device group over them."""
        axes = tuple(axes)
        if axes not in self._sizes:
            self._sizes[axes] = math.prod(map(self.axis_size, axes))
        return self._sizes[axes]

    def expand(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Axes and sub-axes as atoms, in the given order."""
        return tuple(atom for axis in axes for atom in self.atoms_of(axis))

    def in_mesh_order(self, atoms: Iterable[str]) -> tuple[str, ...]:
        """Atoms sorted by their position in the mesh."""
        return tuple(sorted(atoms, key=self._positions.__getitem__))

    def axis_of(self, atom: str) -> str:
        """The name of the axis that ``atom`` is a part of."""
        return self._parts[atom].axis

    def coalesce(self, atoms: Iterable[str]) -> tuple[str, ...]:
        """Merge adjacent atoms into sub-axes and whole axes, for printing and for collectives."""
        merged: list[AxisPart] = []
        for atom in atoms:
            part = self._parts[atom]
            last = merged[-1] if merged else None
            if last is not None and last.axis == part.axis and last.pre * last.size == part.pre:
                merged[-1] = AxisPart(part.axis, last.pre, last.size * part.size)
            else:
                merged.append(part)
        return tuple(part.name(self.shape[part.axis]) for part in merged)

    # --- hardware -------------------------------------------------------------------------------------------
    def levels(self, axes: Iterable[str]) -> tuple[Link, ...]:
        """The links that a group over axes (or sub-axes, or atoms) uses."""
        return self.fabric.levels(self._places(axes))

    def bandwidth(self, axis: str) -> float:
        """The bandwidth along an axis in bytes per second: that of the slowest link that it uses."""
        return min((link.bandwidth for link in self.levels((axis,))), default=math.inf)

    def collective_seconds(self, kind: str, axes: Sequence[str], operand: float, result: float) -> float:
        """The predicted seconds of a collective over axes, given the bytes of its operand and result on a device."""
        return self.fabric.seconds(kind, self._places(axes), operand, result)

    def wire_price(self, kind: str, axes: Sequence[str], operand: float, result: float) -> int:
        """The same time as a number of bytes on the fastest links, the unit in which plans are priced."""
        return round(self.collective_seconds(kind, axes, operand, result) * self.fabric.fastest)

    def _places(self, axes: Iterable[str]) -> list[tuple[str, int, int]]:
        """Axes as parts: the name of the whole axis, the positions in more significant parts, and the size."""
        parts = [(axis, parse_part(axis)) for axis in axes]
        return [(p.axis, p.pre, p.size) if p is not None else (axis, 1, self.shape[axis]) for axis, p in parts]

    def _known(self) -> str:
        return ", ".join(f"{n!r} (size {s})" for n, s in self.shape.items()) or "none, the mesh is empty"


class Mesh(AxesOfTypes):
    """A named grid of devices: ``Mesh(np.array(devices).reshape(4, 2), ("data", "model"))``."""

    def __init__(
        self, devices: Any, axis_names: Sequence[str], axis_types: AxisTypes = None, *, machine: AnyMachine = None
    ) -> None:
        self.devices: np.ndarray = _device_array(devices)
        names = as_tuple("mesh: axis_names", "a sequence of strings", axis_names)
        if self.devices.ndim != len(names):
            raise MeshError(
                f"Mesh: devices have {counted(self.devices.ndim, 'dimension')} {self.devices.shape} but axis_names "
                f"{names} names {len(names)}; give one name per dimension, or reshape the devices"
            )
        self.abstract_mesh = AbstractMesh(self.devices.shape, names, axis_types, machine=machine)
        self.flat_ids: tuple[int, ...] = tuple(int(device.id) for device in self.devices.flat)
        _check_unique(self.flat_ids, "Mesh: devices", "every device can stand in a mesh only once")
        self._hash = hash((self.abstract_mesh, self.flat_ids))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Mesh):
            return NotImplemented
        return self.abstract_mesh == other.abstract_mesh and self.flat_ids == other.flat_ids

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Mesh, machine=self.machine), (self.devices, self.axis_names, self.axis_types)

    def __repr__(self) -> str:
        mesh = self.abstract_mesh
        return f"Mesh({_axes_text(mesh)}{_types_text(mesh)}{_machine_text(mesh)})"

    def _repr_html_(self) -> str:
        ids = np.array2string(self.device_ids)
        return f"<pre>{html.escape(repr(self))}\n{ids}</pre>"

    def update_axis_types(self, types: Mapping[str, AxisType]) -> Mesh:
        """The same devices with other types for some axes."""
        new = self.abstract_mesh.update_axis_types(types).axis_types
        return self if new == self.axis_types else Mesh(self.devices, self.axis_names, new, machine=self.machine)

    def __enter__(self) -> Mesh:
        _CURRENT.set((*_CURRENT.get(), self))
        return self

    def __exit__(self, *exception: object) -> None:
        _CURRENT.set(_CURRENT.get()[:-1])

    @property
    def machine(self) -> Machine | None:
        return self.abstract_mesh.machine

    @property
    def device_ids(self) -> np.ndarray:
        """The ids of the devices, in the shape of the mesh."""
        return np.array(self.flat_ids, np.int64).reshape(self.axis_sizes)

    @property
    def local_devices(self) -> list[Any]:
        """The devices that belong to this process, in the order of the mesh."""
        return [d for d in self.devices.flat if getattr(d, "is_addressable", True)]

    @property
    def local_mesh(self) -> Mesh:
        """The block of devices of this process; raises MeshError if its devices do not form a block."""
        return LOCAL_MESH.value(self)

    @cached_property
    def is_multi_process(self) -> bool:
        """Whether it contains devices of several processes."""
        return len({getattr(d, "process_index", 0) for d in self.devices.flat}) > 1

    @property
    def axis_names(self) -> tuple[str, ...]:
        return self.abstract_mesh.axis_names

    @property
    def axis_sizes(self) -> tuple[int, ...]:
        return self.abstract_mesh.axis_sizes

    @property
    def shape(self) -> dict[str, int]:
        return self.abstract_mesh.shape

    @property
    def size(self) -> int:
        return self.abstract_mesh.size

    @property
    def axis_types(self) -> tuple[AxisType, ...]:
        return self.abstract_mesh.axis_types

    @property
    def empty(self) -> bool:
        return self.abstract_mesh.empty


AnyMesh = Mesh | AbstractMesh
LOCAL_MESH: Slot[Callable[[Mesh], Mesh]] = Slot("a process's part of a mesh", "meshwright.runtime.devices")


# --- the current mesh ---------------------------------------------------------------------------------------
_CURRENT: ContextVar[tuple[AnyMesh | None, ...]] = ContextVar("meshwright_current_mesh", default=())


class _MeshSetting:
    """The result of ``set_mesh``: as a context manager, it restores the previous mesh on exit."""

    def __init__(self, mesh: AnyMesh | None, before: tuple[AnyMesh | None, ...]) -> None:
        self.mesh = mesh
        self._before = before

    def __enter__(self) -> AnyMesh | None:
        return self.mesh

    def __exit__(self, *exception: object) -> None:
        _CURRENT.set(self._before)


def set_mesh(mesh: AnyMesh | None) -> _MeshSetting:
    """Make ``mesh`` the current mesh, from now on or, as ``with set_mesh(mesh):``, for a block.

    The current mesh is the one to which a ``PartitionSpec`` in place of a sharding refers. None means no mesh.

    Raises:
      MeshError: ``mesh`` is not a mesh.

    Example:
      >>> with mw.set_mesh(mw.make_mesh((4,), ("x",))):
      ...     y = mw.jit(lambda x: 2 * x, in_shardings=(P("x"),), out_shardings=P("x"))(mnp.arange(8))
      >>> y.sharding
      NamedSharding(mesh=Mesh('x': 4), spec=PartitionSpec('x',))
    """
    require_mesh(mesh, "set_mesh")
    before = _CURRENT.get()
    _CURRENT.set((*before[:-1], mesh))
    return _MeshSetting(mesh, before)


def require_mesh(mesh: Any, what: str) -> None:
    """Raise ``MeshError`` unless ``mesh`` is a mesh or None."""
    if mesh is not None and not isinstance(mesh, (Mesh, AbstractMesh)):
        name = type(mesh).__name__
        raise MeshError(f"{what}: expected a Mesh, an AbstractMesh or None, got {name}; make one with make_mesh")


def get_mesh() -> AnyMesh | None:
    """The current mesh: that of the innermost ``with mesh:`` or of the last ``set_mesh``; None if there is none.

    Example:
      >>> with mw.make_mesh((2, 4), ("x", "y")):
      ...     mw.get_mesh()
      Mesh('x': 2, 'y': 4)
    """
    stack = _CURRENT.get()
    return stack[-1] if stack else None


def get_abstract_mesh() -> AbstractMesh:
    """The current mesh without its devices; a mesh without axes if there is none.

    Example:
      >>> with mw.make_mesh((2, 4), ("x", "y")):
      ...     mw.sharding.get_abstract_mesh()
      AbstractMesh('x': 2, 'y': 4)
      >>> mw.sharding.get_abstract_mesh().empty
      True
    """
    mesh = get_mesh()
    return AbstractMesh((), ()) if mesh is None else mesh.abstract_mesh


# --- checks -------------------------------------------------------------------------------------------------
def _axes_text(mesh: AbstractMesh) -> str:
    return ", ".join(f"{name!r}: {size}" for name, size in mesh.shape.items())


def _types_text(mesh: AbstractMesh) -> str:
    if all(t is AxisType.Auto for t in mesh.axis_types):
        return ""
    names = ", ".join(map(repr, mesh.axis_types))
    return f", axis_types=({names}{',' if len(mesh.axis_types) == 1 else ''})"


def _retyped(mine: Mapping[str, AxisType], types: Mapping[str, AxisType]) -> tuple[AxisType, ...]:
    unknown = sorted(types.keys() - mine.keys())
    if unknown:
        raise MeshError(f"update_axis_types: {', '.join(unknown)} is no axis; the mesh has {', '.join(mine)}")
    return tuple({**mine, **types}.values())


def _machine_text(mesh: AbstractMesh) -> str:
    return f", machine={mesh.machine.name!r}" if mesh.machine is not None else ""


def _remade(
    sizes: Sequence[int],
    names: Sequence[str],
    machine: Machine | None,
    fabric: Fabric | None,
    types: AxisTypes = None,
) -> AbstractMesh:
    """A mesh with known hardware, which may be a part of a machine."""
    mesh = AbstractMesh(sizes, names, types)
    mesh.machine = machine
    if fabric is not None:
        mesh.fabric = fabric
    return mesh


def _check_axes(sizes: tuple[int, ...], names: tuple[str, ...]) -> None:
    if len(sizes) != len(names):
        raise MeshError(f"mesh: {len(sizes)} axis sizes {sizes} but {len(names)} names {names}; give one name per size")
    for name, size in zip(names, sizes):
        if not isinstance(name, str) or not name:
            raise MeshError(f"mesh: axis name {name!r} is not a non-empty string; use strings as names")
        if parse_part(name) is not None:
            raise MeshError(f"mesh: axis name {name!r} reads as a sub-axis; choose one without ':(m)k'")
        if size < 1:
            raise MeshError(f"mesh: axis {name!r} has size {size}; every axis needs at least one position")
    _check_unique(names, "mesh: axis_names", "give every axis its own name")
    if math.prod(sizes) > MOST_DEVICES:
        raise MeshError(f"mesh: axes of sizes {sizes} make {math.prod(sizes)} devices; expected at most {MOST_DEVICES}")


def _check_unique(values: tuple[Any, ...], what: str, remedy: str) -> None:
    if len(set(values)) < len(values):
        twice = sorted({value for value in values if values.count(value) > 1})
        raise MeshError(f"{what} {values} has {', '.join(map(repr, twice))} more than once; {remedy}")


def _device_array(devices: Any) -> np.ndarray:
    array = devices if isinstance(devices, np.ndarray) else np.array(devices, dtype=object)
    for device in array.flat:
        if not isinstance(device, DeviceLike):
            raise MeshError(
                f"Mesh: devices must be an array of devices, found {device!r} of type "
                f"{type(device).__name__}; take them from devices(), or use AbstractMesh(sizes, names) "
                "for a mesh without any"
            )
    array = array.astype(object)  # a copy, as the mesh is a value and its devices must not change
    array.flags.writeable = False
    return array
