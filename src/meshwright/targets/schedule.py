"""The schedule of a compiled program: its kernels and collectives in order, and which of them overlap.

A collective is *asynchronous* if other work is done between its start and its end. Backends represent this in three
ways: as pairs of ``-start`` and ``-done``; on TPUs, as fusions that start a collective (``AsyncCollectiveStart``),
continue it alongside arithmetic of their own, and finish it; on GPUs, as a pair that is marked synchronous if no work
is in between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwright.core.records import dataclass
from meshwright.core.source import SourceLocation
from meshwright.targets.hlo import ArrayType, HloProgram, Instruction

KINDS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute", "collective-broadcast",
         "ragged-all-to-all")  # fmt: skip
#: instructions that take no time
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "partition-id",
    "replica-id", "add-dependency", "iota", "domain",
}  # fmt: skip
#: custom calls that are only annotations for a backend
_MARKS = ("AsyncCollective", "ConcatBitcast", "AllocateBuffer", "AssumeGatherIndicesInBound", "Sharding", "MoveTo")
_CHAIN = re.compile(r'\bchain_id="(\d+)"')
_TARGET = re.compile(r'\bcustom_call_target="([^"]*)"')
_LISTED = re.compile(r"\{([\d,]+)\}")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
Groups = frozenset[tuple[int, ...]]


@dataclass(frozen=True)
class Kernel:
    """One kernel: a fusion, a library call, or a loop.

    ``cycles`` is the compiler's estimate for one execution (TPU), or None. ``count`` is the number of executions.
    ``what`` is the op of the program, or the library function.
    """

    name: str
    what: str
    library: str
    source: SourceLocation
    count: int
    cycles: int | None

    def __str__(self) -> str:
        return f"{self.library or self.what} at {self.source}" if self.source.is_known else self.library or self.what


@dataclass(frozen=True)
class Scheduled:
    """One collective of the compiled program, before it is matched with the per-device program."""

    name: str
    kind: str
    instruction: Instruction
    operands: tuple[ArrayType, ...]
    groups: Groups
    asynchronous: bool
    overlaps: tuple[Kernel, ...]
    algorithm: str
    source: SourceLocation
    count: int


@dataclass(frozen=True)
class Schedule:
    """All kernels and collectives in the order in which they start; loops of unknown trip count are counted once."""

    kernels: tuple[Kernel, ...]
    collectives: tuple[Scheduled, ...]
    unknown_loops: int

    @property
    def cycles(self) -> int | None:
        """The estimated cycles of all kernels; None if the compiler gives no estimates."""
        cycles = [k.cycles * k.count for k in self.kernels if k.cycles is not None]
        return sum(cycles) if cycles else None


def schedule_of(program: HloProgram, num_devices: int) -> Schedule:
    """The schedule of a program, from its entry through loops and branches."""
    reader = _Reader(program, num_devices)
    reader.computation(program.entry, 1)
    return Schedule(tuple(reader.kernels), tuple(reader.collectives), reader.unknown_loops)


class _Reader:
    def __init__(self, program: HloProgram, num_devices: int) -> None:
        self.program = program
        self.num_devices = num_devices
        self.kernels: list[Kernel] = []
        self.collectives: list[Scheduled] = []
        self.unknown_loops = 0

    def computation(self, name: str, count: int) -> None:
        body = self.program.computations[name]
        by_name = {i.name: i for i in body}
        kernels: dict[str, Kernel] = {}
        for i in body:
            if i.opcode in ("while", "conditional", "call"):
                before = len(self.kernels)
                self._enter(i, by_name, count)
                kernels[i.name] = self._kernel(i, count, _total(self.kernels[before:], count))
            elif self._is_kernel(i):
                kernels[i.name] = self._kernel(i, count, _cycles(i))
                self.kernels.append(kernels[i.name])
        self.collectives += self._collectives(body, by_name, kernels, count)

    # --- control flow ---------------------------------------------------------------------------------------
    def _enter(self, i: Instruction, by_name: dict[str, Instruction], count: int) -> None:
        bodies: Sequence[str] = i.called
        if i.opcode == "while":
            trips = i.trips or self._counted(i, by_name)
            self.unknown_loops += trips is None
            count *= trips or 1
            bodies = [i.attribute("body").lstrip("%")]
        for name in bodies:
            self.computation(name, count)

    def _counted(self, loop: Instruction, by_name: dict[str, Instruction]) -> int | None:
        """The trip count of a loop that counts from one constant to another by one; None for other loops."""
        root = self.program.root(loop.attribute("condition").lstrip("%"))
        inner = {i.name: i for i in self.program.computations[loop.attribute("condition").lstrip("%")]}
        if root.opcode != "compare" or "direction=LT" not in root.rest:
            return None
        index, limit = (inner.get(o) for o in root.operands)
        end, place = limit.value if limit is not None else None, index.attribute("index") if index is not None else ""
        first = by_name.get(loop.operands[0])
        if end is None or not place.isdecimal() or first is None or int(place) >= len(first.operands):
            return None
        start = by_name.get(first.operands[int(place)])
        while start is not None and start.opcode in ("copy", "bitcast") and start.operands:
            start = by_name.get(start.operands[0])
        begin = start.value if start is not None else None
        return end - begin if begin is not None and self._adds_one(loop, int(place)) else None

    def _adds_one(self, loop: Instruction, place: int) -> bool:
        body = {i.name: i for i in self.program.computations[loop.attribute("body").lstrip("%")]}
        root = next(i for i in body.values() if i.is_root)
        step = body.get(root.operands[place]) if place < len(root.operands) else None
        while step is not None and step.opcode in ("copy", "bitcast") and step.operands:
            step = body.get(step.operands[0])
        return (
            step is not None
            and step.opcode == "add"
            and any((k := body.get(o)) is not None and k.value == 1 for o in step.operands)
        )

    # --- kernels --------------------------------------------------------------------------------------------
    def _is_kernel(self, i: Instruction) -> bool:
        if i.opcode in _FREE or i.opcode.endswith(("-start", "-done", "-update")) or i.opcode in KINDS:
            return False
        if i.opcode == "custom-call":
            return not _library(i).startswith(_MARKS)
        inner = self._inner(i)
        return inner is None or self._carries(i)

    def _kernel(self, i: Instruction, count: int, cycles: int | None) -> Kernel:
        scope, _, op = i.op_name.rpartition("/")
        what = op if scope else i.opcode  # arguments have no scope
        return Kernel(i.name, what, _library(i), self.program.source(i), count, cycles)

    # --- collectives ----------------------------------------------------------------------------------------
    def _collectives(
        self, body: list[Instruction], by_name: dict[str, Instruction], kernels: dict[str, Kernel], count: int
    ) -> Iterator[Scheduled]:
        place = {i.name: n for n, i in enumerate(body)}
        chains: dict[str, list[Instruction]] = {}
        for i in body:
            inner = self._inner(i)
            chain = _CHAIN.search(inner.rest) if inner is not None else None
            if inner is not None and chain is not None:
                chains.setdefault(chain[1], []).append(i)
            elif inner is not None:
                yield self._scheduled(i, inner, i, (), by_name, count)
            elif i.opcode in KINDS:
                yield self._scheduled(i, i, i, (), by_name, count)
            elif i.opcode.endswith("-start") and (collective := self._started(i)) is not None:
                done = _done(i, body)
                between = body[place[i.name] + 1 : place[done.name]]
                overlaps = () if _is_sync(i) else tuple(kernels[k.name] for k in between if k.name in kernels)
                yield self._scheduled(i, collective, done, overlaps, by_name, count)
        for steps in chains.values():
            between = body[place[steps[0].name] : place[steps[-1].name]]
            overlaps = tuple(kernels[k.name] for k in between if k.name in kernels)
            first = self._inner(steps[0])
            assert first is not None
            yield self._scheduled(steps[0], first, steps[-1], overlaps, by_name, count)

    def _inner(self, i: Instruction) -> Instruction | None:
        """The collective inside of a fusion; None if there is none."""
        if i.opcode != "fusion":
            return None
        return next((k for c in i.called for k in self.program.computations.get(c, ()) if k.opcode in KINDS), None)

    def _carries(self, i: Instruction) -> bool:
        """Whether a fusion with a collective does arithmetic of its own beside it, one step of the collective."""
        roots = [self.program.root(c) for c in i.called]
        inner = self._inner(i)
        return inner is not None and _CHAIN.search(inner.rest) is not None and all(r.opcode == "tuple" for r in roots)

    def _started(self, i: Instruction) -> Instruction | None:
        """The collective that a ``-start`` starts."""
        if i.opcode.removesuffix("-start") in KINDS:
            return i
        return next((k for c in i.called for k in self.program.computations.get(c, ()) if k.opcode in KINDS), None)

    def _scheduled(
        self, at: Instruction, inner: Instruction, done: Instruction, overlaps: tuple[Kernel, ...],
        by_name: dict[str, Instruction], count: int,
    ) -> Scheduled:  # fmt: skip
        kind = inner.opcode.removesuffix("-start")
        known = by_name if inner is at else {}
        if inner is not at:
            known = {k.name: k for c in at.called for k in self.program.computations[c]}
        operands = tuple(t for o in inner.operands if o in known for t in self._parts(known[o], known))
        if inner is not at and kind == "all-reduce":
            kind, operands = self._fused(at, inner, operands, known)
        source = self.program.source(inner)
        return Scheduled(
            at.name, kind.replace("-", "_"), inner, operands, self._groups(inner), bool(overlaps), overlaps,
            algorithm(at) or algorithm(inner), source if source.is_known else self.program.source(done), count,
        )  # fmt: skip

    def _fused(
        self, at: Instruction, inner: Instruction, operands: tuple[ArrayType, ...], known: dict[str, Instruction]
    ) -> tuple[str, tuple[ArrayType, ...]]:
        """The collective that the all-reduce in a fusion implements, and its operands. TPU compilers express a
        reduce-scatter as a slice of an all-reduce, and an all-gather as an all-reduce of tiles padded with zeros."""
        if any(self.program.root(c).opcode == "dynamic-slice" for c in at.called):
            return "reduce-scatter", operands
        whole = known.get(inner.operands[0])
        tile = known.get(whole.operands[1]) if whole is not None and whole.opcode == "dynamic-update-slice" else None
        if tile is None:
            return "all-reduce", operands
        return "all-gather", (replace(tile.types[0], dtype=inner.types[0].dtype),)

    def _parts(self, operand: Instruction, known: dict[str, Instruction]) -> list[ArrayType]:
        """The arrays of an operand. If a backend concatenates several to send them as one, those."""
        roots = [self.program.root(c) for c in operand.called] if operand.opcode == "fusion" else [operand]
        if roots and roots[0].opcode == "concatenate" and all(o in known for o in operand.operands):
            return [known[o].types[0] for o in operand.operands]
        return list(operand.types[:1])

    def _groups(self, i: Instruction) -> Groups:
        text = i.attribute("source_target_pairs") or i.attribute("replica_groups")
        iota = _IOTA.match(text)
        if iota is not None:
            return _iota_groups(*iota.groups())
        groups = frozenset(tuple(map(int, group.split(","))) for group in _LISTED.findall(text))
        return groups or frozenset({tuple(range(self.num_devices))})


def algorithm(i: Instruction) -> str:
    """The compiler's name of the algorithm of a collective on the links; empty if it gives none."""
    config = i.config
    tpu = config.get("collective_algorithm_config") or {}
    words = [tpu.get("strategy", ""), tpu.get("emitter", "")]
    gpu = config.get("collective_backend_config") or {}
    words.append(gpu.get("kernel_strategy", "").removeprefix("KERNEL_STRATEGY_").lower().replace("_", " "))
    return " by ".join(w for w in words if w and w not in ("default", "invalid"))


