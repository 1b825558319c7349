"""The target of a program: the devices that it runs on, or is compiled for.

A mesh has positions, and hardware has devices. Several positions may share a real device, which then computes them as
one batch: the axes (or their atoms) along which these positions differ are *virtual*. Along the other, *real* axes,
positions have separate devices, and collectives are executed by the hardware.

====================================  ===========  =====================================
target                                real axes    devices
====================================  ===========  =====================================
virtual devices                       none         one of this process
real devices of this process          all or some  several of this process
devices of several processes          all or some  several, each of some process
a topology that one does not own      all          its descriptions; ``is_owned`` is False
====================================  ===========  =====================================
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import MeshError
from meshwright.sharding import AbstractMesh, Mesh


@runtime_checkable
class TargetDevice(Protocol):
    """The attributes of devices that a target uses.

    ``hardware_id`` identifies the real device over all processes; virtual devices on the same real device have the
    same.
    """

    @property
    def id(self) -> int: ...
    @property
    def hardware_id(self) -> int: ...
    @property
    def platform(self) -> str: ...
    @property
    def process_index(self) -> int: ...


@dataclass(frozen=True)
class Target:
    """A mesh, its real atoms in mesh order, and one device per position along these, in row-major order."""

    mesh: AbstractMesh
    real: tuple[str, ...] = ()
    devices: tuple[Any, ...] = ()
    is_owned: bool = True

    @staticmethod
    def of(mesh: Mesh | AbstractMesh, is_owned: bool = True) -> Target:
        """The target of programs on ``mesh``: atoms along which the real device changes are real.

        Raises:
          MeshError: the positions that share a real device do not form a grid.
        """
        if isinstance(mesh, AbstractMesh):
            return Target(mesh)
        abstract = mesh.abstract_mesh
        devices = mesh.devices.reshape(abstract.atom_sizes)
        hardware = mesh.hardware.reshape(abstract.atom_sizes)
        varies = [bool((hardware != hardware.take([0], axis=d)).any()) for d in range(hardware.ndim)]
        first = tuple(slice(None) if v else 0 for v in varies)
        numbers = hardware[first]
        if np.unique(numbers).size != numbers.size:
            raise MeshError(
                f"the virtual devices of {mesh} are spread over real ones unevenly; give each real device a block of "
                "the mesh: the same positions along some of its axes, or along parts of them (as make_mesh does)"
            )
        real = tuple(atom for atom, v in zip(abstract.atoms, varies) if v)
        return Target(abstract, real, tuple(np.atleast_1d(devices[first]).flat), is_owned)

    @staticmethod
    def all_real(mesh: Mesh | AbstractMesh) -> Target:
        """The target in which every position of ``mesh`` has a separate device, for printing per-device programs."""
        devices = tuple(mesh.devices.flat) if isinstance(mesh, Mesh) else ()
        return Target(mesh.abstract_mesh, mesh.abstract_mesh.atoms, devices, is_owned=False)

    @cached_property
    def virtual(self) -> tuple[str, ...]:
        """The atoms to batch over, in mesh order."""
        return tuple(a for a in self.mesh.atoms if a not in self.real)

    @property
    def num_devices(self) -> int:
        """The number of real devices that run the program."""
        return self.mesh.sizes(self.real)

    @property
    def platform(self) -> str:
        """``cpu``, ``cuda``, ``tpu``, …"""
        return getattr(self.devices[0], "platform", "cpu") if self.devices else "cpu"

    @cached_property
    def replicas(self) -> np.ndarray:
        """The replica number of each real device, in mesh order; replicas are numbered by ascending device id."""
        if not self.devices:
            return np.arange(self.num_devices)
        return np.argsort(np.argsort([d.id for d in self.devices]))

    @cached_property
    def assignment(self) -> tuple[Any, ...]:
        """The devices in the order of their replica numbers, as in XLA's device assignment."""
        return tuple(self.devices[i] for i in np.argsort(self.replicas))

    @property
    def wiring(self) -> tuple[Any, ...]:
        """A cache key of everything that affects the program: the real atoms, and the replica numbers along them."""
        return self.real, tuple(self.replicas.tolist())

    def grid(self, axes: tuple[str, ...]) -> np.ndarray:
        """Replica numbers with one row per group of real devices along ``axes`` (real atoms, major to minor)."""
        sizes = [self.mesh.axis_size(a) for a in self.real]
        inner = [self.real.index(a) for a in self.mesh.expand(axes)]
        outer = [i for i in range(len(self.real)) if i not in inner]
        return self.replicas.reshape(sizes).transpose(*outer, *inner).reshape(-1, self.mesh.sizes(axes))

    def __repr__(self) -> str:
        kind = "owned" if self.is_owned else "not owned"
        real = ", ".join(self.mesh.coalesce(self.real)) or "none"
        return f"Target({self.mesh}, real axes: {real}, {counted(self.num_devices, self.platform + ' device')}, {kind})"
