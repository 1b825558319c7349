"""Which buffers there are, when they are alive, and which share memory.

The rules are those of XLA's buffer assignment. Arguments stay; every result has an allocation of its own, which smaller
buffers may use before the result is written; a loop may write over an operand that it reads elementwise for the last
time; the rest is packed into one block, the largest buffers first, each into the smallest gap that holds it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.graph import Graph
from meshwright.spmd.memory.kernels import Kernel, Use
from meshwright.spmd.memory.prune import CHOICES, through

#: buffers that are packed exactly; with more, the block grows by the share that is lost in packing the largest
_PACKED = 2000
#: a step after all others
_ALWAYS = 1 << 40
_ADDRESS = np.dtype(np.uint64)
#: bytes that starts of buffers in a block are multiples of
_ALIGNMENT = 64
#: places between other uses of a result's memory that are looked at; further buffers go after the last use
_EFFORT = 500_000


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory that a kernel writes, and from which step to which it is needed."""

    aval: ShapedArray
    #: the array's size, or what the body of a control-flow op needs besides its operands and results
    nbytes: int
    kernel: Kernel
    start: int
    end: int
    kind: str = "temporary"
    #: operands' buffers that may be written over
    over: tuple[Buffer, ...] = ()
    #: those of them that are read as they are, not as one of several results or in another shape
    plainly: tuple[Buffer, ...] = ()


#: ``inner(region, loop)``: the bytes of what a region needs at its peak besides its parameters and results
Inner = Callable[[Graph, bool], Sequence[int]]


@dataclass(slots=True)
class Liveness:
    """The buffers of a schedule."""

    buffers: list[Buffer] = field(default_factory=list)
    of: dict[Kernel, list[Buffer | None]] = field(default_factory=dict)


def liveness(order: Sequence[Kernel], results: Sequence[Kernel], inner: Inner) -> Liveness:
    """Buffers with their first and last steps."""
    live = Liveness()
    for step, kernel in enumerate(order):
        if not kernel.view:
            for source in kernel.inputs:
                for buffer in live.of[source]:
                    if buffer is not None:
                        buffer.end = step
        live.of[kernel] = _write(live, kernel, step, inner)
    for kernel in results:
        for buffer in live.of[kernel]:
            if buffer is not None:
                buffer.end = len(order)
                if buffer.kind == "temporary":
                    buffer.kind = "result"
    return live


def _write(live: Liveness, kernel: Kernel, step: int, inner: Inner) -> list[Buffer | None]:
    root = kernel.root
    if root.op in CHOICES:
        return _of_choice(live, kernel, step, inner)
    if root.op == "constant":
        return [None]
    if kernel.view:
        (source,) = kernel.inputs
        return [live.of[source][root.attributes["index"]]] if root.op == "get" else live.of[source]
    if root.op == "parameter":
        return _new(live, [Buffer(root.avals[0], root.avals[0].nbytes, kernel, -1, step, "argument")])
    if root.op == "optimization_barrier":
        return [live.of[k][0] for k in kernel.operands]
    if root.op == "while":
        _inside(live, kernel, step, inner)
        _table(live, kernel, step, len(kernel.operands))
        used = root.attributes["used"]
        return [live.of[kernel.operands[used[i]]][0] if i in used else None for i in range(len(root.avals))]
    if len(root.avals) > 1:
        _table(live, kernel, step, len(root.avals))
    if taken := updated(kernel):
        return _in_place(live, kernel, step, taken)
    if "in_place" in root.attributes:
        pairs = zip(root.avals, kernel.operands)
        places = ((a, tuple(b for b in live.of[k][:1] if b is not None)) for a, k in pairs)
        return _new(live, [Buffer(a, a.nbytes, kernel, step, step, over=over, plainly=over) for a, over in places])
    found = [
        (b, k.view or k.root.op in CHOICES)
        for k in kernel.inputs
        for b in live.of[k][:1]
        if b is not None and k.root.shape == root.shape and overwrites(kernel, k)
    ]
    over, plainly = tuple(b for b, _ in found), tuple(b for b, view in found if not view)
    return _new(live, [Buffer(a, a.nbytes, kernel, step, step, over=over, plainly=plainly) for a in root.avals])


def _of_choice(live: Liveness, kernel: Kernel, step: int, inner: Inner) -> list[Buffer | None]:
    """The results that are used; what branches hand through stays where it is."""
    root = kernel.root
    _inside(live, kernel, step, inner)
    used = root.attributes["used"]
    if root.op != "call":
        for taken in {tuple(p.attributes["outside"] for p in region.parameters) for region in root.regions}:
            _table(live, kernel, step, len(taken))
        _table(live, kernel, step, len(used))
    results: list[Buffer | None] = [None] * len(root.avals)
    for i, place in used.items():
        source = through(root, place)
        if source is None:
            results[i] = _new(live, [Buffer(root.avals[i], root.avals[i].nbytes, kernel, step, step)])[0]
        else:
            results[i] = live.of[kernel.operands[root.operands.index(source)]][0]
    return results