def _iota_groups(dims: str, reshape: str, order: str | None) -> Groups:
    """``[4,2]<=[2,4]T(1,0)``: the numbers from 0, in shape ``reshape``, transposed, cut into rows."""
    shape = [int(n) for n in reshape.split(",")]
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    axes = [int(n) for n in order.split(",")] if order else range(len(shape))
    numbers = [0]
    for axis in axes:
        numbers = [n + k * strides[axis] for n in numbers for k in range(shape[axis])]
    width = int(dims.split(",")[-1])
    return frozenset(tuple(numbers[k : k + width]) for k in range(0, len(numbers), width))


def _done(start: Instruction, body: list[Instruction]) -> Instruction:
    """The ``-done`` instruction that completes ``start``."""
    names = {start.name}
    for i in body:
        if i.operands and i.operands[0] in names:
            if i.opcode.endswith("-done"):
                return i
            if i.opcode.endswith("-update"):
                names.add(i.name)
    return start


def _is_sync(start: Instruction) -> bool:
    return bool((start.config.get("collective_backend_config") or {}).get("is_sync"))


def _cycles(i: Instruction) -> int | None:
    estimate = (i.config.get("window_config") or {}).get("estimated_cycles")
    return int(estimate) if estimate is not None else None


def _total(kernels: Sequence[Kernel], count: int) -> int | None:
    """Cycles of one run of a loop or branch with these kernels, which runs ``count`` times."""
    cycles = [k.cycles * k.count for k in kernels if k.cycles is not None]
    return sum(cycles) // count if cycles else None


def _library(i: Instruction) -> str:
    match = _TARGET.search(i.rest) if i.opcode == "custom-call" else None
    return match[1] if match else ""
