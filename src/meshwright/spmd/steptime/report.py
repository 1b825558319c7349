"""``part.time()``: the predicted time of one run of a per-device program, what it is spent on, and what binds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from meshwright.core.printed import Printed
from meshwright.core.records import dataclass
from meshwright.hardware.machine import Machine
from meshwright.ir.jaxpr import Jaxpr
from meshwright.ops.collective.base import Collective
from meshwright.sharding import AbstractMesh
from meshwright.spmd.steptime.schedule import ARITHMETIC, FAR, LINKS, MEMORY, STARTS, Schedule, Step, step_time

#: rows of a printed table
ROWS = 10
#: smaller fractions of a time are rounding errors of sums
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Part:
    """The equations of one op and source line: their seconds in one run, how often they run, and what binds them.

    ``waited`` is the number of seconds on the critical path, which nothing hides.
    """

    op: str
    source: str
    seconds: float
    waited: float
    count: int
    binds: str

    def __str__(self) -> str:
        times = f", {self.count} times" if self.count > 1 else ""
        return f"{self.op} at {self.source}{times}: {human_seconds(self.seconds)}, bound by {_PLAIN[self.binds]}"


_PLAIN = {ARITHMETIC: "arithmetic", MEMORY: "memory", LINKS: "links", FAR: "the network", STARTS: "kernels that start"}


@dataclass(frozen=True)
class Time(Printed):
    """The predicted time of one run of a program on one device of a machine, in seconds.

    ``seconds`` is the total. ``compute``, ``memory`` and ``communication`` are the times that arithmetic, memory
    traffic and links would take alone; they overlap. ``parts`` are the program's ops by source line, longest first, and
    ``critical`` is the critical path in order. The body of a loop counts once per iteration.

    All rates are the peaks of data sheets; a real run takes longer. Prints as a summary and a table.
    """

    seconds: float
    compute: float
    memory: float
    communication: float
    #: seconds of communication that do not overlap with anything
    exposed: float
    parts: tuple[Part, ...]
    critical: tuple[Part, ...]
    machine: Machine
    #: whether the user named a machine; if not, times are those of a default one
    is_given: bool
    #: the figures of the chip that the prediction rests on and that no data sheet gives
    guessed: tuple[str, ...]
    #: seconds in which kernels start, on chips that start them one by one; they overlap with the others
    starting: float = 0.0

    @cached_property
    def bound_by(self) -> dict[str, float]:
        """The seconds of the critical path by binding resource: arithmetic, memory, links, network, starts."""
        totals = dict.fromkeys((ARITHMETIC, MEMORY, LINKS, FAR, STARTS), 0.0)
        for part in self.critical:
            totals[part.binds] += part.waited
        return {what: seconds for what, seconds in totals.items() if seconds}

    def table(self) -> list[dict[str, Any]]:
        """``parts`` as dictionaries with the keys op, source, count, seconds, waited and binds."""
        return [dict(vars(part)) for part in self.parts]

    @property
    def headline(self) -> str:
        """The total and its components, on one line."""
        hidden = self.communication - self.exposed
        told = human_seconds(hidden) if hidden > _ROUNDING * self.communication else "none"
        starting = f", kernels that start {human_seconds(self.starting)}" if self.starting else ""
        overlap = f" ({told} of it hidden)" if self.communication else ""
        return (
            f"{human_seconds(self.seconds)} a run on {self.where}: arithmetic {human_seconds(self.compute)}, memory "
            f"{human_seconds(self.memory)}, communication {human_seconds(self.communication)}{overlap}{starting}"
        )

    @property
    def where(self) -> str:
        return self.machine.name if self.is_given else self.machine.chip.name

    @property
    def notes(self) -> list[str]:
        """Sentences that say what the prediction rests on."""
        if not self.is_given:
            chip = self.machine.chip
            return [
                f"no machine was named: {chip.product_rate('bfloat16')[0] / 1e12:.4g} TFLOP/s, memory of "
                f"{chip.memory_bandwidth / 1e9:.4g} GB/s and links of {chip.link_bandwidth / 1e9:.4g} GB/s are "
                "assumed; name one, AbstractMesh(..., machine='v5e:2x4')"
            ]
        chip = self.machine.chip
        lines = [f"peak rates of {chip.source}"]
        if self.guessed:
            lines.append(f"rests on guessed figures of {chip.name}: {', '.join(self.guessed)}")
        return lines

    def __repr__(self) -> str:
        return f"Time({self.headline})"

    def __str__(self) -> str:
        lines = [self.headline]
        if self.seconds:
            shares = (f"{_PLAIN[what]} {100 * s / self.seconds:.0f} %" for what, s in self.bound_by.items())
            lines.append(f"critical path: {', '.join(shares)}")
        longest = self.parts[:ROWS]
        width = max((len(p.op) + len(p.source) + 4 for p in longest), default=0)
        for p in longest:
            where = f"{p.op} at {p.source}"
            times = f"{p.count}×" if p.count > 1 else ""
            is_waited = p.waited > _ROUNDING * p.seconds
            waited = f"on the critical path for {human_seconds(p.waited)}" if is_waited else "hidden"
            lines.append(f"  {where:<{width}} {times:>5} {human_seconds(p.seconds):>9}  {_PLAIN[p.binds]}, {waited}")
        if len(self.parts) > ROWS:
            lines.append(f"  and {len(self.parts) - ROWS} more in .parts")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def time_of(jaxpr: Jaxpr, mesh: AbstractMesh) -> Time:
    """The predicted time of a per-device program on the machine of its mesh."""
    schedule = step_time(jaxpr, mesh)
    everything = list(_leaves(schedule, 1))
    path = list(_path(schedule, 1))
    fabric = mesh.fabric
    used = {figure for step, _ in everything if step.seconds for figure in _used(step)}
    communication = sum(step.alone.links * times for step, times in everything)
    exposed = sum(seconds for step, _, seconds in path if step.alone.links)
    return Time(
        schedule.seconds,
        sum(step.alone.arithmetic * times for step, times in everything),
        sum(step.alone.memory * times for step, times in everything),
        communication,
        exposed,
        _parts(everything, path),
        tuple(
            Part(*_place(step), step.seconds * times, seconds, times, step.binds)
            for step, times, seconds in path
            if seconds
        ),
        fabric.machine,
        fabric.is_given,
        tuple(sorted(used & fabric.machine.chip.guessed)),
        sum(step.alone.starts * times for step, times in everything),
    )


def _used(step: Step) -> Iterable[str]:
    """The names of the chip's figures that the duration of a step rests on."""
    return {MEMORY: ("memory_bandwidth",), STARTS: ("launch",)}.get(step.binds, step.figures)


