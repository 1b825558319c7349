"""Machines: a number of connected chips, and how the axes of a mesh lie on them."""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from meshwright.core.config import config
from meshwright.core.expected import as_integer, as_tuple, refused
from meshwright.core.late import LateModule
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, MeshError
from meshwright.hardware.chips import ALIASES, CHIPS, DEFAULT_CHIP, TORUS_2D, Chip
from meshwright.hardware.links import LINE, NETWORK, RING, Link
from meshwright.hardware.links import SWITCH as SWITCHED

if TYPE_CHECKING:
    from meshwright.hardware import this
else:  # measures the computer on first use
    this = LateModule("meshwright.hardware.this")

#: the name of the computer that runs this program
THIS = "this"


@dataclass(frozen=True)
class Machine:
    """Chips of one kind in an array of ``shape``, in each of several ``nodes`` (GPUs) or ``slices`` (TPUs).

    A network connects nodes and slices. ``wrap`` says which dimensions of a torus are rings. ``share`` is the number of
    virtual devices that share the figures of one chip.
    """

    chip: Chip
    shape: tuple[int, ...]
    nodes: int = 1
    slices: int = 1
    wrap: tuple[bool, ...] = ()
    share: int = 1

    def __post_init__(self) -> None:
        if not self.shape or min(*self.shape, self.nodes, self.slices, self.share) < 1:
            raise MeshError(
                f"Machine: expected positive numbers of chips, nodes and slices, got shape={self.shape}, "
                f"nodes={self.nodes}, slices={self.slices}"
            )
        torus = self.chip.torus
        if torus and len(self.shape) != torus:
            raise MeshError(
                f"machine {self.name}: chips of {self.chip.name} are connected in {counted(torus, 'dimension')}, got "
                f"{len(self.shape)}; write it as {self.chip.name}:{'x'.join(['4'] * torus)}"
            )
        largest = sorted(self.chip.largest)
        if torus and largest and any(mine > most for mine, most in zip(sorted(self.shape), largest)):
            raise MeshError(
                f"machine {self.name}: the largest slice of {self.chip.name} is "
                f"{'x'.join(map(str, self.chip.largest))}; give slices= for several that a network connects"
            )
        if not torus and math.prod(self.shape) > self.chip.node:
            raise MeshError(
                f"machine {self.name}: a node has {self.chip.node} {self.chip.name}; write {self.chip.name}:2x"
                f"{self.chip.node} for two nodes, or give nodes="
            )
        if not self.wrap:
            object.__setattr__(self, "wrap", tuple(n % self.chip.wraps_at == 0 and n > 2 for n in self.shape))

    @property
    def name(self) -> str:
        """The name as :func:`machine` takes it, such as ``v5e:16x16`` or ``h100:16x8``."""
        shape = "x".join(map(str, self.shape if self.chip.torus or self.nodes == 1 else (self.nodes, *self.shape)))
        return f"{self.chip.name}:{shape}" + (f" × {self.slices} slices" if self.slices > 1 else "")

    @property
    def size(self) -> int:
        """The number of devices that programs see."""
        return math.prod(self.shape) * self.nodes * self.slices * self.chip.devices * self.share

    # --- figures of one device ------------------------------------------------------------------------------
    @property
    def _parts(self) -> int:
        return self.chip.devices * self.share

    @property
    def memory_bytes(self) -> float:
        """The bytes of memory of one device."""
        return self.chip.memory_bytes / self._parts

    @property
    def memory_bandwidth(self) -> float:
        """The bytes per second that one device reads and writes."""
        return self.chip.memory_bandwidth / self._parts

    @property
    def vector(self) -> float:
        """The operations per second of one device, matrix products excepted."""
        return self.chip.vector / self._parts

    def product_rate(self, dtype: object, precision: str | None = None) -> tuple[float, str]:
        """The operations per second of matrix products of a dtype, and the name of the chip's figure used."""
        rate, figure = self.chip.product_rate(dtype, precision)
        return rate / self._parts, figure

    def __str__(self) -> str:
        return f"{self.name}: {counted(self.size, 'device')}; {self.chip}"

    # --- a mesh on it ---------------------------------------------------------------------------------------
    @property
    def levels(self) -> list[Link]:
        """The connections between devices, from far to near."""
        chip = self.chip
        network = ("network_bandwidth", "network_latency")
        links = []
        for count in (self.slices, self.nodes):
            links.append(Link(NETWORK, count, chip.network_bandwidth / self._parts, chip.network_latency, 1, network))
        if chip.torus:
            for n, wraps in zip(self.shape, self.wrap):
                links.append(Link(RING if wraps else LINE, n, chip.link_bandwidth / self._parts, chip.link_latency))
        else:
            links.append(Link(SWITCHED, math.prod(self.shape), chip.link_bandwidth / self._parts, chip.link_latency))
        # Devices of one chip exchange through its memory.
        links.append(Link(SWITCHED, self._parts, chip.memory_bandwidth / 2 / self._parts, 0.0, 1,
                          ("memory_bandwidth", "memory_bandwidth")))  # fmt: skip
        return [link for link in links if link.size > 1]

    def lay_out(self, axes: Mapping[str, int]) -> dict[str, tuple[Link, ...]]:
        """The connections of each axis of a mesh, from far to near.

        Devices are numbered in row-major order, so that the first axes lie on the network. Whole torus dimensions go to
        axes of their size, as many per axis as possible. If there are none, axes and dimensions are cut at the same
        positions.

        Raises:
          MeshError: the mesh has another number of devices, or its axes cannot be cut that way.
        """
        sizes = list(axes.values())
        if math.prod(sizes) != self.size:
            text = ", ".join(f"{n}={s}" for n, s in axes.items())
            raise MeshError(
                f"machine {self.name} has {counted(self.size, 'device')}, the mesh ({text}) {math.prod(sizes)}; give a "
                "machine and a mesh of the same number"
            )
        levels = self.levels
        whole = _whole_dimensions(sizes, levels) or _aligned(sizes, levels)
        if whole is None:
            text = ", ".join(f"{n}={s}" for n, s in axes.items())
            on = ", ".join(f"{link.topology} {link.size}" for link in levels)
            raise MeshError(
                f"machine {self.name}: the mesh ({text}) does not fit what connects its devices, from far to near: "
                f"{on}; each axis should have a size that is made of these, in this order"
            )
        return dict(zip(axes, map(tuple, whole)))


