"""Packs the temporaries that have no place in a result's allocation into one block; computes peak live bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.spmd.memory.buffers import Buffer

#: buffers that are packed exactly; with more, the block grows by the share that is lost in packing the largest
_PACKED = 2000
#: alignment of buffers in the block, in bytes
_ALIGNMENT = 64

Span = tuple[int, int, int]


def joined(buffers: Sequence[Buffer]) -> tuple[list[Span], list[Span]]:
    """The ``(bytes, start, end)`` of buffers, in steps and in moments. Buffers that share memory are joined to one.

    In the block of temporaries, a value is only overwritten by a kernel that reads it directly, and not if the memory
    of either has other values too. Source: XLA's ``HeapSimulator``.
    """
    heirs: dict[Buffer, list[Buffer]] = {}
    head: dict[Buffer, Buffer] = {}
    free = set(buffers)
    for buffer in sorted(buffers, key=lambda b: b.start):
        head[buffer] = buffer
        ended = (x for x in buffer.plainly if x in free and x in head and x.end == buffer.start)
        for other in ended:
            if other.nbytes == buffer.nbytes and not (buffer.several or other.several):
                free.discard(other)
                head[buffer] = head[other]
                break
        heirs.setdefault(head[buffer], []).append(buffer)
    taken, given = _moments(buffers)
    chains = [(chain[0], chain[-1]) for chain in heirs.values()]
    steps = [(first.nbytes, first.start, last.end) for first, last in chains]
    return steps, [(first.nbytes, taken[first], given[last]) for first, last in chains]


def _moments(buffers: Sequence[Buffer]) -> tuple[dict[Buffer, int], dict[Buffer, int]]:
    """When each buffer is allocated and freed.

    These events are counted, as XLA does, to see which buffer lives longest.
    """
    ordered = sorted(buffers, key=lambda b: (b.start, b.end))
    events = sorted((at, last, i) for i, b in enumerate(ordered) for at, last in ((b.start, False), (b.end, True)))
    taken = {ordered[i]: moment for moment, (_, last, i) in enumerate(events) if not last}
    return taken, {ordered[i]: moment for moment, (_, last, i) in enumerate(events) if last}


def highest(spans: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """The peak live bytes, and the first step at which they are reached."""
    changes: dict[int, int] = {}
    for nbytes, start, end in spans:
        changes[start] = changes.get(start, 0) + nbytes
        changes[end + 1] = changes.get(end + 1, 0) - nbytes
    live = most = at = 0
    for step in sorted(changes):
        live += changes[step]
        if live > most:
            most, at = live, step
    return most, at


def packed(spans: Sequence[tuple[int, int, int]]) -> int:
    """The size of a block that holds the buffers: the smaller one for two placement orders."""
    spans = [span for span in spans if span[0]]
    large = sorted(spans, reverse=True)[:_PACKED]
    by_size = sorted(large, key=lambda s: (-s[0], s[1] - s[2], s[1]))
    by_time = sorted(large, key=lambda s: (s[1] - s[2], -s[0], s[1]))
    size = min(_pack(by_size), _pack(by_time))
    if len(large) == len(spans):
        return size
    return highest(spans)[0] * size // highest(large)[0]


def _pack(spans: Sequence[Span]) -> int:
    """The size of the block if each buffer in turn goes into the narrowest gap that holds it."""
    low, high, first, last = np.zeros((4, len(spans)), np.int64)  # of those placed; they end where others may start
    top = 0
    for k, (nbytes, start, end) in enumerate(spans):
        beside = ((first[:k] <= end) & (last[:k] >= start)).nonzero()[0]
        beside = beside[low[beside].argsort()]
        ends = np.maximum.accumulate(high[beside])
        at = _gap(low[beside], ends, nbytes)
        low[k], high[k], first[k], last[k] = at, -(-(at + nbytes) // _ALIGNMENT) * _ALIGNMENT, start, end
        top = max(top, at + nbytes)
    return top


def _gap(starts: Any, ends: Any, nbytes: int) -> int:
    """The start of the narrowest gap that holds ``nbytes``, or the top if there is none. ``ends`` must increase."""
    if not len(starts):
        return 0
    before = np.concatenate([[0], ends[:-1]])
    gaps = starts - before
    (wide,) = (gaps >= nbytes).nonzero()
    return int(before[wide[gaps[wide].argmin()]] if len(wide) else ends[-1])
