"""Compile targets: hardware that programs are compiled for, present or not, and the topology of its devices.

``target("v5e:4x4")`` is a machine (:mod:`meshwright.hardware`) with devices: their XLA ids and their locations. TPU
devices are numbered by coordinates, the first one fastest, whichever host they belong to; GPUs are numbered node by
node.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, MeshError
from meshwright.hardware.chips import DEFAULT_CHIP
from meshwright.hardware.machine import Machine, machine
from meshwright.hardware.placement import placed
from meshwright.sharding import AbstractMesh, Mesh

#: XLA's name of the devices of a chip
_KINDS = {
    "v4": "TPU v4", "v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite", "tpu7x": "TPU7x",
    "a100": "NVIDIA A100-SXM4-80GB", "h100": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200 141GB HBM3e", "cpu": "cpu",
}  # fmt: skip
#: chips of a host along each dimension of a torus, where the slice is as large
_HOST = (2, 2, 1)
#: the devices of slice ``s`` are numbered from ``(s + 1)`` times this, where there are several
_SLICE = 100_000


@dataclass(frozen=True)
class TargetDevice:
    """One device of a target: its id, its host, and its location.

    ``coords`` are the coordinates in the torus of its slice, or (node, GPU).
    """

    id: int
    platform: str
    process_index: int
    coords: tuple[int, ...]
    core_on_chip: int = 0
    slice_index: int = 0
    device_kind: str = ""

    @property
    def hardware_id(self) -> int:
        return self.id

    def __repr__(self) -> str:
        core = f".{self.core_on_chip}" if self.core_on_chip else ""
        return f"{self.platform.upper()}:{self.id}({','.join(map(str, self.coords))}{core})"


@dataclass(frozen=True)
class CompileTarget:
    """A machine to compile for; see :func:`target`."""

    machine: Machine
    platform: str

    @property
    def name(self) -> str:
        """The name as users write it: ``v5e:4x4``, ``h100:2x8``."""
        return self.machine.name if self.platform != "cpu" else f"cpu:{self.size}"

    @property
    def size(self) -> int:
        """The number of devices."""
        return self.machine.size

    @property
    def device_kind(self) -> str:
        """XLA's name of its devices."""
        return _KINDS[self.machine.chip.name]

    @property
    def memory_bytes(self) -> float:
        """The memory of a device in bytes, by its data sheet."""
        return self.machine.memory_bytes

    @cached_property
    def grid(self) -> np.ndarray:
        """The devices as an array over slices, nodes, the dimensions of a slice, and cores of a chip."""
        chips = self.machine
        shape = (chips.slices, chips.nodes, *chips.shape, self.machine.chip.devices * chips.share)
        grid = np.empty(shape, object)
        for place in itertools.product(*map(range, shape)):
            grid[place] = self._device(*place)
        return grid

    @cached_property
    def devices(self) -> tuple[TargetDevice, ...]:
        """All devices, in the order of their coordinates."""
        return tuple(self.grid.flat)

    def _device(self, slice_index: int, node: int, *place: int) -> TargetDevice:
        *chip, core = place
        shape, cores = self.machine.shape, self.machine.chip.devices
        if self.platform == "cpu":
            return TargetDevice(core, "cpu", 0, (core,), 0, 0, self.device_kind)
        if self.platform == "cuda":
            return TargetDevice(node * shape[0] + chip[0], "cuda", node, (node, *chip), 0, 0, self.device_kind)
        block = [min(h, n) for h, n in zip(_HOST, shape)]
        hosts = [-(-n // b) for n, b in zip(shape, block)]
        host = _number([c // b for c, b in zip(chip, block)], hosts)
        number = _number(chip, shape) * cores + core
        if self.machine.slices > 1:
            number, host = number + _SLICE * (slice_index + 1), host + math.prod(hosts) * slice_index
        return TargetDevice(number, "tpu", host, (*chip, 0)[:3], core, slice_index, self.device_kind)

    def holding(self, devices: int) -> CompileTarget:
        """This target, in which ``"cpu"`` without a number gets ``devices`` devices."""
        return target("cpu", devices=devices) if self.platform == "cpu" and self.size == 1 else self

    def mesh(self, axis_sizes: Sequence[int], axis_names: Sequence[str]) -> Mesh:
        """A mesh of all devices, arranged so that neighbors along an axis are connected.

        Raises:
          MeshError: the mesh has another number of devices than the target.

        Example:
          >>> [d.coords for d in mw.target("v5e:2x2").mesh((4,), ("x",)).devices]
          [(0, 0, 0), (0, 1, 0), (1, 1, 0), (1, 0, 0)]
        """
        return Mesh(self.arranged(axis_sizes), tuple(axis_names), machine=self.machine)

    def arranged(self, shape: Sequence[int]) -> np.ndarray:
        """All devices in an array of ``shape``, in which neighbors along a dimension are connected where possible.

        Raises:
          MeshError: ``shape`` has another number of devices than the target.
        """
        if math.prod(shape) != self.size:
            raise MeshError(self._misfit(tuple(shape)))
        return placed(self.devices, tuple(shape))

    def order_of(self, mesh: Mesh | AbstractMesh) -> list[int]:
        """The id of the device at each position of a mesh; devices are assigned by :meth:`arranged` if it has none.

        Raises:
          MeshError: the mesh has another number of devices, or devices of another target.
        """
        if isinstance(mesh, Mesh) and any(isinstance(d, TargetDevice) for d in mesh.devices.flat):
            numbers = [d.id for d in mesh.devices.flat]
            if not set(mesh.devices.flat) <= set(self.devices):
                raise MeshError(
                    f"compile: the devices of {mesh} are not those of target {self.name}; make the mesh with "
                    f"make_mesh(..., devices=target({self.name!r}).devices), or partition for an AbstractMesh"
                )
            return numbers
        return [d.id for d in self.arranged(mesh.axis_sizes).flat]

    def _misfit(self, shape: tuple[int, ...]) -> str:
        needed = math.prod(shape)
        if self.platform == "cpu":
            name, fits = f"cpu:{needed}", True
        else:
            other = machine(self.machine.chip.name, devices=needed)
            name, fits = other.name, other.size == needed and not _odd(other)
        fitting = f"use target {name}, or " if fits else ""
        return (
            f"target {self.name} has {counted(self.size, 'device')}, a mesh of shape {shape} has {needed}; "
            f"{fitting}partition for a mesh of {self.size}"
        )

    def __repr__(self) -> str:
        if self.platform == "cpu":
            return f"target({self.name!r}: {counted(self.size, 'device')} of this kind of CPU)"
        chip, gib = self.machine.chip, self.memory_bytes / 2**30
        wires = f"a {chip.torus}-D torus" if chip.torus else "a switch"
        apart = f", {self.machine.nodes} nodes" if self.machine.nodes > 1 else ""
        apart += f", {self.machine.slices} slices" if self.machine.slices > 1 else ""
        return f"target({self.name!r}: {self.size} × {self.device_kind}, {gib:.1f} GiB each, {wires}{apart})"


def _number(place: Sequence[int], shape: Sequence[int]) -> int:
    """The number of a place, the first coordinate fastest."""
    number = 0
    for at, size in zip(reversed(place), reversed(shape)):
        number = number * size + at
    return number


def target(
    name: str | CompileTarget, *, nodes: int = 1, slices: int = 1, devices: int | None = None
) -> CompileTarget:  # fmt: skip
    """Hardware to compile for, present or not: ``part.compile(mw.target("v5e:4x4"))``.

    Args:
      name: a chip and the shape of the machine: ``"v5e:4x4"``, ``"v5p:2x2x4"``, ``"h100"`` (a node of 8), ``"h100:4"``,
        ``"h200:2x8"`` (two nodes), ``"cpu:8"``; ``"cpu"`` has as many devices as a program needs.
      nodes: the number of GPU nodes. slices: the number of TPU slices. Both are connected by a network.
      devices: the number of devices, if ``name`` does not give it.

    Raises:
      ArgumentError: unknown name (similar ones are suggested). MeshError: the chip does not come in that shape.

    Example:
      >>> mw.target("v5e:4x4")
      target('v5e:4x4': 16 × TPU v5 lite, 16.0 GiB each, a 2-D torus)
      >>> mw.target("h100", nodes=2).size
      16
    """
    if isinstance(name, CompileTarget):
        return name
    if not isinstance(name, str):
        raise ArgumentError(f"target: expected a name such as 'v5e:4x4', 'h100' or 'cpu:8', got {name!r}")
    chip, _, shape = name.strip().partition(":")
    if chip.lower() == "cpu":
        if (nodes, slices) != (1, 1):
            raise ArgumentError(f"target: CPUs have no nodes or slices; say how many there are: 'cpu:{nodes * slices}'")
        return _cpu(name, shape, devices)
    chips = machine(name, nodes=nodes, slices=slices, devices=devices)
    if chips.chip.name not in _KINDS:
        known = ", ".join(k for k in _KINDS)
        raise ArgumentError(f"target: there is no description of {chips.chip.name!r} for XLA; there are {known}")
    if _odd(chips):
        even = "x".join(str(n + n % h) if n > h else str(n) for n, h in zip(chips.shape, _HOST))
        raise MeshError(
            f"target {chips.name}: a host has {'x'.join(map(str, _HOST[: len(chips.shape)]))} chips, so the first two "
            f"dimensions of a slice are 1 or even; take {chips.chip.name}:{even}"
        )
    return CompileTarget(chips, chips.chip.platform)


def _odd(chips: Machine) -> bool:
    """Whether hosts do not fill a slice of TPUs, which XLA then does not compile for."""
    return bool(chips.chip.torus) and any(n > h and n % h for n, h in zip(chips.shape, _HOST))


def _cpu(name: str, shape: str, devices: int | None) -> CompileTarget:
    if shape and not shape.isdecimal():
        raise ArgumentError(f"target: expected a number of devices after 'cpu:', got {name!r}")
    count = int(shape) if shape else devices or 1
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    chip = replace(DEFAULT_CHIP, name="cpu", memory_bytes=memory, node=count, source="this computer")
    return CompileTarget(Machine(chip, (1,), share=count), "cpu")
