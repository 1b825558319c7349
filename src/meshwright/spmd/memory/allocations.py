"""The memory of results, which smaller buffers use before they are written."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from meshwright.spmd.memory.buffers import Buffer, Liveness

#: places between other uses of a result's memory that are looked at; further buffers go after the last use
_EFFORT = 500_000


class Allocations:
    """The results' memory, smallest first, with what uses it before the result is written."""

    def __init__(self, results: Sequence[Buffer], donated: Mapping[Buffer, Buffer]) -> None:
        self.results = sorted(results, key=lambda b: -b.nbytes)[::-1]
        self._sizes = np.array([b.nbytes for b in self.results], np.int64)
        self._written = np.array([b.start for b in self.results], np.int64)
        given = [donated.get(b) for b in self.results]
        self._used = [[] if b is None else [(b.start, b.end, b)] for b in given]
        self._until = np.array([-2 if b is None else b.end for b in given], np.int64)
        self._effort = _EFFORT

    def take(self, buffer: Buffer) -> bool:
        """Find the smallest place for a buffer that is not needed any more when the result is written."""
        first = int(np.searchsorted(self._sizes, buffer.nbytes))
        written, until = self._written[first:], self._until[first:]
        after = (until < buffer.start) & (written > buffer.end)
        for i in np.flatnonzero(after if self._effort < 0 else written >= buffer.end):
            at = first + int(i)
            if after[i] or self._fits(buffer, at):
                insort(self._used[at], (buffer.start, buffer.end, buffer), key=lambda use: use[:2])
                self._until[at] = max(self._until[at], buffer.end)
                return True
        return False

    def _fits(self, buffer: Buffer, at: int) -> bool:
        """Whether nothing else uses the memory; where one use ends as the next begins, the next must overwrite it."""
        self._effort -= 1
        result, used = self.results[at], self._used[at]
        if result.start == buffer.end and buffer not in result.over:
            return False
        near = bisect_left(used, buffer.start, key=lambda use: use[0])
        for start, end, other in used[max(near - 1, 0) :]:
            if start > buffer.end:
                return True
            meets = (end == buffer.start and other in buffer.over) or (start == buffer.end and buffer in other.over)
            if end >= buffer.start and not meets:
                return False
        return True


def place(
    live: Liveness, results: Sequence[Buffer], donated: Mapping[Buffer, Buffer], elsewhere: Collection[Buffer] = ()
) -> tuple[list[Buffer], list[Buffer]]:
    """The results that have memory, and the buffers that found no place there.

    ``donated`` is result to argument; what is ``elsewhere`` needs no place.
    """
    allocations = Allocations(results, donated)
    temporaries = [b for b in live.buffers if b.kind == "temporary" and b not in elsewhere]
    temporaries.sort(key=lambda b: (-b.nbytes, b.kernel.number))
    return allocations.results, [b for b in temporaries if not allocations.take(b)]