def _whole_dimensions(sizes: Sequence[int], levels: Sequence[Link]) -> list[list[Link]] | None:
    """Whole levels for each axis, torus dimensions in any order and others in theirs; None if they do not fit."""
    if not any(link.is_torus for link in levels):
        return None
    by_axis: list[list[Link]] = [[] for _ in sizes]
    left = list(levels)
    for axis in sorted(range(len(sizes)), key=lambda i: (-sizes[i], -i)):
        chosen = next((c for c in _subsets(left) if math.prod(link.size for link in c) == sizes[axis]), None)
        if chosen is None:
            return None
        by_axis[axis] = list(chosen)
        left = [link for link in left if not any(link is c for c in chosen)]
    return by_axis


def _subsets(levels: Sequence[Link]) -> list[tuple[Link, ...]]:
    """All subsets, those with the least network and the most torus dimensions first."""
    subsets = [c for n in range(len(levels) + 1) for c in itertools.combinations(levels, n)]
    return sorted(subsets, key=lambda c: (sum(not link.is_torus for link in c), -len(c)))


def _aligned(sizes: Sequence[int], levels: Sequence[Link]) -> list[list[Link]] | None:
    """Axes and levels cut at the same positions, both from far to near; None if their sizes have no common parts."""
    by_axis: list[list[Link]] = [[] for _ in sizes]
    at, left = 0, levels[0].size if levels else 1
    for axis, size in enumerate(sizes):
        while size > 1:
            while left == 1:
                at += 1
                left = levels[at].size
            part = math.gcd(size, left)
            if part == 1:
                return None
            left //= part
            size //= part
            by_axis[axis].append(levels[at].part(part, left))
    return by_axis


# --- names --------------------------------------------------------------------------------------------------
_TEXT = re.compile(r"(?P<chip>[^:]+?)(?::(?P<shape>\d+(?:[x×]\d+)*))?\Z")


def chip(name: str) -> Chip:
    """The chip with a name of the table, or as clouds and drivers write it (``NVIDIA H100 80GB HBM3``).

    ``"this"`` is the computer that runs this program, or its accelerator.

    Raises:
      ArgumentError: there is no such chip; the message lists the known ones.
    """
    if not isinstance(name, str):
        raise refused("chip", "the name of one", name)
    plain = name.strip().lower()
    if plain in (THIS, "cpu"):
        return this.this_chip(config.platform)
    entry = CHIPS.get(ALIASES.get(plain, plain))
    if entry is None:
        near = difflib.get_close_matches(plain, [*CHIPS, *ALIASES, THIS], n=3, cutoff=0.5)
        meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
        raise ArgumentError(
            f"no chip {name!r} is known{meant} There are {', '.join(CHIPS)} and {THIS!r}; describe another as "
            "hardware.Chip(...)"
        )
    return entry


