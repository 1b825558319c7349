"""Atomic axes: every mesh axis split into its prime factors.

A reshape splits a sharded dimension in two, a GSPMD tile assignment cuts devices without naming axes, a
gather may want to undo half of an axis: all of these become plain set operations once an axis is a sequence
of *atoms* of prime size. The notation for a part of an axis is Shardy's sub-axis: ``name:(m)k`` is the part
of size ``k`` whose more significant parts have ``m`` positions together, so ``data`` of size 4 is
``data:(1)2`` then ``data:(2)2``. An axis of prime size is its own atom and an axis of size 1 has none. Of
several primes the smallest is the most significant one, a fixed choice: 6 is ``(1)2`` then ``(2)3``.

Source: Shardy's sharding representation (openxla.org/shardy, "Axis splitting and sub-axes").
"""

from __future__ import annotations

import re

from meshwright.core.records import dataclass

#: no mesh has more devices: what says so is damaged
MOST_DEVICES = 2**20

SUB_AXIS = re.compile(r"(?P<name>.+):\((?P<pre>\d+)\)(?P<size>\d+)\Z", re.DOTALL)


@dataclass(frozen=True)
class AxisPart:
    """A contiguous part of a mesh axis: ``pre`` positions in the more significant parts, ``size`` in this."""

    axis: str
    pre: int
    size: int

    def name(self, axis_size: int) -> str:
        """The shortest name: the axis itself when this is all of it, else Shardy's sub-axis notation."""
        if self.pre == 1 and self.size == axis_size:
            return self.axis
        return f"{self.axis}:({self.pre}){self.size}"


def parse_part(text: str) -> AxisPart | None:
    """``"data:(1)2"`` as a part, or None when ``text`` is not in sub-axis notation."""
    match = SUB_AXIS.match(text)
    return AxisPart(match["name"], int(match["pre"]), int(match["size"])) if match else None


def prime_factors(n: int) -> tuple[int, ...]:
    """The primes of ``n``, smallest first; none for 1."""
    factors: list[int] = []
    prime = 2
    while prime * prime <= n:
        while n % prime == 0:
            factors.append(prime)
            n //= prime
        prime += 1
    return (*factors, n) if n > 1 else tuple(factors)


def atomic_parts(axis: str, size: int) -> tuple[AxisPart, ...]:
    """One axis as its prime parts, most significant first."""
    parts: list[AxisPart] = []
    pre = 1
    for prime in prime_factors(size):
        parts.append(AxisPart(axis, pre, prime))
        pre *= prime
    return tuple(parts)
