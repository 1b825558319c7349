"""Meshes without devices: sizes and names of axes, which all of propagation, partitioning and cost models need.

Meshes are values with a precomputed hash, as they are part of every cache key on the way to an executable. They know
their atomic axes (see ``axes``).

Source: ``jax.sharding.AbstractMesh`` for the interface.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from meshwright.core.expected import as_integers, as_tuple
from meshwright.errors import MeshError, ShardingError
from meshwright.hardware.fabric import Fabric, fabric_of
from meshwright.hardware.links import Link
from meshwright.hardware.machine import Machine, machine_for
from meshwright.sharding.axes import MOST_DEVICES, AxisPart, Orders, atomic_parts, parse_part
from meshwright.sharding.axis_type import AxisType, types_of

AxisTypes = AxisType | Sequence[AxisType] | None
#: a machine, or its name
AnyMachine = Machine | str | None


class BaseMesh:
    """The base class of meshes with and without devices, with JAX's names for what follows from their axes."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def axis_names(self) -> tuple[str, ...]: ...
        @property
        def axis_sizes(self) -> tuple[int, ...]: ...
        @property
        def axis_types(self) -> tuple[AxisType, ...]: ...

    @property
    def shape_tuple(self) -> tuple[tuple[str, int], ...]:
        """The name and size of each axis."""
        return tuple(zip(self.axis_names, self.axis_sizes))

    def of_type(self, kind: AxisType) -> tuple[str, ...]:
        """The axes of one type."""
        return tuple(a for a, t in zip(self.axis_names, self.axis_types) if t is kind)

    @property
    def auto_axes(self) -> tuple[str, ...]:
        return self.of_type(AxisType.Auto)

    @property
    def explicit_axes(self) -> tuple[str, ...]:
        return self.of_type(AxisType.Explicit)

    @property
    def manual_axes(self) -> tuple[str, ...]:
        return self.of_type(AxisType.Manual)

    @property
    def are_all_axes_auto(self) -> bool:
        return self._all_of(AxisType.Auto)

    @property
    def are_all_axes_explicit(self) -> bool:
        return self._all_of(AxisType.Explicit)

    @property
    def are_all_axes_manual(self) -> bool:
        return self._all_of(AxisType.Manual)

    def _all_of(self, kind: AxisType) -> bool:
        return bool(self.axis_types) and self.of_type(kind) == self.axis_names


class AbstractMesh(BaseMesh):
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
        #: prime factors of axes that are cut in another order than the ascending one (:func:`Mesh <mesh.Mesh>`)
        self.orders: Orders = {}
        self._hash = hash((self.axis_sizes, self.axis_names))
        self._atoms_of: dict[str, tuple[str, ...]] = {}
        self._sizes: dict[tuple[str, ...], int] = {}

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, type(self)):  # caches still compare while Python ends, when globals are gone
            return NotImplemented
        same = self.axis_sizes == other.axis_sizes and self.axis_names == other.axis_names
        return same and self.axis_types == other.axis_types and self._key == other._key and self.orders == other.orders

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:  # the hash is not pickled, as string hashes differ between processes
        parts = self.axis_sizes, self.axis_names, self.axis_types, self.machine, self._key, self.orders
        return AbstractMesh._on_part, parts

    def __repr__(self) -> str:
        cuts = {axis: f" ({' × '.join(map(str, order))})" for axis, order in self.orders.items()}
        axes = ", ".join(f"{name!r}: {size}{cuts.get(name, '')}" for name, size in self.shape.items())
        machine = f", machine={self.machine.name!r}" if self.machine is not None else ""
        return f"AbstractMesh({axes}{_types_text(self.axis_types)}{machine})"

    @property
    def _key(self) -> Fabric | None:
        """The known hardware, for comparisons."""
        return self.fabric if self.fabric.is_given else None

    @staticmethod
    def _on_part(
        sizes: Sequence[int], names: Sequence[str], types: AxisTypes, machine: Machine | None, fabric: Fabric | None,
        orders: Orders,
    ) -> AbstractMesh:  # fmt: skip
        """A mesh on a part of a machine, with the fabric of that part; None if the hardware is not known."""
        mesh = AbstractMesh(sizes, names, types)
        mesh.machine = machine
        mesh.orders = {axis: order for axis, order in orders.items() if axis in names}
        if fabric is not None:
            mesh.fabric = fabric
        return mesh

    def restricted(self, axis_names: Iterable[str]) -> AbstractMesh:
        """The mesh of some of the axes, on the same hardware."""
        names = as_tuple("mesh: axis_names", "a sequence of strings", axis_names)
        types = [dict(zip(self.axis_names, self.axis_types))[a] for a in names]
        key = self._key and self._key.restricted(names)
        return AbstractMesh._on_part([self.shape[a] for a in names], names, types, self.machine, key, self.orders)

    def update_axis_types(self, types: Mapping[str, AxisType]) -> AbstractMesh:
        """The same mesh with other types for some axes."""
        mine = dict(zip(self.axis_names, self.axis_types))
        if unknown := sorted(types.keys() - mine.keys()):
            raise MeshError(f"update_axis_types: {', '.join(unknown)} is no axis; the mesh has {', '.join(mine)}")
        new = tuple({**mine, **types}.values())
        if new == self.axis_types:
            return self
        return AbstractMesh._on_part(self.axis_sizes, self.axis_names, new, self.machine, self._key, self.orders)

    def cut_in(self, orders: Orders) -> AbstractMesh:
        """The same mesh with the prime factors of some axes in the given orders, most significant first."""
        return AbstractMesh._on_part(
            self.axis_sizes, self.axis_names, self.axis_types, self.machine, self._key, {**self.orders, **orders}
        )

    def on(self, machine: AnyMachine) -> AbstractMesh:
        """The same mesh on a machine.

        Raises:
          MeshError: the machine has another number of devices.
        """
        return AbstractMesh(self.axis_sizes, self.axis_names, self.axis_types, machine=machine).cut_in(self.orders)

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
        parts = (part for axis, size in shape.items() for part in atomic_parts(axis, size, self.orders))
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
            return tuple(part.name(shape[axis]) for part in atomic_parts(axis, shape[axis], self.orders))
        sub_axis = parse_part(axis) if isinstance(axis, str) else None
        if sub_axis is None or sub_axis.axis not in shape:
            raise ShardingError(
                f"axis {axis!r} is not an axis of the mesh: expected one of {self._known()}; "
                f"use one of these names or make a mesh that has {axis!r}"
            )
        parts = atomic_parts(sub_axis.axis, shape[sub_axis.axis], self.orders)
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


def _types_text(types: Sequence[AxisType]) -> str:
    return f", axis_types=({', '.join(map(repr, types))}{',' if len(types) == 1 else ''})"


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
    require_unique(names, "mesh: axis_names", "give every axis its own name")
    if math.prod(sizes) > MOST_DEVICES:
        raise MeshError(f"mesh: axes of sizes {sizes} make {math.prod(sizes)} devices; expected at most {MOST_DEVICES}")


def require_unique(values: tuple[Any, ...], what: str, remedy: str) -> None:
    """Raise ``MeshError`` if a value is there twice."""
    if len(set(values)) < len(values):
        twice = sorted({value for value in values if values.count(value) > 1})
        raise MeshError(f"{what} {values} has {', '.join(map(repr, twice))} more than once; {remedy}")