def _inside(live: Liveness, kernel: Kernel, step: int, inner: Inner) -> None:
    """What the bodies of a control-flow op need themselves."""
    is_loop, regions = kernel.root.op == "while", kernel.root.regions
    needs = [inner(region, is_loop and region is regions[1]) for region in regions]
    _new(live, [Buffer(kernel.root.avals[0], n, kernel, step, step) for n in max(needs, key=sum)])


def _table(live: Liveness, kernel: Kernel, step: int, count: int) -> None:
    """The addresses of several values: memory that is not used again."""
    _new(live, [Buffer(ShapedArray((count,), _ADDRESS), _ADDRESS.itemsize * count, kernel, -1, _ALWAYS)])


_ALIASED = re.compile(r"operand_index = (\d+)")


def updated(kernel: Kernel) -> list[Kernel]:
    """The operands whose memory the first results are written to, whoever else needs them."""
    root = kernel.root
    if "output_operand_aliases" in root.attributes:
        return [kernel.operands[int(i)] for i in _ALIASED.findall(root.attributes["output_operand_aliases"])]
    return [k for k in kernel.operands[:1] if root.op in ("dynamic_update_slice", "scatter") and k in kernel.inputs]


def _in_place(live: Liveness, kernel: Kernel, step: int, places: Sequence[Kernel]) -> list[Buffer | None]:
    """The results, the first of which are the operands' buffers; arguments stay what they are."""
    results: list[Buffer | None] = []
    for i, aval in enumerate(kernel.root.avals):
        old = live.of[places[i]][0] if i < len(places) else None
        if old is None or old.kind == "argument":
            results += _new(live, [Buffer(aval, aval.nbytes, kernel, step, step, over=() if old is None else (old,))])
        else:
            old.end = step
            results.append(old)
    return results


def overwrites(kernel: Kernel, source: Kernel) -> bool:
    """Whether the kernel can compute in the memory of an operand."""
    use = kernel.inputs[source]
    if kernel.root.op == "copy":
        return False  # its purpose is a second buffer
    if kernel.root.op == "dynamic_update_slice":
        return source.root is kernel.root.operands[0]  # besides, it may read what it replaces
    if kernel.root.op in ("scatter", "sort"):
        return use is Use.MOVED
    return use is Use.INPLACE and (kernel.loop or kernel.library)


def _new(live: Liveness, buffers: list[Buffer]) -> list[Buffer | None]:
    live.buffers += buffers
    return list(buffers)


# --- allocations --------------------------------------------------------------------------------------------
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


Span = tuple[int, int, int]


def joined(buffers: Sequence[Buffer]) -> tuple[list[Span], list[Span]]:
    """``(bytes, start, end)`` of buffers, those that are written over each other as one: in steps, and in moments.

    In the block of temporaries, only what is read as it is is written over.
    """
    heirs: dict[Buffer, list[Buffer]] = {}
    head: dict[Buffer, Buffer] = {}
    free = set(buffers)
    for buffer in sorted(buffers, key=lambda b: b.start):
        head[buffer] = buffer
        for other in buffer.plainly:
            if other in free and other in head and other.end == buffer.start and other.nbytes == buffer.nbytes:
                free.discard(other)
                head[buffer] = head[other]
                break
        heirs.setdefault(head[buffer], []).append(buffer)
    taken, given = _moments(buffers)
    chains = [(chain[0], chain[-1]) for chain in heirs.values()]
    steps = [(first.nbytes, first.start, last.end) for first, last in chains]
    return steps, [(first.nbytes, taken[first], given[last]) for first, last in chains]


def _moments(buffers: Sequence[Buffer]) -> tuple[dict[Buffer, int], dict[Buffer, int]]:
    """When each buffer is taken, and given back, counted in such events, as XLA does it to say which live longest."""
    ordered = sorted(buffers, key=lambda b: (b.start, b.end))
    events = sorted((at, last, i) for i, b in enumerate(ordered) for at, last in ((b.start, False), (b.end, True)))
    taken = {ordered[i]: moment for moment, (_, last, i) in enumerate(events) if not last}
    return taken, {ordered[i]: moment for moment, (_, last, i) in enumerate(events) if last}


def highest(spans: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """Most bytes alive at a time, and the first step at which they are."""
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
    """The size of a block that holds the buffers: the better of two orders of placing them."""
    spans = [span for span in spans if span[0]]
    large = sorted(spans, reverse=True)[:_PACKED]
    by_size = sorted(large, key=lambda s: (-s[0], s[1] - s[2], s[1]))
    by_time = sorted(large, key=lambda s: (s[1] - s[2], -s[0], s[1]))
    size = min(_pack(by_size), _pack(by_time))
    if len(large) == len(spans):
        return size
    return highest(spans)[0] * size // highest(large)[0]


def _pack(spans: Sequence[tuple[int, int, int]]) -> int:
    placed: list[tuple[int, int, int, int]] = []
    top = 0
    for nbytes, start, end in spans:
        position, best, gap = 0, -1, 0
        for low, high, first, last in placed:
            if first > end or last < start:
                continue
            if nbytes <= low - position and (best < 0 or low - position < gap):
                best, gap = position, low - position
            position = max(position, -(-high // _ALIGNMENT) * _ALIGNMENT)
        at = position if best < 0 else best
        insort(placed, (at, at + nbytes, start, end))
        top = max(top, at + nbytes)
    return top
