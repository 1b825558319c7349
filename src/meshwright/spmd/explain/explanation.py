"""The explanation of a per-device program: a text, and the entries from which it is made."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.sharding import AbstractMesh
from meshwright.spmd.explain.causes import causes
from meshwright.spmd.explain.repeated import RepeatedEntry
from meshwright.spmd.explain.suggest import Advisor, Progress, Suggestion
from meshwright.spmd.origin import Origins
from meshwright.spmd.report import Collective, human_bytes
from meshwright.spmd.steptime.report import Time, human_seconds
from meshwright.spmd.steptime.schedule import step_time
from meshwright.spmd.work import Work


@dataclass(frozen=True)
class Entry:
    """Equal collectives (as in repeated layers) with their total bytes, link time, causes, and remedy.

    ``share`` is the fraction of all bytes sent, and ``seconds`` the time for which they keep the links busy.
    """

    collective: Collective
    repeats: int
    bytes_sent: int
    share: float
    causes: tuple[str, ...] = ()
    suggestion: Suggestion | None = None
    seconds: float = 0.0

    def lines(self, advised: Mapping[Suggestion, int]) -> list[str]:
        """What, why, where, and the remedy; ``advised`` maps suggestions to the entries that already print them."""
        times = f"{self.repeats} × " if self.repeats > 1 else ""
        most = "at most " if self.collective.is_bound else ""
        took = f", {human_seconds(self.seconds)}" if self.seconds else ""
        sent = f"sends {most}{human_bytes(self.bytes_sent)} ({100 * self.share:.0f} %){took}"
        lines = [f"{times}{self.collective} {sent}"]
        lines.append(f"because {self.collective.reason}")
        lines += [f"caused by {cause}" for cause in self.causes]
        lines.append(f"at {self.collective.source}")
        if self.suggestion is not None:
            same = advised.get(self.suggestion)
            lines.append(f"removed by {self.suggestion}" if same is None else f"removed by what removes {same}.")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """The entry as a dictionary of plain values, for tables and JSON."""
        c = self.collective
        advice = self.suggestion
        return {
            "kind": c.kind,
            "axes": list(c.axes),
            "group_size": c.group_size,
            "operand": str(c.operand),
            "result": str(c.result),
            "repeats": self.repeats,
            "count": c.count,
            "bytes_sent": self.bytes_sent,
            "seconds": self.seconds,
            "is_upper_bound": c.is_bound,
            "share": self.share,
            "reason": c.reason,
            "causes": list(self.causes),
            "source": str(c.source),
            "suggestion": None if advice is None else advice.text,
            "suggestion_saves": None if advice is None else advice.bytes_saved,
            "suggestion_saves_seconds": None if advice is None else advice.seconds_saved,
        }


def entries(
    collectives: Sequence[Collective], origins: Origins, mesh: AbstractMesh, names: Sequence[str]
) -> list[Entry]:
    """The collectives, with equal ones grouped, by decreasing time."""
    total = sum(c.bytes_sent for c in collectives)
    groups: dict[tuple[str, str, str], list[Collective]] = {}
    for c in collectives:
        groups.setdefault((str(c), c.reason, str(c.source)), []).append(c)
    entries = []
    for same in groups.values():
        sent = sum(c.bytes_sent for c in same)
        why = causes(same[0], origins, mesh, names)
        seconds = sum(c.count * _seconds(c, mesh) for c in same)
        entries.append(Entry(same[0], len(same), sent, sent / total if total else 0.0, why, seconds=seconds))
    return sorted(entries, key=lambda e: (-e.seconds, -e.bytes_sent))


def _seconds(c: Collective, mesh: AbstractMesh) -> float:
    """The predicted seconds of a collective; 0 if it is over axes that are not the mesh's."""
    if not all(axis in mesh.shape or ":" in axis for axis in c.axes):
        return 0.0
    return mesh.collective_seconds(c.kind, c.axes, c.operand.nbytes, c.result.nbytes)


