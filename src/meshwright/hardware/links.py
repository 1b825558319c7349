"""The connections between the devices along mesh axes, and how long collectives take on them.

A mesh axis lies on one or more *levels* of a machine: dimensions of a torus, the switch of a node, the network between
nodes or slices. The formulas are those of the usual algorithms, including latency (rings: Patarasuk and Yuan 2009;
several torus dimensions at once: Jain and Sabharwal 2010; trees: Thakur et al. 2005). The fastest algorithm counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from meshwright.core.records import dataclass

#: kinds of connections; a line is a ring without the link that closes it
RING, LINE, SWITCH, NETWORK = "ring", "line", "switch", "network"


@dataclass(frozen=True)
class Link:
    """A connection of ``size`` devices.

    ``bandwidth`` is that of one link in one direction, in bytes per second, and ``latency`` that of one hop, in
    seconds. Neighbours in the group are ``stride`` hops apart, and that many groups share the links. ``figures`` names
    the figures of the chip that the connection rests on.
    """

    topology: str
    size: int
    bandwidth: float
    latency: float
    stride: int = 1
    figures: tuple[str, str] = ("link_bandwidth", "link_latency")

    @property
    def is_torus(self) -> bool:
        return self.topology in (RING, LINE)

    @property
    def rate(self) -> float:
        """The bytes per second that a device sends and receives in a gather; a ring uses both of its links."""
        return self.bandwidth * (2 if self.topology == RING and self.size > 2 else 1) / self.stride

    @property
    def steps(self) -> int:
        """The number of consecutive hops of a gather: half of a ring, which sends both ways, else all other devices."""
        return self.stride * (self.size // 2 if self.topology == RING else self.size - 1)

    @property
    def delay(self) -> float:
        """The total latency of the steps, in seconds."""
        return self.steps * self.latency

    def spread(self, operand: float) -> float:
        """The seconds of an all-to-all. On a torus, the links between its two halves may be the bottleneck."""
        sent = operand * (self.size - 1) / self.size / self.rate
        crossing = operand * self.size / (8 if self.topology == RING else 4) / self.bandwidth * self.stride
        return max(sent, crossing) if self.is_torus else sent

    def part(self, size: int, inner: int) -> Link:
        """The connection of ``size`` devices of the axis that are ``inner`` positions apart."""
        if size == self.size:
            return self
        if self.is_torus:
            return replace(self, topology=LINE, size=size, stride=self.stride * inner)
        return replace(self, size=size)

    def __str__(self) -> str:
        apart = f", {self.stride} hops apart" if self.stride > 1 else ""
        return f"a {self.topology} of {self.size} at {self.bandwidth / 1e9:.4g} GB/s a link{apart}"


def seconds_of(kind: str, levels: Sequence[Link], operand: float, result: float) -> float:
    """The seconds of a collective over a group on ``levels``; ``operand`` and ``result`` are bytes per device."""
    levels = [link for link in levels if link.size > 1]
    if not levels:
        return 0.0
    match kind:
        case "all_gather":
            return _gather(levels, result)
        case "reduce_scatter":
            return _gather(levels, operand)
        case "all_reduce":
            everyone = math.prod(link.size for link in levels)
            # In two steps, up a tree and down again, or, of small operands, in one: each device gets and adds all.
            return min(2 * _gather(levels, operand), _tree(levels, operand), _gather(levels, operand * everyone))
        case "all_to_all":
            return _all_to_all(levels, operand)
        case "ragged_all_to_all":
            return _all_to_all(levels, min(operand, result))
    slowest = max(levels, key=lambda link: link.stride / link.bandwidth)
    return operand * slowest.stride / slowest.bandwidth + sum(link.stride * link.latency for link in levels)


def _gather(levels: Sequence[Link], whole: float) -> float:
    """The seconds in which every device receives ``whole`` bytes.

    Small parts are exchanged over slow links first, then larger ones over faster links. The dimensions of a torus work
    in parallel, each on its share.
    """
    torus = [link for link in levels if link.is_torus]
    rest = sorted((link for link in levels if not link.is_torus), key=lambda link: -link.rate)
    seconds = 0.0
    for link in rest if not torus else [link for link in rest if link.rate > _rate(torus)]:
        seconds += whole * (link.size - 1) / link.size / link.rate + link.delay
        whole /= link.size
    if torus:
        count = math.prod(link.size for link in torus)
        seconds += whole * (count - 1) / count / _rate(torus) + sum(link.delay for link in torus)
        whole /= count
        for link in rest:
            if link.rate <= _rate(torus):
                seconds += whole * (link.size - 1) / link.size / link.rate + link.delay
                whole /= link.size
    return seconds


def _rate(torus: Sequence[Link]) -> float:
    return sum(link.rate for link in torus)


def _tree(levels: Sequence[Link], operand: float) -> float:
    """The seconds of an all-reduce up a tree and down again, which has few steps and suits small operands."""
    depth = sum(link.latency * (link.steps if link.is_torus else math.ceil(math.log2(link.size))) for link in levels)
    slowest = min(link.bandwidth / link.stride for link in levels)
    return 2 * (depth + operand / slowest)


def _all_to_all(levels: Sequence[Link], operand: float) -> float:
    """The seconds of an all-to-all, which uses all levels at the same time."""
    return max(link.spread(operand) for link in levels) + sum(link.delay for link in levels)
