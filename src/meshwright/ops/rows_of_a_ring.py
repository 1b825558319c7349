"""Runs of consecutive rows of a dimension that may wrap around at its end, as the low frequencies of a spectrum do."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple


class Run(NamedTuple):
    """Rows ``start, start + 1, ...`` (``length`` of them), modulo ``size``."""

    start: int
    length: int
    size: int

    @staticmethod
    def whole(size: int) -> Run:
        return Run(0, size, size)

    @property
    def is_whole(self) -> bool:
        return self.length == self.size

    @property
    def wraps(self) -> bool:
        return self.start + self.length > self.size

    def contains(self, other: Run) -> bool:
        return not other.length or self.is_whole or (other.start - self.start) % self.size + other.length <= self.length

    def joined(self, other: Run) -> Run:
        """The shortest run with the rows of both."""
        ways = [run for run in (self, other) if run.contains(self) and run.contains(other)]
        for a, b in ((self, other), (other, self)):
            count = max(a.length, (b.start - a.start) % self.size + b.length)
            ways.append(Run(a.start, count, self.size) if count < self.size else Run.whole(self.size))
        return min(ways, key=lambda run: run.length)

    def common(self, other: Run) -> Run | None:
        """The rows that both have; None if they are not one run."""
        if self.contains(other):
            return other
        if other.contains(self):
            return self
        found = []
        for a, b in ((self, other), (other, self)):
            at = (b.start - a.start) % self.size
            if at < a.length:
                found.append(Run(b.start, min(b.length, a.length - at), self.size))
        if len(found) > 1:
            return None
        return found[0] if found else Run(self.start, 0, self.size)

    def among(self, rows: Run) -> Run | None:
        """This run, which is in ``rows``, by its place in these; None if it is in two pieces there."""
        if self == rows:
            return Run.whole(rows.length)
        at = (self.start - rows.start) % self.size
        return Run(at, self.length, rows.length) if rows.is_whole or at + self.length <= rows.length else None

    def inside(self, rows: Run) -> Run:
        """The run of the larger dimension of which ``rows`` are a dimension that has this run: all ``rows`` if it would
        be in two pieces."""
        if self.wraps and not rows.is_whole:
            return rows
        return Run((rows.start + self.start) % rows.size, self.length, rows.size)


#: a run for each dimension of an array
Box = tuple[Run, ...]


def whole(shape: Iterable[int]) -> Box:
    return tuple(map(Run.whole, shape))


def hull(boxes: Iterable[Box]) -> Box:
    """The smallest box with the rows of all."""
    return tuple(reduce(Run.joined, runs) for runs in zip(*boxes))
