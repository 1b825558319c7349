"""Meshes of devices: an ``AbstractMesh`` and the device at each position.

Source: ``jax.sharding.Mesh`` for the interface.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from meshwright.core.expected import as_tuple
from meshwright.core.late import LateModule
from meshwright.core.slots import Slot
from meshwright.core.words import counted
from meshwright.errors import MeshError
from meshwright.hardware.machine import Machine
from meshwright.sharding import entered
from meshwright.sharding.abstract_mesh import AbstractMesh, AnyMachine, AxisTypes, BaseMesh, require_unique
from meshwright.sharding.axes import Orders, prime_factors
from meshwright.sharding.axis_type import AxisType

html = LateModule("html")


@runtime_checkable
class DeviceLike(Protocol):
    """What a mesh requires of a device: an id that is unique among the devices of a program."""

    @property
    def id(self) -> int: ...


#: returns the part of a mesh with the devices of this process
LOCAL_MESH: Slot[Callable[[Mesh], Mesh]] = Slot("a process's part of a mesh", "meshwright.runtime.devices")


class Mesh(BaseMesh):
    """A named grid of devices: ``Mesh(np.array(devices).reshape(4, 2), ("data", "model"))``."""

    def __init__(
        self, devices: Any, axis_names: Sequence[str], axis_types: AxisTypes = None, *, machine: AnyMachine = None
    ) -> None:
        self.devices: np.ndarray = device_array(devices, "Mesh")
        names = as_tuple("mesh: axis_names", "a sequence of strings", axis_names)
        if self.devices.ndim != len(names):
            raise MeshError(
                f"Mesh: devices have {counted(self.devices.ndim, 'dimension')} {self.devices.shape} but axis_names "
                f"{names} names {len(names)}; give one name per dimension, or reshape the devices"
            )
        abstract = AbstractMesh(self.devices.shape, names, axis_types, machine=machine)
        #: the number of the real device behind each device, 0 where there is none
        self.hardware = np.array([getattr(d, "hardware_id", 0) for d in self.devices.flat]).reshape(self.devices.shape)
        orders = _orders_on(self.hardware, abstract)
        self.abstract_mesh = abstract.cut_in(orders) if orders else abstract
        self.flat_ids: tuple[int, ...] = tuple(int(device.id) for device in self.devices.flat)
        require_unique(self.flat_ids, "Mesh: devices", "every device can stand in a mesh only once")
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
        types = ", ".join(t.name for t in self.axis_types) + ("," if len(self.axis_types) == 1 else "")
        return f"Mesh(axis_sizes={self.axis_sizes}, axis_names={self.axis_names}, axis_types=({types}))"

    def __str__(self) -> str:
        return str(self.abstract_mesh).removeprefix("Abstract")

    def _repr_html_(self) -> str:
        ids = np.array2string(self.device_ids)
        return f"<pre>{html.escape(str(self))}\n{ids}</pre>"

    def update_axis_types(self, types: Mapping[str, AxisType]) -> Mesh:
        """The same devices with other types for some axes."""
        new = self.abstract_mesh.update_axis_types(types).axis_types
        return self if new == self.axis_types else Mesh(self.devices, self.axis_names, new, machine=self.machine)

    def __enter__(self) -> Mesh:
        entered.enter(self)
        return self

    def __exit__(self, *exception: object) -> None:
        entered.leave()

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


def _orders_on(hardware: np.ndarray, mesh: AbstractMesh) -> Orders:
    """The orders of prime factors in which axes are cut between real devices, where that is not the ascending one."""
    orders = {}
    for dim, (axis, size) in enumerate(mesh.shape.items()):
        line, factors = np.moveaxis(hardware, dim, 0).reshape(size, -1)[:, 0], prime_factors(size)
        if 1 < np.unique(line).size < size and (order := _order_in(line, factors)) not in (None, factors):
            orders[axis] = order
    return orders


def _order_in(numbers: np.ndarray, factors: tuple[int, ...]) -> tuple[int, ...] | None:
    """An order of the factors in which each cuts positions into parts on the same real devices, or on others each."""
    if not factors:
        return ()
    for factor in sorted(set(factors)):
        parts = numbers.reshape(factor, -1)
        are_apart = np.unique(parts).size == sum(np.unique(part).size for part in parts)
        if are_apart or bool((parts == parts[0]).all()):
            at = factors.index(factor)
            rest = _order_in(parts[0], factors[:at] + factors[at + 1 :])
            if rest is not None:
                return (factor, *rest)
    return None


def device_array(devices: Any, what: str) -> np.ndarray:
    """A read-only array of the devices given to ``what``.

    Raises:
      MeshError: one is no device.
    """
    array = devices if isinstance(devices, np.ndarray) else np.array(devices, dtype=object)
    for device in array.flat:
        if not isinstance(device, DeviceLike):
            raise MeshError(
                f"{what}: devices must be an array of devices, found {device!r} of type "
                f"{type(device).__name__}; take them from devices(), or use AbstractMesh(sizes, names) "
                "for a mesh without any"
            )
    array = array.astype(object)  # a copy, as the mesh is a value and its devices must not change
    array.flags.writeable = False
    return array
