"""Assignment of values to a TPU's vector memory (VMEM).

XLA assigns each value to main or vector memory. The peak that it reports, besides arguments and results, is the larger
of the two memories' peaks, not their sum. The rules, derived from buffer assignments and settings of libtpu 0.0.42:

- Computed values are written to vector memory. If two cores with separate vector memories form a device (v5p), this
  holds for loops only; products, collectives and copies write to main memory. What nothing reads of a kernel's
  several results is there, too.
- A value in main memory is prefetched into vector memory before it is read, so early that the kernels in between take
  twice as long as the copy. Copies are sequential. The value stays until its last read. If the copy would be too late,
  there is none.
- One argument is copied before the program begins: the largest of those that are read twice, or by a product.
- Arguments that a loop reads only in slices are not copied.
- A value that is not read for eight times as long as a copy of the whole vector memory takes is not kept there.
- Results stay until the end of the program, where they are copied out one after the other. Two kinds of results are
  written to main memory: those of the last kernels, and what the steps of a loop give, stacked.
- The body of a loop copies what it reads whole from main memory, if it does other work first. For that, its work counts
  five times as long for each loop around it.
- What a body computes counts five times as much as other values, and what is used in parts only as it is written.
- A value that a loop changes counts twice while it is written.
- Consecutive loops over the same arrays run as one, so all values that they read and write are live together.
- A value that overwrites an operand, in whole or in part, counts in addition to it while it is written, although both
  share one buffer.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from meshwright.spmd.memory.buffers import Buffer, Liveness
from meshwright.spmd.memory.compilers import Compiler
from meshwright.spmd.memory.fixed_orders import elements_moved
from meshwright.spmd.memory.graph import Node
from meshwright.spmd.memory.kernels import Kernel, Use
from meshwright.spmd.memory.stacks import filled, used_in_parts

#: kernels beside a copy take this many times as long as the copy (``msa_preferred_overlap_to_async_copy_ratio``)
_OVERLAP = 2
#: copies of the whole vector memory that a value may wait there (``msa_max_overlap_to_mem_size_async_copy_ratio``)
_WAIT = 8

#: how often a body is taken to run (``msa_while_execution_count``)
_ITERATIONS = 5
#: bytes that main memory could move while an element is gathered or scattered by its number
_ELEMENT = 3400

#: values that are in main memory before the program begins
_GIVEN = ("argument", "constant")
#: what writes a part of its first operand
UPDATES = ("dynamic_update_slice", "scatter")

Slots = tuple[int, ...]


@dataclass(frozen=True)
class Stay:
    """The time that a value spends in vector memory. ``slots`` are those at which it is written or read there."""

    buffer: Buffer
    nbytes: int
    slots: Slots
    #: the slot at which it arrives: ``slots[0]`` if it is written there, an earlier one if it is copied
    start: int
    #: whether it is never in main memory, except as a result
    only: bool = False


class VectorMemory:
    """Which values of a schedule are in vector memory, and when."""

    def __init__(self, live: Liveness, order: Sequence[Kernel], compiler: Compiler, depth: int = 0) -> None:
        self.live, self.order, self.compiler, self._depth = live, order, compiler, depth
        self._slot = slots_of(order, live.together)
        self.stays = list(self._chosen())

    def highest(self, inside: Mapping[int, int]) -> tuple[int, Sequence[Buffer]]:
        """The most bytes that are there at a time, and the values that are there then, as temporaries.

        ``inside`` are the bytes that loops take there for their bodies, by the step of the loop.
        """
        changes = np.zeros(self._slot[-1] + 2, np.int64)
        for stay in self.stays:
            changes[max(stay.start, 0)] += stay.nbytes
            changes[stay.slots[-1] + 1] -= stay.nbytes
        held = np.cumsum(changes)
        for buffer, step in self.live.rewritten:
            held[self._slot[step]] += buffer.nbytes * self.holds(buffer, step)
        for step, nbytes in inside.items():
            held[self._slot[step]] += nbytes
        peak = int(held.argmax())
        there = [replace(s.buffer, kind="temporary") for s in self.stays if s.start <= peak <= s.slots[-1]]
        for step, nbytes in inside.items():
            if self._slot[step] == peak and nbytes:
                kernel = self.order[step]
                there.append(Buffer(kernel.root.avals[0], nbytes, kernel, step, step))
        return int(held[peak]), there

    def holds(self, buffer: Buffer, step: int) -> bool:
        """Whether a value is there at a step."""
        slot = self._slot[step]
        return any(stay.buffer is buffer and stay.start <= slot <= stay.slots[-1] for stay in self.stays)

    def copies(self) -> Iterator[tuple[Buffer, int, int]]:
        """The arguments and constants that are copied to vector memory, with the first and the last step there."""
        for stay in self.stays:
            if stay.buffer.kind in _GIVEN:
                first, end = (bisect_left(self._slot, slot) for slot in (max(stay.start, 0), stay.slots[-1] + 1))
                yield stay.buffer, first, max(end - 1, first)

    @property
    def only_here(self) -> set[Buffer]:
        """The values that are never in main memory, except as results."""
        return {stay.buffer for stay in self.stays if stay.only}

    def shorten(self) -> None:
        """Shorten the time in main memory of values that are only read here after they are copied."""
        for stay in self.stays:
            buffer = stay.buffer
            if buffer.kind == "temporary" and stay.slots[-1] == self._at(buffer.end) and not stay.only:
                buffer.end = max(bisect_left(self._slot, stay.slots[0]), buffer.start)

    # --- which ----------------------------------------------------------------------------------------------
    def _chosen(self) -> Iterator[Stay]:
        """Choose stays. Those that save most come first. Each needs room, and time for its copy."""
        self._room = np.full(self._slot[-1] + 1, self.compiler.on_chip, np.int64)
        self._idle = np.diff(self._time)
        self._before: dict[int, int] = {}
        sized = [(b, runs) for b, runs in self._runs.items() if b.nbytes]
        wanted = [(run, b, i == 0 and self._writes(b)) for b, runs in sized for i, run in enumerate(runs)]
        wanted.sort(key=lambda want: self._saved(*want[:2]), reverse=True)
        before = [(buffer.nbytes, run) for run, buffer, _ in wanted if self._may_be_before(run, buffer)]
        first = max(before, key=lambda b: b[0], default=(0, None))[1]
        for run, buffer, written in sorted(wanted, key=lambda want: want[0] is not first):
            early = self._from(0, buffer, run) if run is first else None
            stay = early or (self._from(run[0], buffer, run) if written else self._copied(buffer, run))
            if stay is not None:
                yield stay

    def _may_be_before(self, run: Slots, buffer: Buffer) -> bool:
        """Whether an argument may be copied before the program begins.

        It must be read twice, or by a product.
        """
        if self._depth or buffer.kind != "argument" or run[0] != self._runs[buffer][0][0] or buffer in self._in_bodies:
            return False
        return len(run) > 1 or self._work[run[0]] > 0

    @cached_property
    def _in_bodies(self) -> set[Buffer | None]:
        """The values that loops and conditionals read."""
        kernels = (kernel for kernel in self.order if kernel.root.regions)
        return {buffer for kernel in kernels for source in kernel.inputs for buffer in self.live.of[source]}

    def _from(self, start: int, buffer: Buffer, run: Slots) -> Stay | None:
        """A stay from slot ``start`` on, which needs no time for a copy.

        The value is written there, or it is copied before the program begins.
        """
        if run[-1] == self._slot[-1] and self._written_last(buffer, run):
            return None
        if not self._take(buffer, buffer.nbytes, start, run[-1]):
            return None
        only = buffer.kind not in _GIVEN and len(self._runs[buffer]) == 1
        return Stay(buffer, buffer.nbytes, run, start, only)

    def _written_last(self, buffer: Buffer, run: Slots) -> bool:
        """Whether there is no time to copy a result out, because it is written by one of the last kernels."""
        if buffer.kind != "result" or len(run) > 2:
            return False
        return bool(self._time[run[-1]] - self._time[run[0] + 1] < _OVERLAP * buffer.nbytes)

    def _copied(self, buffer: Buffer, run: Slots) -> Stay | None:
        """A stay that begins with a copy, in time for the first read that a copy can reach.

        It lasts until the last read.
        """
        nbytes, written = buffer.nbytes, self._at(buffer.start) + 1
        for i, slot in enumerate(run):
            first, left = self._beside(nbytes, slot, written)
            if left > 0:
                continue
            preferred = int(np.searchsorted(self._time, self._time[slot] - _OVERLAP * nbytes, "right")) - 1
            start = max(min(first, preferred), written)
            if self._take(buffer, nbytes, start, run[-1]):
                self._idle[first:slot] = 0
                self._idle[first] = -left
                return Stay(buffer, nbytes, run[i:], start)
        return None

    def _beside(self, nbytes: int, slot: int, written: int) -> tuple[int, float]:
        """The last slot at which a copy that ends before ``slot`` can begin, and the bytes that have no time."""
        left: float = nbytes
        while left > 0 and (slot := self._not_busy(slot - 1)) >= written:
            left -= self._idle[slot]
        return slot, left

    def _not_busy(self, slot: int) -> int:
        """The last slot up to ``slot`` in which there is time to copy; -1 if there is none."""
        passed = []
        while slot >= 0 and self._idle[slot] <= 0:
            passed.append(slot)
            slot = self._before.get(slot, slot - 1)
        self._before.update(dict.fromkeys(passed, slot))
        return slot

    def _take(self, buffer: Buffer, nbytes: int, start: int, end: int) -> bool:
        """Take the room for a stay, if there is any. A value that is overwritten leaves its place to the new one."""
        room = self._room[start : max(end + 1 - (buffer in self._overwritten), start + 1)]
        if room.min() < nbytes:
            return False
        room -= nbytes
        return True

    @cached_property
    def _overwritten(self) -> set[Buffer]:
        overs = ((other, buffer) for buffer in self.live.buffers for other in buffer.over)
        return {other for other, buffer in overs if self._at(other.end) == self._at(buffer.start)}

    def _writes(self, buffer: Buffer) -> bool:
        """Whether a value is written to vector memory."""
        if self._in_main(buffer) or self._in_argument(buffer):
            return False
        if self._is_unused(buffer):
            return False
        return buffer.kernel.loop or not self.compiler.two_cores

    def _is_unused(self, buffer: Buffer) -> bool:
        """Whether a value is one of several results of a kernel, which nothing reads."""
        several = len(buffer.kernel.root.avals) > 1 and not buffer.inner
        return several and buffer.kind != "result" and buffer not in self._reads

    def _in_main(self, buffer: Buffer) -> bool:
        """Whether a value is in main memory at first: an argument, a constant, or a result that a loop fills."""
        return buffer.kind in _GIVEN or (buffer.kind == "result" and buffer in self._filled)

    @cached_property
    def _filled(self) -> set[Buffer | None]:
        """The arrays that loops fill with their results. Nothing else writes them."""
        loops = (kernel for kernel in self.order if kernel.root.op == "while")
        return {self.live.of[loop.operands[i]][0] for loop in loops for i in filled(loop.root)}

    def _in_argument(self, buffer: Buffer) -> bool:
        """Whether only a part of a value is written, in the place of an argument. Arguments are in main memory."""
        return buffer.kernel.root.op in UPDATES and any(other.kind == "argument" for other in buffer.over)

    def _saved(self, run: Slots, buffer: Buffer) -> float:
        """What a stay saves: the time that kernels wait for main memory.

        Large values count less: they take much room.
        """
        nbytes = buffer.nbytes
        times = _ITERATIONS if buffer.kernel.root.op == "while" else 1
        whole = (slot for slot in run if (buffer, slot) not in self._partly)
        return times * float(sum(min(nbytes, self._waits[slot]) for slot in whole) / max(nbytes, 1) ** 0.5)

    @cached_property
    def _partly(self) -> set[tuple[Buffer | None, int]]:
        """The slots at which values are read in parts, which takes little time."""
        loops = ((step, kernel) for step, kernel in enumerate(self.order) if kernel.root.op == "while")
        return {(b, self._slot[step]) for step, loop in loops for x in used_in_parts(loop) for b in self.live.of[x]}

    # --- when -----------------------------------------------------------------------------------------------
    def _at(self, step: int) -> int:
        return -1 if step < 0 else self._slot[min(step, len(self.order))]

    @cached_property
    def _reads(self) -> dict[Buffer, list[int]]:
        """The slots at which each value is read as a whole."""
        reads: dict[Buffer, list[int]] = defaultdict(list)
        for step, kernel in enumerate(self.order):
            if not kernel.view:
                parts = used_in_parts(kernel)
                read = ((source, b) for source in kernel.inputs for b in self.live.of[source] if b is not None)
                for buffer in (b for source, b in read if not (source in parts and self._in_main(b))):
                    if self._slot[step] not in reads[buffer][-1:]:
                        reads[buffer].append(self._slot[step])
        return reads

    @cached_property
    def _runs(self) -> dict[Buffer, list[Slots]]:
        """The slots at which each value is written or read there. There is a cut where it would wait too long."""
        longest = _WAIT * self.compiler.on_chip
        runs = {}
        for buffer in self.live.buffers:
            if buffer.start < 0 and buffer.kind not in _GIVEN:
                continue  # a table of addresses
            slots = [self._at(buffer.start)] * self._writes(buffer) + self._reads.get(buffer, [])
            slots += [self._slot[-1]] * (buffer.kind == "result" and self._writes(buffer))
            cuts = [i for i, (a, b) in enumerate(pairwise(slots), 1) if self._time[b] - self._time[a + 1] > longest]
            runs[buffer] = [tuple(slots[i:j]) for i, j in pairwise([0, *cuts, len(slots)]) if j]
        return runs

    @cached_property
    def _time(self) -> np.ndarray:
        """When each slot begins, in bytes that main memory could move until then."""
        time: np.ndarray = np.cumsum([0, *np.maximum(self._moved, self._work)]) * _ITERATIONS**self._depth
        return time

    @cached_property
    def _waits(self) -> np.ndarray:
        """The time that each slot waits for main memory, in bytes."""
        waits: np.ndarray = np.maximum(self._moved - self._work, 0)
        return waits

    @cached_property
    def _moved(self) -> np.ndarray:
        """The bytes that each slot reads and writes."""
        moved = np.zeros(self._slot[-1] + 1)
        for buffer in self.live.buffers:
            for slot in (self._at(buffer.start), *self._reads.get(buffer, ())):
                moved[slot] += buffer.nbytes * (slot >= 0)
        return moved

    @cached_property
    def _work(self) -> np.ndarray:
        """The time of each slot's products and single elements, in bytes that main memory could move."""
        work = np.zeros(self._slot[-1] + 1)
        for step, kernel in enumerate(self.order):
            work[self._slot[step]] += sum(map(_operations, kernel.members)) / self.compiler.intensity
            work[self._slot[step]] += sum(map(elements_moved, kernel.members)) * _ELEMENT
        return work


