"""Summaries of recorded profiles: time by device, op, line of the program, and collective."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ArgumentError
from meshwright.runtime.pjrt.profiling import Event, events

#: the file with our description of the programs in a profile, next to XLA's files
PROGRAMS_FILE = "meshwright.programs.json"
#: the names of collectives in jaxprs and in HLO
COLLECTIVES = frozenset(
    """psum pmax pmin pprod pand por ppermute all_gather all_gather_invariant all_to_all ragged_all_to_all
    reduce_scatter psum_scatter all-reduce all-gather all-to-all ragged-all-to-all reduce-scatter collective-permute
    all-reduce-start all-gather-start""".split()
)


@dataclass
class Profile:
    """The times in a recorded profile, in seconds, by device, op, source line and collective. Prints as tables.

    On a virtual mesh, one device computes for all of them. ``shares`` is then the time per virtual device, which is not
    measured, but computed as the total time divided by their number.
    """

    folder: Path
    devices: Counter[str] = field(default_factory=Counter)
    ops: Counter[str] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)
    collectives: Counter[str] = field(default_factory=Counter)
    shares: Counter[str] = field(default_factory=Counter)
    #: number of events of each op
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def seconds(self) -> float:
        """The time of all ops on all devices."""
        return sum(self.devices.values())

    def add(self, event: Event, ops: dict[str, dict[str, Any]]) -> None:
        """Add an event of a program, whose ops are described by ``ops``."""
        seconds = event.duration_ns / 1e9
        description = ops.get(event.op, {})
        op = f"{event.module}/{event.op}"
        self.devices[f"device {event.device}"] += seconds  # type: ignore[assignment]
        self.ops[op] += seconds  # type: ignore[assignment]
        self.counts[op] += 1
        self.lines[description.get("line") or "unknown"] += seconds  # type: ignore[assignment]
        kind = description.get("name", "").rpartition("/")[2]
        named = next((k for k in (kind, description.get("kind", "")) if k in COLLECTIVES), None)
        if named is not None:
            self.collectives[named] += seconds  # type: ignore[assignment]
        devices = description.get("devices") or 1
        for number in range(devices if devices > 1 else 0):
            self.shares[f"virtual device {number}"] += seconds / devices  # type: ignore[assignment]

    def __str__(self) -> str:
        parts = [
            f"{_time(self.seconds)} in {counted(sum(self.counts.values()), 'run')} of {counted(len(self.ops), 'op')}, "
            f"in {self.folder}",
            _table("by device", self.devices),
            _table("by virtual device (computed: the time of its program divided by their number)", self.shares),
            _table("by op", self.ops, self.counts),
            _table("by line of the program", self.lines),
            _table("by collective", self.collectives),
        ]
        return "\n\n".join(p for p in parts if p)


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _table(title: str, times: Counter[str], counts: Counter[str] | None = None, most: int = 15) -> str:
    if not times:
        return ""
    total = sum(times.values()) or 1.0
    rows = [f"{title}:"]
    for name, seconds in times.most_common(most):
        runs = f"  {counted(counts[name], 'run')}" if counts is not None else ""
        rows.append(f"  {_time(seconds):>9}  {100 * seconds / total:5.1f} %  {name}{runs}")
    if len(times) > most:
        rows.append(f"  and {len(times) - most} more")
    return "\n".join(rows)


def read_profile(folder: str | Path) -> Profile:
    """Read the newest profile in a folder written by :func:`meshwright.profiler.trace`.

    Raises:
      ArgumentError: the folder has no profile.
    """
    files = sorted(Path(folder).glob("**/*.xplane.pb"))
    if not files:
        raise ArgumentError(f"profile: no profile in {str(folder)!r}; write one with profiler.trace({str(folder)!r})")
    return summed(files[-1].parent, events(files[-1]))


def summed(folder: Path, recorded: Iterable[Event]) -> Profile:
    """The sums over events, with the descriptions of their programs in the folder."""
    file = folder / PROGRAMS_FILE
    programs = json.loads(file.read_text()) if file.exists() else {}
    known = {module: {**_kernels(ops), **ops} for module, ops in programs.items()}
    profile = Profile(folder)
    for event in recorded:
        profile.add(event, known.get(event.module, {}))
    return profile


def _kernels(ops: Mapping[str, Any]) -> dict[str, Any]:
    """The descriptions of ops by the names of their kernels on GPUs, except for ops that get the same name."""
    names = {op: re.sub(r"\W", "_", op) for op in ops}
    counts = Counter(names.values())
    return {names[op]: description for op, description in ops.items() if counts[names[op]] == 1}