def _leaves(schedule: Schedule, times: int) -> Iterator[tuple[Step, int]]:
    """The steps that are neither loops nor conditionals, and how often each runs."""
    for step in schedule.steps:
        if step.inside:
            for inner in step.inside:
                yield from _leaves(inner, times * step.trips)
        else:
            yield step, times


def _path(schedule: Schedule, times: int) -> Iterator[tuple[Step, int, float]]:
    """The steps of the critical path, how often each runs, and its seconds on the path."""
    for step in schedule.critical():
        if step.inside:
            for inner in step.inside:
                yield from _path(inner, times * step.trips)
        else:
            yield step, times, step.seconds * times


def _place(step: Step) -> tuple[str, str]:
    op = step.eqn.op
    return (op.kind if isinstance(op, Collective) and op.kind else op.name), str(step.eqn.source)


def _parts(everything: list[tuple[Step, int]], path: list[tuple[Step, int, float]]) -> tuple[Part, ...]:
    seconds: dict[tuple[str, str, str], float] = {}
    counts: dict[tuple[str, str, str], int] = {}
    waited: dict[tuple[str, str, str], float] = {}
    for step, times in everything:
        key = (*_place(step), step.binds)
        seconds[key] = seconds.get(key, 0.0) + step.seconds * times
        counts[key] = counts.get(key, 0) + times
    for step, _, there in path:
        key = (*_place(step), step.binds)
        waited[key] = waited.get(key, 0.0) + there
    order = sorted((key for key in seconds if seconds[key]), key=lambda key: -seconds[key])
    return tuple(Part(k[0], k[1], seconds[k], waited.get(k, 0.0), counts[k], k[2]) for k in order)


def human_seconds(seconds: float) -> str:
    """Seconds with a unit, such as ``1.5 ms``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
