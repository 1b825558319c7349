"""Allocations of results, which smaller buffers may use before the results are written."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from meshwright.spmd.memory.buffers import Buffer, Liveness

#: how many gaps between other uses of allocations are examined; afterwards, buffers only go after the last use
_EFFORT = 500_000


class Allocations:
    """The allocations of results, smallest first, and the buffers that use them before the result is written."""

    def __init__(self, results: Sequence[Buffer], donated: Mapping[Buffer, Buffer]) -> None:
        self.results = sorted(results, key=lambda b: -b.nbytes)[::-1]
        self._sizes = np.array([b.nbytes for b in self.results], np.int64)
        self._written = np.array([b.start for b in self.results], np.int64)
        given = [donated.get(b) for b in self.results]
        self._used = [[] if b is None else [(b.start, b.end, b)] for b in given]
        self._until = np.array([-2 if b is None else b.end for b in given], np.int64)
        self._last = int(self._written.max(initial=0))
        self._steps = [0 if b is None else self._bits(b.start, b.end) for b in given]  # bit sets of the steps in use
        self._effort = _EFFORT

    def take(self, buffer: Buffer) -> bool:
        """Put a buffer into the smallest allocation whose result is written after the buffer's last use, if any."""
        first = int(np.searchsorted(self._sizes, buffer.nbytes))
        written, until = self._written[first:], self._until[first:]
        open_ = (until < buffer.start) & (written > buffer.end) if self._effort < 0 else written >= buffer.end
        whole, inside = self._bits(buffer.start, buffer.end), self._bits(buffer.start + 1, buffer.end - 1)
        for i in np.flatnonzero(open_).tolist():
            at = first + i
            self._effort -= 1
            if not self._steps[at] & inside and self._fits(buffer, at, whole):
                insort(self._used[at], (buffer.start, buffer.end, buffer), key=lambda use: use[:2])
                self._until[at] = max(self._until[at], buffer.end)
                self._steps[at] |= whole
                return True
        return False

    def _fits(self, buffer: Buffer, at: int, whole: int) -> bool:
        """Whether the allocation is free at the buffer's steps.

        A use may begin at the step at which another one ends if it can overwrite the other one.
        """
        result, used = self.results[at], self._used[at]
        if result.start == buffer.end and buffer not in result.over:
            return False
        if not self._steps[at] & whole:
            return True
        near = bisect_left(used, buffer.start, key=lambda use: use[0])
        for start, end, other in used[max(near - 1, 0) :]:
            if start > buffer.end:
                return True
            meets = (end == buffer.start and other in buffer.over) or (start == buffer.end and buffer in other.over)
            if end >= buffer.start and not meets:
                return False
        return True

    def _bits(self, first: int, last: int) -> int:
        """The steps from ``first`` to ``last``, up to the last write of a result, as a bit set."""
        first, last = max(first, 0), min(last, self._last)
        return ((1 << max(last - first + 1, 0)) - 1) << first


def place(
    live: Liveness, results: Sequence[Buffer], donated: Mapping[Buffer, Buffer], elsewhere: Collection[Buffer] = ()
) -> tuple[list[Buffer], list[Buffer]]:
    """The results, smallest first, and the temporaries that do not fit into their allocations.

    ``donated`` maps results to arguments; buffers in ``elsewhere`` need no allocation.
    """
    allocations = Allocations(results, donated)
    temporaries = [b for b in live.buffers if b.kind == "temporary" and b not in elsewhere]
    temporaries.sort(key=lambda b: (-b.nbytes, b.kernel.number))
    return allocations.results, [b for b in temporaries if not allocations.take(b)]