def advised(
    entries: Sequence[Entry], advisor: Advisor, progress: Progress | None = None
) -> tuple[list[Entry], list[str]]:
    """The entries with suggestions, as far as the time allows, and notes about what was tried and left out."""
    after = list(entries)
    for number, entry in enumerate(entries):
        if advisor.is_spent:
            left = f"{len(entries) - number} of {counted(len(entries), 'entry', 'entries')}"
            return after, [f"{len(advisor.tried)} annotations were tried; no time was left for {left} of the smallest"]
        if progress is not None:
            progress(number, len(entries), len(advisor.tried))
        after[number] = replace(entry, suggestion=advisor.advise(entry.collective))
    if progress is not None:
        progress(len(entries), len(entries), len(advisor.tried))
    return after, [f"{len(advisor.tried)} annotations were tried"]


def quicker_alone(program: ClosedJaxpr, mesh: AbstractMesh, seconds: float) -> list[str]:
    """A note if a single device of the mesh's machine would be faster than all of them."""
    if mesh.machine is None or any(eqn.op.is_manual for eqn in program.jaxpr.eqns):
        return []
    alone = step_time(program.jaxpr, mesh).seconds
    if alone >= seconds:
        return []
    return [
        f"one device alone would take {human_seconds(alone)} a run: the program is too small for {mesh.size} devices"
    ]


class Explanation(str):
    """The result of ``explain``: a text, with its data in ``entries`` (collectives) and ``repeated`` (arithmetic).

    It is a string, to be printed, searched, or written to a file. ``rows()`` returns plain dictionaries, and notebooks
    show a table.
    """

    head: str
    entries: tuple[Entry, ...]
    notes: tuple[str, ...]
    repeated: tuple[RepeatedEntry, ...]

    def __reduce__(self) -> Any:
        return Explanation, (self.head, self.entries, self.notes, self.repeated)

    def __new__(
        cls, head: str, entries: Sequence[Entry], notes: Sequence[str], repeated: Sequence[RepeatedEntry] = ()
    ) -> Explanation:
        lines = [head]
        advised: dict[Suggestion, int] = {}
        for number, entry in enumerate(entries, 1):
            first, *rest = entry.lines(advised)
            lines += [f"{number:4}. {first}", *(f"      {line}" for line in rest)]
            if entry.suggestion is not None:
                advised.setdefault(entry.suggestion, number)
        for again in repeated:
            first, *rest = again.lines()
            lines += [f"  repeated: {first}", *(f"      {line}" for line in rest)]
        text = super().__new__(cls, "\n".join([*lines, *(f"  note: {note}" for note in notes)]))
        text.head, text.entries, text.notes, text.repeated = head, tuple(entries), tuple(notes), tuple(repeated)
        return text

    def __repr__(self) -> str:
        return str(self)

    def rows(self) -> list[dict[str, Any]]:
        """All entries as dictionaries."""
        return [*(entry.to_dict() for entry in self.entries), *(entry.to_dict() for entry in self.repeated)]

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("collective", "bytes sent, time", "because", "at", "removed by"))
        rows = "".join(_row(entry) for entry in self.entries)
        repeated = ("; ".join(entry.lines()) for entry in self.repeated)
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in (*repeated, *self.notes))
        title = html.escape(self.partition("\n")[0])
        return f"<p>{title}</p><table><tr>{head}</tr>{rows}</table>" + (f"<ul>{notes}</ul>" if notes else "")


def _row(entry: Entry) -> str:
    times = f"{entry.repeats} × " if entry.repeats > 1 else ""
    why = "<br>".join(html.escape(s) for s in (entry.collective.reason, *(f"caused by {c}" for c in entry.causes)))
    cells = (
        html.escape(f"{times}{entry.collective}"),
        f"{human_bytes(entry.bytes_sent)} ({100 * entry.share:.0f} %), {human_seconds(entry.seconds)}",
        why,
        html.escape(str(entry.collective.source)),
        html.escape(str(entry.suggestion or "")),
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def headline(collectives: Sequence[Collective], mesh: AbstractMesh, peak: int, work: Work, time: Time) -> str:
    """One sentence: the number of collectives, bytes sent, peak memory, redundant work, and time of a run."""
    total = sum(c.bytes_sent for c in collectives)
    axes = " × ".join(f"{n}={s}" for n, s in mesh.shape.items())
    sent = ("at most " if any(c.is_bound for c in collectives) else "") + human_bytes(total)
    return (
        f"{len(collectives)} collective{'s' * (len(collectives) != 1)} on mesh {axes}; each device sends {sent} a run, "
        f"holds at most {human_bytes(peak)} and does {work.redundancy:.2f} times its part of the arithmetic, in "
        f"{human_seconds(time.seconds)} on {time.where}"
    )