def _operations(node: Node) -> float:
    """Multiplications and additions of a product."""
    if node.op == "matmul":
        left, right = (x.avals[0].size for x in node.operands[:2])
        return 2 * math.sqrt(left * right * node.avals[0].size / max(math.prod(node.shape[:-2]), 1))
    if node.op == "convolution":
        kernel = node.operands[1]
        return 2 * node.avals[0].size * kernel.avals[0].size / max(kernel.shape[-1], 1)
    return 0


def slots_of(order: Sequence[Kernel], together: Mapping[Kernel, Sequence[Kernel]]) -> list[int]:
    """The slot of each kernel, and that of the end.

    Kernels that run as one share a slot, and neighbours that read the same arrays elementwise.
    """
    slots: list[int] = []
    now, shape, arrays, group = -1, None, set[Kernel](), None
    for kernel in order:
        if not kernel.view:
            inplace = {k for k, use in kernel.inputs.items() if use is Use.INPLACE}
            one = group is not None and together.get(kernel) is group
            if not one and not (kernel.loop and kernel.root.shape == shape and inplace & arrays):
                now, shape, arrays = now + 1, kernel.root.shape if kernel.loop else None, set()
            arrays |= {kernel, *inplace}
            group = together.get(kernel)
        slots.append(max(now, 0))
    return [*slots, now + 1]
