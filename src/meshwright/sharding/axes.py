"""Atomic axes: every mesh axis split into its prime factors.

A reshape may split a sharded dimension in two, a GSPMD tile assignment partitions devices without naming axes, and a
gather may undo half of an axis. With an axis as a sequence of *atoms* of prime size, all of these become plain set
operations. A part of an axis is written like a sub-axis in Shardy: ``name:(m)k`` is the part of size ``k`` such that
the more significant parts have ``m`` positions together. So ``data`` of size 4 is ``data:(1)2``, then ``data:(2)2``. An
axis of prime size is its own atom, and an axis of size 1 has none. The smallest prime is the most significant, by
convention: 6 is ``(1)2``, then ``(2)3``. Where 3 real devices hold 2 positions each, it is ``(1)3``, then ``(3)2``.

Source: Shardy's sharding representation (openxla.org/shardy, "Axis splitting and sub-axes").
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from meshwright.core.records import dataclass

#: the most devices of a mesh; larger numbers are taken for damaged input
MOST_DEVICES = 2**20

SUB_AXIS = re.compile(r"(?P<name>.+):\((?P<pre>\d+)\)(?P<size>\d+)\Z", re.DOTALL)


@dataclass(frozen=True)
class AxisPart:
    """A contiguous part of a mesh axis with ``size`` positions; more significant parts have ``pre`` positions."""

    axis: str
    pre: int
    size: int

    def name(self, axis_size: int) -> str:
        """The shortest name: the axis name if this is the whole axis, otherwise Shardy's sub-axis notation."""
        if self.pre == 1 and self.size == axis_size:
            return self.axis
        return f"{self.axis}:({self.pre}){self.size}"


def parse_part(text: str) -> AxisPart | None:
    """Parse ``"data:(1)2"``; None if ``text`` is not in sub-axis notation."""
    match = SUB_AXIS.match(text)
    return AxisPart(match["name"], int(match["pre"]), int(match["size"])) if match else None


def prime_factors(n: int) -> tuple[int, ...]:
    """The prime factors of ``n``, smallest first; none for 1."""
    factors: list[int] = []
    prime = 2
    while prime * prime <= n:
        while n % prime == 0:
            factors.append(prime)
            n //= prime
        prime += 1
    return (*factors, n) if n > 1 else tuple(factors)


#: for axes whose prime factors are not in ascending order: these, most significant first
Orders = Mapping[str, tuple[int, ...]]


def atomic_parts(axis: str, size: int, orders: Orders) -> tuple[AxisPart, ...]:
    """The atoms of one axis, most significant first."""
    parts: list[AxisPart] = []
    pre = 1
    for prime in orders.get(axis) or prime_factors(size):
        parts.append(AxisPart(axis, pre, prime))
        pre *= prime
    return tuple(parts)
