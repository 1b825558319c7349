"""The differences between two partitioned programs, or between one and a stored summary.

A collective is identified by its kind, its axes and the text of its source line, so that edits elsewhere in the file do
not matter.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Mapping
from typing import Any

from meshwright.core.printed import Printed
from meshwright.core.source import SourceLocation
from meshwright.core.words import counted

_NUMBERS = ("bytes_sent", "peak_bytes", "work", "redundancy")


class Changes(Printed, tuple[str, ...]):
    """What was added (``+``), removed (``-``) and changed (``~``), as text; empty, and so false, if nothing was."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(self) or "nothing changed"

    __repr__ = __str__


def changes(before: Any, after: Any) -> Changes:
    """The differences of ``after`` from ``before``: collectives, bytes, memory, work, replication and padding."""
    return Changes(compared(summary(before), summary(after), reasons(after)))


def place(source: SourceLocation) -> str:
    """``model.py (forward): return x @ w``, or the line's number if its text cannot be read."""
    text = linecache.getline(source.file, source.line).strip()
    if not text:
        return str(source)
    return f"{os.path.basename(source.file)} ({source.function}): {text}"


def _known(collective: Any) -> str:
    return f"{collective.kind} over {', '.join(collective.axes)} at {place(collective.source)}"


def summary(partitioned: Any) -> dict[str, Any]:
    """The properties of a program that are compared, by name, as values that JSON can hold."""
    collectives: dict[str, dict[str, int]] = {}
    for c in partitioned.collectives:
        entry = collectives.setdefault(_known(c), {"count": 0, "bytes": 0})
        entry["count"] += c.count
        entry["bytes"] += c.bytes_sent
    mesh = partitioned.mesh.abstract_mesh
    return {
        "mesh": dict(zip(mesh.axis_names, mesh.axis_sizes)),
        "collectives": dict(sorted(collectives.items())),
        "bytes_sent": partitioned.bytes_sent,
        "peak_bytes": partitioned.peak_bytes,
        "work": partitioned.work.device,
        "redundancy": round(partitioned.work.redundancy, 4),
        "fallbacks": [*map(str, partitioned.part.replicated), *partitioned.padded],
    }


def reasons(partitioned: Any) -> dict[str, str]:
    """The reason of each collective."""
    return {_known(c): c.reason for c in partitioned.collectives}


def compared(pinned: Mapping[str, Any], current: Mapping[str, Any], reasons: Mapping[str, str]) -> list[str]:
    """What was added (+), removed (-) and changed (~), as text."""
    changes = []
    if pinned.get("mesh") != current["mesh"]:
        changes.append(f"~ mesh: {pinned.get('mesh')} is now {current['mesh']}")
    before, now = pinned["collectives"], current["collectives"]
    changes += [f"- {name}: {_shown(before[name])}" for name in before if name not in now]
    for name, entry in now.items():
        if name not in before:
            changes.append(f"+ {name}: {_shown(entry)}\n      because {reasons[name]}")
        elif before[name] != entry:
            changes.append(f"~ {name}: {_shown(before[name])} is now {_shown(entry)}")
    for name in _NUMBERS:
        if pinned.get(name) != current[name]:
            changes.append(f"~ {name}: {pinned.get(name)} is now {current[name]}")
    old, new = pinned.get("fallbacks", []), current["fallbacks"]
    return [*changes, *(f"- {n}" for n in old if n not in new), *(f"+ {n}" for n in new if n not in old)]


def _shown(entry: Mapping[str, int]) -> str:
    return f"{counted(entry['count'], 'time')}, {counted(entry['bytes'], 'byte')}"
