"""Reports of per-device programs compiled for a target, next to Meshwright's predictions."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from meshwright.core.records import dataclass
from meshwright.errors import CompileError
from meshwright.spmd.report import human_bytes
from meshwright.targets.matching import CompiledCollective
from meshwright.targets.saved import SavedExecutable
from meshwright.targets.schedule import Kernel, Schedule
from meshwright.targets.topology import CompileTarget

#: the maximum number of rows of a printed table
_SHOWN = 12


def _of_memory(member: str, what: str) -> Any:
    return property(lambda report: getattr(report.memory, member) if report.memory is not None else 0, doc=what)


@dataclass(frozen=True)
class TargetMemory:
    """The compiler's memory figures for one device, in bytes.

    ``peak_bytes`` is the peak of live values, including those in on-chip memory. ``device_bytes`` is the main memory of
    the device that the program needs: arguments, results that do not alias donated arguments (``alias_bytes``),
    temporaries that are not in on-chip memory, and code. ``host_bytes`` are arguments and temporaries in host memory.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    code_bytes: int
    peak_bytes: int
    host_bytes: int

    @classmethod
    def of(cls, sizes: dict[str, int]) -> TargetMemory:
        host = sizes["host_argument_size"] + sizes["host_output_size"] + sizes["host_temp_size"]
        whole = sizes["argument_size"] + sizes["output_size"] - sizes["alias_size"] + sizes["temp_size"]
        peak = sizes["peak_memory"]
        return cls(
            sizes["argument_size"], sizes["output_size"], sizes["alias_size"], sizes["temp_size"],
            sizes["generated_code_size"], peak or whole, host - sizes["host_alias_size"],
        )  # fmt: skip

    @property
    def device_bytes(self) -> int:
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes + self.code_bytes


@dataclass(frozen=True)
class Prediction:
    """Meshwright's predictions before compilation: the bytes of a device's memory, and the bytes that it sends."""

    memory: Any
    bytes_sent: int
    seconds: float | None = None