def machine(
    name: str | Chip | Machine, *, nodes: int = 1, slices: int = 1, devices: int | None = None,
    wrap: Sequence[bool] | None = None,
) -> Machine:  # fmt: skip
    """The machine with a name such as ``"v5e:16x16"``, ``"h100:8"``, ``"h100:16x8"`` (nodes × GPUs per node),
    ``"v5p:4x4x8"`` or ``"this"``.

    Args:
      name: the chip and the shape. Without a shape it is one node of GPUs, or as many chips as ``devices`` need.
      nodes, slices: the number of nodes of GPUs or slices of TPUs, which the network connects.
      devices: the total number of devices.
      wrap: for each torus dimension, whether it is a ring.

    Raises:
      ArgumentError: the chip is unknown, or the name has another form.
      MeshError: there is no such shape of these chips.
    """
    if isinstance(name, Machine):
        return name
    shape: tuple[int, ...] = ()
    if isinstance(name, Chip):
        model = name
    else:
        match = _TEXT.match(name) if isinstance(name, str) else None
        if match is None:
            raise ArgumentError(
                f"machine: expected a chip and a shape such as 'v5e:16x16', 'h100:16x8' or 'this', got {name!r}"
            )
        model = chip(match["chip"])
        shape = tuple(int(n) for n in re.split("[x×]", match["shape"])) if match["shape"] else ()
    nodes, slices = as_integer("machine: nodes", nodes, 1), as_integer("machine: slices", slices, 1)
    result = _shaped(
        model, shape, nodes, slices, None if devices is None else as_integer("machine: devices", devices, 1)
    )
    if wrap is None:
        return result
    rings = as_tuple("machine: wrap", "a bool for each dimension", wrap)
    if len(rings) != len(result.shape):
        raise ArgumentError(
            f"machine: wrap={rings} for a shape of {counted(len(result.shape), 'dimension')}; give a bool for each"
        )
    return replace(result, wrap=rings)


def _shaped(chip: Chip, shape: tuple[int, ...], nodes: int, slices: int, devices: int | None) -> Machine:
    if chip.node == 1 and not chip.torus:  # one computer, however many devices it is made to look like
        return Machine(chip, (1,), nodes, slices, share=math.prod(shape) if shape else max(1, (devices or 1) // nodes))
    outside = nodes * slices * chip.devices
    if not shape:
        count = chip.node * nodes * slices * chip.devices if devices is None else devices
        shape = (max(1, count // outside),)
    if chip.torus:
        if nodes != 1:
            raise ArgumentError(f"machine: {chip.name} come in slices, not nodes; give slices={nodes}, or none")
        return Machine(chip, _torus(shape[0], chip) if len(shape) == 1 else shape, 1, slices)
    if len(shape) == 2:
        nodes, shape = nodes * shape[0], shape[1:]
    if len(shape) == 1 and shape[0] > chip.node and shape[0] % chip.node == 0:
        nodes, shape = nodes * (shape[0] // chip.node), (chip.node,)
    return Machine(chip, shape, nodes, slices)


def _torus(count: int, chip: Chip) -> tuple[int, ...]:
    """The shape of the torus of ``count`` chips that is closest to a cube."""
    sides = [n for n in range(1, count + 1) if count % n == 0]
    shapes: list[tuple[int, ...]]
    if chip.torus == TORUS_2D:
        shapes = [(a, count // a) for a in sides if a <= count // a]
    else:
        shapes = [
            (a, b, count // a // b) for a in sides for b in sides if count // a % b == 0 and a <= b <= count // a // b
        ]
    return min(shapes, key=lambda shape: max(shape))


def machine_for(name: str | Chip | Machine, devices: int) -> Machine:
    """The machine for a mesh; a name without a shape means a machine with ``devices`` devices."""
    return machine(name, devices=devices)


def default_machine(devices: int) -> Machine:
    """The machine that prices rest on if none is named."""
    return Machine(replace(DEFAULT_CHIP, node=devices), (devices,))
