"""Matches the collectives of a compiled program with those of the per-device program.

Compilers combine, split, reorder and narrow collectives, and turn one kind into another. The replica groups, the number
of elements of an operand, and usually the source line are preserved; these are compared.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from meshwright.core.records import dataclass
from meshwright.core.source import SourceLocation
from meshwright.sharding import AbstractMesh
from meshwright.sharding.device_groups import axis_groups
from meshwright.spmd.report import Collective
from meshwright.targets.hlo import ArrayType
from meshwright.targets.schedule import Groups, Kernel, Schedule, Scheduled

#: the kinds that compilers may turn each kind into
_BECOMES = {
    "all_reduce": {"reduce_scatter"},
    "reduce_scatter": {"all_reduce"},
    "all_gather": {"all_reduce"},
    "all_to_all": {"all_gather"},
}


@dataclass(frozen=True)
class CompiledCollective:
    """One collective as the compiler scheduled it.

    ``asynchronous``: other work, ``overlaps``, is done while it runs. ``algorithm`` is the compiler's name of how it
    uses the links. ``axes`` are the mesh axes, if the groups are along axes. ``bytes_sent`` are those of one device in
    one run (ring model), and ``count`` is how often it runs in one. ``reasons`` and ``source`` are those of the
    per-device program: several reasons for a combined collective, none for one that the compiler inserted.
    """

    kind: str
    asynchronous: bool
    overlaps: tuple[Kernel, ...]
    algorithm: str
    axes: tuple[str, ...]
    group_size: int
    operands: tuple[str, ...]
    count: int
    bytes_sent: int
    source: SourceLocation
    reasons: tuple[str, ...]
    name: str

    @property
    def reason(self) -> str:
        return "; ".join(self.reasons) or "put in by the compiler"

    @property
    def overlapped_cycles(self) -> int | None:
        """The estimated cycles of the work that overlaps it; None if the compiler gives no estimates."""
        cycles = [k.cycles for k in self.overlaps if k.cycles is not None]
        return sum(cycles) if cycles else None

    def __str__(self) -> str:
        how = "asynchronous" if self.asynchronous else "synchronous"
        over = f" over {', '.join(self.axes)}" if self.axes else ""
        times = f", {self.count} times" if self.count != 1 else ""
        return f"{how} {self.kind}{over} ({self.group_size} devices): {', '.join(self.operands)}{times}"


def matched(schedule: Schedule, ours: Sequence[Collective], mesh: AbstractMesh) -> list[CompiledCollective]:
    """The collectives of a compiled program, with the axes and reasons of the matching ones in ``ours``."""
    pool = _Pool(ours, mesh)
    return [pool.compiled(collective) for collective in schedule.collectives]


class _Pool:
    """The collectives of the per-device program that have no match yet."""

    def __init__(self, ours: Sequence[Collective], mesh: AbstractMesh) -> None:
        self.free = list(ours)
        self.groups = {c.axes: _groups(mesh, c.axes) for c in ours}
        self.axes = {groups: axes for axes, groups in reversed(self.groups.items())}

    def compiled(self, theirs: Scheduled) -> CompiledCollective:
        mine = [c for c in (self._take(theirs, part) for part in theirs.operands) if c is not None]
        kinds = {c.kind for c in mine}
        axes = mine[0].axes if mine else self.axes.get(_unordered(theirs.groups), ())
        group = len(next(iter(theirs.groups)))
        if theirs.kind == "collective_permute":
            group = mine[0].group_size if mine else len(theirs.groups)
        source = mine[0].source if mine and mine[0].source.is_known else theirs.source
        return CompiledCollective(
            theirs.kind if len(kinds) != 1 or theirs.kind in kinds else f"{theirs.kind} (for {kinds.pop()})",
            theirs.asynchronous, theirs.overlaps, theirs.algorithm, axes, group, tuple(map(str, theirs.operands)),
            theirs.count, theirs.count * sent_bytes(theirs.kind, group, _operand_bytes(theirs)), source,
            tuple(dict.fromkeys(c.reason for c in mine)), theirs.name,
        )  # fmt: skip

    def _take(self, theirs: Scheduled, part: ArrayType) -> Collective | None:
        scores = [(self._score(theirs, part, c), -n) for n, c in enumerate(self.free)]
        best, number = max(scores, default=(0, 0))
        return self.free.pop(-number) if best > 0 else None

    def _score(self, theirs: Scheduled, part: ArrayType, ours: Collective) -> int:
        """How well one of ours fits; 0: not at all."""
        permutes = theirs.kind == "collective_permute"
        if permutes != (ours.kind == "collective_permute"):
            return 0
        if not permutes and self.groups[ours.axes] != _unordered(theirs.groups):
            return 0
        same_kind = ours.kind == theirs.kind or theirs.kind in _BECOMES.get(ours.kind, ())
        size = part.size in (ours.operand.size, ours.result.size if ours.kind != theirs.kind else -1)
        here = theirs.source.is_known and _place(ours.source) == _place(theirs.source)
        if not same_kind or not (size or here):
            return 0
        return 1 + 8 * size + 4 * here + 2 * (ours.kind == theirs.kind) + (ours.count == theirs.count)


def _place(source: SourceLocation) -> tuple[str, int]:
    return os.path.basename(source.file), source.line


def _operand_bytes(theirs: Scheduled) -> int:
    sizes = [t.nbytes for t in theirs.operands]
    return min(sizes[:2]) if theirs.kind == "ragged_all_to_all" else sum(sizes)  # the others are tables


def _groups(mesh: AbstractMesh, axes: Sequence[str]) -> Groups:
    return frozenset(tuple(sorted(row)) for row in axis_groups(mesh, axes).tolist())


def _unordered(groups: Groups) -> Groups:
    return frozenset(tuple(sorted(g)) for g in groups)


def sent_bytes(kind: str, group: int, operand: int) -> int:
    """The bytes that one device sends in a ring algorithm, given the bytes of its operand."""
    match kind:
        case "all_reduce":
            return -(-2 * operand * (group - 1) // max(group, 1))
        case "all_gather":
            return operand * (group - 1)
        case "reduce_scatter" | "all_to_all" | "ragged_all_to_all":
            return operand * (group - 1) // max(group, 1)
    return operand