@dataclass(frozen=True)
class TargetReport:
    """The report of a per-device program compiled for a target; print it to see all tables.

    ``refused`` is the compiler's error message if the program does not fit into memory. There is then no executable,
    and unknown fields are empty.
    """

    name: str
    target: CompileTarget
    predicted: Prediction
    memory: TargetMemory | None = None
    #: each collective, as the compiler scheduled it
    collectives: Sequence[CompiledCollective] = ()
    schedule: Schedule | None = field(default=None, repr=False)
    #: the compiled program, as HLO text
    text: str = field(default="", repr=False)
    #: compile time in seconds
    seconds: float = 0.0
    executable: SavedExecutable | None = field(default=None, repr=False)
    refused: str = ""
    #: the bytes that a program that does not fit would need, by the compiler's error message
    needed_bytes: int | None = None

    # --- memory ---------------------------------------------------------------------------------------------
    @property
    def memory_bytes(self) -> float:
        """The memory of a device in bytes."""
        return self.target.memory_bytes

    @property
    def device_bytes(self) -> int:
        """The bytes of a device's memory that the program needs; a lower bound if it does not fit."""
        return self.memory.device_bytes if self.memory is not None else self.needed_bytes or 0

    @property
    def fits(self) -> bool:
        """Whether the program fits into a device's memory."""
        return self.memory is not None and self.memory.device_bytes <= self.memory_bytes

    @property
    def excess_bytes(self) -> int:
        """The number of bytes by which the program exceeds a device's memory; 0 if it fits."""
        return 0 if self.fits else max(0, int(self.device_bytes - self.memory_bytes))

    @property
    def peak_bytes(self) -> int:
        """The peak bytes of live values, in on-chip and main memory."""
        return self.memory.peak_bytes if self.memory is not None else self.device_bytes

    argument_bytes = _of_memory("argument_bytes", "Bytes of the arguments.")
    output_bytes = _of_memory("output_bytes", "Bytes of the results.")
    temp_bytes = _of_memory("temp_bytes", "Bytes of what lives in between.")
    host_bytes = _of_memory("host_bytes", "Bytes of the host's memory: what is kept in ``pinned_host``.")

    # --- what runs ------------------------------------------------------------------------------------------
    @property
    def kernels(self) -> Sequence[Kernel]:
        """Fusions and library calls in execution order, each with its line of the user's program."""
        return self.schedule.kernels if self.schedule is not None else ()

    @property
    def estimated_cycles(self) -> int | None:
        """The compiler's estimate of the cycles of all kernels in a run, without collectives; None if it gives none."""
        return self.schedule.cycles if self.schedule is not None else None

    @property
    def bytes_sent(self) -> int:
        """The bytes that one device sends in a run by the compiled collectives (ring model)."""
        return sum(c.bytes_sent for c in self.collectives)

    @property
    def overlapped_share(self) -> float:
        """The share of the bytes sent by collectives that overlap with other work; 0 if nothing is sent."""
        sent = self.bytes_sent
        return sum(c.bytes_sent for c in self.collectives if c.asynchronous) / sent if sent else 0.0

    # --- the executable -------------------------------------------------------------------------------------
    def save(self, path: str | PathLike[str]) -> Path:
        """Write the executable to a file, for :func:`meshwright.load_executable`; returns the file.

        Raises:
          CompileError: the program does not fit, so there is no executable.
        """
        if self.executable is None:
            raise CompileError(f"save: {self.name!r} has no executable: {self.headline}")
        return self.executable.write(path)

    # --- shown ----------------------------------------------------------------------------------------------
    @property
    def headline(self) -> str:
        """One line: the program, the target, and whether it fits."""
        where = f"{self.name!r} for {self.target.name} ({self.target.size} × {self.target.device_kind})"
        held, room = human_bytes(self.device_bytes), human_bytes(self.memory_bytes)
        if self.fits:
            return f"{where} fits: a device holds {held} of {room}; compiled in {self.seconds:.1f} s"
        if self.memory is None and not self.needed_bytes:
            return f"{where} does not fit into {room}: {self.refused}"
        return f"{where} does not fit: a device would hold {held} of {room}, {human_bytes(self.excess_bytes)} too much"

    @cached_property
    def tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """The tables of a printed report: headers and rows."""
        tables = [(["memory of a device", "compiled", "predicted"], list(self._memory_rows()))]
        if self.collectives:
            tables.append((["collective", "sends", "runs beside", "on the links", "at"], list(self._collective_rows())))
        if self.kernels:
            tables.append((["kernel", "times", "cycles", "at"], list(self._kernel_rows())))
        return tables

    def _memory_rows(self) -> Any:
        ours, theirs = self.predicted.memory, self.memory
        pairs = (
            ("arguments", "argument_bytes"), ("results", "output_bytes"),
            ("of these in donated arguments", "alias_bytes"), ("temporaries", "temp_bytes"),
            ("alive at once", "peak_bytes"),
        )  # fmt: skip
        for what, name in pairs:
            found = ours.live_bytes if name == "peak_bytes" else getattr(ours, name)
            yield [what, human_bytes(getattr(theirs, name)) if theirs else "", human_bytes(found)]
        if theirs is not None:
            yield ["code", human_bytes(theirs.code_bytes), ""]
        if self.host_bytes or ours.host_bytes:
            yield ["in the host's memory", human_bytes(self.host_bytes) if theirs else "", human_bytes(ours.host_bytes)]
        yield ["sent in a run", human_bytes(self.bytes_sent) if theirs else "", human_bytes(self.predicted.bytes_sent)]
        if self.estimated_cycles is not None or self.predicted.seconds is not None:
            cycles = f"{self.estimated_cycles:,} cycles" if self.estimated_cycles is not None else ""
            seconds = f"{self.predicted.seconds * 1e6:,.1f} µs" if self.predicted.seconds is not None else ""
            yield ["time of a run", cycles, seconds]

    def _collective_rows(self) -> Any:
        for c in sorted(self.collectives, key=lambda c: -c.bytes_sent)[:_SHOWN]:
            over = f" over {', '.join(c.axes)}" if c.axes else f" in groups of {c.group_size}"
            times = f"{c.count} × " if c.count > 1 else ""
            beside = ", ".join(dict.fromkeys(map(str, c.overlaps[:2]))) or "nothing"
            more = f" and {len(c.overlaps) - 2} more" if len(c.overlaps) > 2 else ""
            at = str(c.source) if c.source.is_known else ""
            yield [f"{times}{c.kind}{over}", human_bytes(c.bytes_sent), beside + more, c.algorithm, at]
        if len(self.collectives) > _SHOWN:
            rest = sorted(self.collectives, key=lambda c: -c.bytes_sent)[_SHOWN:]
            yield [f"{len(rest)} smaller ones", human_bytes(sum(c.bytes_sent for c in rest)), "", "", ""]

    def _kernel_rows(self) -> Any:
        ranked = sorted(self.kernels, key=lambda k: -(k.cycles or 0) * k.count)
        for k in ranked[:_SHOWN]:
            cycles = f"{k.cycles * k.count:,}" if k.cycles is not None else ""
            yield [k.library or k.what, str(k.count), cycles, str(k.source) if k.source.is_known else ""]
        if len(ranked) > _SHOWN:
            rest = sum((k.cycles or 0) * k.count for k in ranked[_SHOWN:])
            yield [f"{len(ranked) - _SHOWN} smaller ones", "", f"{rest:,}" if rest else "", ""]

    @property
    def summary(self) -> str:
        """A sentence on how much of the communication overlaps with other work."""
        if not self.collectives:
            return "it has no collectives" if self.memory is not None else ""
        count, beside = len(self.collectives), sum(c.asynchronous for c in self.collectives)
        sent, share = f"{human_bytes(self.bytes_sent)} a run", f"{self.overlapped_share:.0%} of the bytes"
        if count == 1:
            return f"1 collective sends {sent}; it {'runs' if beside else 'does not run'} beside other work"
        return f"{count} collectives send {sent}; {beside} of them, with {share}, run beside other work"

    def __str__(self) -> str:
        parts = [self.headline, self.summary, *(_table(*t) for t in self.tables)]
        return "\n".join(filter(None, parts))

    def _repr_html_(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

        tables = (
            f"<table>{row(head, 'th')}{''.join(row(r, 'td') for r in rows)}</table>" for head, rows in self.tables
        )
        return f"<p>{html.escape(self.headline)}</p><p>{html.escape(self.summary)}</p>{''.join(tables)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their cells; numbers (all columns but the first and those of words) to the right."""
    widths = [max(len(r[i]) for r in (head, *rows)) for i in range(len(head))]
    right = [i > 0 and all(not r[i] or r[i][0].isdigit() for r in rows) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right))
        return "  ".join(padded).rstrip()

    return "\n".join(["", line(head), *map(line, rows)])
