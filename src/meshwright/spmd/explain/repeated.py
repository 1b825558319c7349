"""Redundant arithmetic: which axes are idle at an equation, why, and how they could share its work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import JaxprEqn
from meshwright.spmd.explain.suggest import Advisor, Suggestion
from meshwright.spmd.origin import Annotation
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.steptime.report import Time, human_seconds
from meshwright.spmd.work import Repeated, Work

#: the most entries, those that take the most time, and the least share of a run that one takes if it is no product
MOST, SHARE = 5, 0.02


@dataclass(frozen=True)
class RepeatedEntry:
    """An equation whose arithmetic several devices repeat, with the time that this costs and the remedy.

    ``idle`` are the axes along which it is repeated; ``causes`` are the annotations that bring these axes to its
    operands.
    """

    repeated: Repeated
    seconds: float
    idle: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    suggestion: Suggestion | None = None

    def lines(self) -> list[str]:
        """What, why, and the remedy."""
        lines = [f"{self.repeated}: {human_seconds(self.seconds)} of a run"]
        if self.idle:
            splits = "splits" if len(self.idle) == 1 else "split"
            lines.append(f"because {', '.join(self.idle)} {splits} none of its dimensions")
        lines += [f"caused by {cause}" for cause in self.causes]
        if self.suggestion is not None:
            lines.append(f"removed by {self.suggestion}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """The entry as a dictionary of plain values, for tables and JSON."""
        r, advice = self.repeated, self.suggestion
        return {
            "kind": "repeated arithmetic", "op": r.op, "times": r.times, "share": r.share, "seconds": self.seconds,
            "idle": list(self.idle), "causes": list(self.causes), "source": r.source,
            "suggestion": None if advice is None else advice.text,
            "suggestion_saves_seconds": None if advice is None else advice.seconds_saved,
        }  # fmt: skip


def repeated_entries(work: Work, part: Partition, time: Time, names: Sequence[str]) -> list[RepeatedEntry]:
    """The repetitions of arithmetic that take the most of the ``time`` of a run, by decreasing seconds."""
    took: dict[tuple[str, str], float] = defaultdict(float)
    for each in time.parts:
        took[each.op, each.source] += each.seconds
    seconds = {r: took[r.op, r.source] * (1 - 1 / r.times) for r in work.repeated}
    entries = []
    for r in sorted(work.repeated, key=lambda r: -seconds[r])[:MOST]:
        if r.is_product or seconds[r] >= SHARE * time.seconds:
            eqn = _equation(r, part)
            idle = _idle(eqn, part) if eqn is not None else []
            why = _causes(eqn, idle, part, names) if eqn is not None else ()
            entries.append(RepeatedEntry(r, seconds[r], part.mesh.coalesce(idle), why))
    return entries


def advised_to_share(entries: Sequence[RepeatedEntry], part: Partition, advisor: Advisor) -> list[RepeatedEntry]:
    """The entries with suggestions that would share the arithmetic, as far as the time allows."""
    advised = []
    for entry in entries:
        eqn = _equation(entry.repeated, part)
        atoms = [a for axis in entry.idle for a in part.mesh.atoms_of(axis)]
        advised.append(entry if eqn is None else replace(entry, suggestion=advisor.share(eqn, atoms)))
    return advised


def _equation(r: Repeated, part: Partition) -> JaxprEqn | None:
    """The equation in the program before partitioning; None if it is inside a loop or branch."""
    return next((e for e in part.source.eqns if e.op.name == r.op and str(e.source) == r.source), None)


def _idle(eqn: JaxprEqn, part: Partition) -> list[str]:
    """The atoms of the mesh that neither split a dimension of the results nor have partial results over them."""
    used: set[str] = set()
    for whole, layout in part.stands_for.values():
        if whole in eqn.outvars:
            used |= layout.axes_used
    return [a for axis in part.mesh.axis_names for a in part.mesh.atoms_of(axis) if a not in used]


def _causes(eqn: JaxprEqn, idle: Sequence[str], part: Partition, names: Sequence[str]) -> tuple[str, ...]:
    """The annotations that split operands by axes that are idle nevertheless, because they conflict with others."""
    grouped: dict[tuple[int, Annotation], list[str]] = {}
    for number, axis, origin in _split_operands(eqn, idle, part):
        grouped.setdefault((number, origin), []).append(axis)
    return tuple(
        f"operand {number}, split by {', '.join(part.mesh.coalesce(axes))} because of {origin.describe(names)}, which "
        "does not go together with how the others are split"
        for (number, origin), axes in grouped.items()
    )


def _split_operands(eqn: JaxprEqn, idle: Sequence[str], part: Partition) -> Iterator[tuple[int, str, Annotation]]:
    """Operands with the idle axes that split them where they are produced, and the annotations these come from."""
    origins = part.propagation.origins
    for number, atom in enumerate(eqn.invars):
        split = part.propagation.layout(atom).axes_used
        for axis in idle:
            origin = origins.of(atom, axis) if axis in split else None
            if origin is not None:
                yield number, axis, origin
