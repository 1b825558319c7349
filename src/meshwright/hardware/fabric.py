"""A mesh on its machine: the links that each axis lies on, and the time of collectives over axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property, lru_cache
from math import gcd, prod

from meshwright.core.records import dataclass
from meshwright.hardware.chips import START
from meshwright.hardware.links import Link, seconds_of
from meshwright.hardware.machine import Machine, default_machine


@dataclass(frozen=True)
class Fabric:
    """The links of each mesh axis, from far to near. ``is_given``: whether the user named the machine."""

    machine: Machine
    links: tuple[tuple[str, tuple[Link, ...]], ...]
    is_given: bool = True
    _by_axis: Mapping[str, tuple[Link, ...]] = field(init=False, hash=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_axis", dict(self.links))

    def levels(self, parts: Iterable[tuple[str, int, int]]) -> tuple[Link, ...]:
        """The links of a group over parts of axes: ``(axis, positions in the more significant parts, size)``."""
        return tuple(link for axis, pre, size in parts for link in _within(self._by_axis[axis], pre, size))

    def seconds(self, kind: str, parts: Sequence[tuple[str, int, int]], operand: float, result: float) -> float:
        """The seconds of a collective over parts of axes; ``operand`` and ``result`` are bytes per device."""
        return seconds_of(kind, self.levels(parts), operand, result)

    def restricted(self, axes: Iterable[str]) -> Fabric:
        """The fabric of some of the axes."""
        return Fabric(self.machine, tuple((a, self._by_axis[a]) for a in axes), self.is_given)

    @property
    def start(self) -> float:
        """The seconds to start a collective that :meth:`seconds` leaves out; 0 if the user named the machine."""
        return 0.0 if self.is_given else START

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all links have the same bandwidth."""
        return len({link.bandwidth for _, links in self.links for link in links}) < 2

    @cached_property
    def fastest(self) -> float:
        """The bytes per second that a device sends over the fastest axis."""
        rates = [min(link.rate for link in links) for _, links in self.links if links]
        return max(rates, default=self.machine.chip.link_bandwidth)


@lru_cache(maxsize=4096)
def _within(links: tuple[Link, ...], pre: int, size: int) -> tuple[Link, ...]:
    """The levels of a part of an axis, between its ``pre`` major positions and the minor ones."""
    levels = []
    for link in links:
        outer = gcd(pre, link.size)
        pre //= outer
        mine = gcd(size, link.size // outer) if pre == 1 else 1
        size //= mine
        if mine > 1:
            levels.append(link.part(mine, link.size // outer // mine))
    return tuple(levels)


def fabric_of(axes: Mapping[str, int], machine: Machine | None) -> Fabric:
    """The fabric of mesh axes on a machine; None for the default machine."""
    if machine is None:
        chosen = default_machine(max(1, prod(axes.values())))
        level = Link("switch", 1, chosen.chip.link_bandwidth, chosen.chip.link_latency)
        links = tuple((a, (level.part(n, 1),) if n > 1 else ()) for a, n in axes.items())
        return Fabric(chosen, links, is_given=False)
    return Fabric(machine, tuple(machine.lay_out(axes).items()))
