"""A schedule of a per-device program: when each equation starts and ends, and which equation it waited for.

Equations run in program order on three streams: arithmetic, the links inside a node or slice, and the network between
nodes or slices. An equation starts as soon as its operands are ready and its stream is free, so that a collective
overlaps with arithmetic that does not depend on it. The iterations of a loop run one after the other, and a loop does
not overlap with anything outside it. A conditional takes as long as its longest branch. On chips that start kernels one
by one (GPUs), an equation takes at least the time in which its kernels start; loops and conditionals have one more
kernel, which counts the iterations or selects the branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import lru_cache
from operator import add
from typing import NamedTuple

from meshwright.core.records import dataclass
from meshwright.hardware.links import NETWORK
from meshwright.ir.contract import Kernels
from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn
from meshwright.ops.collective.base import Collective
from meshwright.ops.control.callback import Callback
from meshwright.ops.control.regions import RegionOp
from meshwright.sharding import AbstractMesh
from meshwright.spmd.rules import eqn_rule
from meshwright.spmd.steptime.kernels import Launched, moved_by_kernels
from meshwright.spmd.steptime.traffic import traffic
from meshwright.spmd.work import kernel_cost, operations, precision_of

#: streams
ARITHMETIC, LINKS, FAR = "arithmetic", "links", "network"
#: further resources that can bind an equation
MEMORY, STARTS = "memory", "starts"


class Seconds(NamedTuple):
    """The seconds that arithmetic, memory traffic, links, and the start of kernels would take, each alone."""

    arithmetic: float = 0.0
    memory: float = 0.0
    links: float = 0.0
    starts: float = 0.0


class Step(NamedTuple):
    """An equation in the schedule.

    ``before`` is the number of the step that this one waited for last (-1: none). ``figures`` names the chip's figures
    that the seconds rest on. For a loop or conditional, ``inside`` holds the schedules of its regions, run ``trips``
    times.
    """

    eqn: JaxprEqn
    stream: str
    alone: Seconds
    start: float
    end: float
    before: int
    figures: tuple[str, ...] = ()
    trips: int = 1
    inside: tuple[Schedule, ...] = ()

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def binds(self) -> str:
        """The resource that determines how long the step takes."""
        if self.stream != ARITHMETIC:
            return self.stream
        arithmetic, memory, _, starts = self.alone
        if starts > max(memory, arithmetic):
            return STARTS
        return MEMORY if memory > arithmetic else ARITHMETIC


@dataclass
class Schedule:
    """The steps of one run of a jaxpr in program order, its duration, and how long it uses the links, in seconds."""

    steps: list[Step] = field(default_factory=list)
    seconds: float = 0.0
    links: float = 0.0

    def critical(self) -> Iterator[Step]:
        """The critical path in order: each step waited for the previous one, and the last step ends last."""
        path = []
        at = max(range(len(self.steps)), key=lambda n: self.steps[n].end, default=-1)
        while at >= 0:
            path.append(self.steps[at])
            at = self.steps[at].before
        yield from reversed(path)


def step_time(jaxpr: Jaxpr, mesh: AbstractMesh) -> Schedule:
    """The schedule of a per-device program on the machine of its mesh."""
    return _Scheduler(mesh).run(jaxpr)


#: collectives: kind, bytes of the operand, bytes of the result
Transfers = tuple[tuple[str, int, int], ...]


@lru_cache(maxsize=4096)
def _on_links(mesh: AbstractMesh, axes: tuple[str, ...], kinds: Transfers) -> tuple[str, float, tuple[str, ...]]:
    """The stream on which collectives run, their duration in seconds, and the chip's figures that it rests on."""
    levels = mesh.levels(axes)
    seconds = sum(mesh.collective_seconds(kind, axes, before, after) for kind, before, after in kinds)
    stream = FAR if any(link.topology == NETWORK for link in levels) else LINKS
    return stream, seconds, tuple(figure for link in levels for figure in link.figures)


class _Scheduler:
    def __init__(self, mesh: AbstractMesh) -> None:
        self.mesh = mesh
        self.machine = mesh.fabric.machine
        self.chip = self.machine.chip
        self.schedule = Schedule()
        self.free: dict[str, tuple[float, int]] = {}
        self.ready: dict[Atom, tuple[float, int]] = {}

    def run(self, jaxpr: Jaxpr) -> Schedule:
        launched = self.moved(jaxpr)
        shares = self.shares(jaxpr, launched)
        for number, (eqn, each) in enumerate(zip(jaxpr.eqns, launched)):
            step = self.step(eqn, each, shares.get(each.kernel, 1.0))
            self.schedule.steps.append(step)
            self.schedule.links += step.alone.links
            self.ready.update(dict.fromkeys(eqn.outvars, (step.end, number)))
            if step.seconds:
                for stream in self.free if step.inside else (step.stream,):
                    self.free[stream] = (step.end, number)
        self.schedule.seconds = max((step.end for step in self.schedule.steps), default=0.0)
        return self.schedule

    def moved(self, jaxpr: Jaxpr) -> list[Launched]:
        """The memory traffic of each equation and, if the chip starts kernels one by one, its kernels."""
        if self.chip.launch:
            return moved_by_kernels(jaxpr)
        return [Launched(nbytes, Kernels(0), None) for nbytes in traffic(jaxpr)]

    def shares(self, jaxpr: Jaxpr, launched: Sequence[Launched]) -> dict[int | None, float]:
        """The duration of each kernel, as a share of the sum of the durations of its equations if each ran alone.

        A kernel's arithmetic overlaps with its memory traffic.
        """
        sums: dict[int, list[float]] = {}
        for eqn, each in zip(jaxpr.eqns, launched):
            if each.kernel is not None:
                bounds, _ = self.alone(eqn, each)
                of = sums.setdefault(each.kernel, [0.0] * (len(bounds) + 1))
                of[:] = map(add, of, (*bounds, max(bounds)))
        return {kernel: max(bounds) / alone for kernel, (*bounds, alone) in sums.items() if alone}

    def alone(self, eqn: JaxprEqn, launched: Launched) -> tuple[Seconds, str]:
        """The seconds that an equation takes, and the name of the chip's figure that those of arithmetic rest on."""
        arithmetic, figure = self.arithmetic(eqn, launched.kernels)
        memory = launched.nbytes / self.machine.memory_bandwidth
        return Seconds(arithmetic, memory, starts=launched.kernels.starts * self.chip.launch), figure

    def arithmetic(self, eqn: JaxprEqn, kernels: Kernels) -> tuple[float, str]:
        """The seconds of arithmetic, and the name of the chip's figure that they rest on."""
        if (kernel := kernel_cost(eqn.op)) is not None:
            rate, figure = self.machine.product_rate(eqn.invars[0].aval.dtype, None)
            products, others = kernel.products / rate, kernel.others / self.machine.vector
            return (products, figure) if products > others else (others, "vector")
        count = operations(eqn)
        if count and eqn_rule(eqn).is_product:
            rate, figure = self.machine.product_rate(eqn.invars[0].aval.dtype, precision_of(eqn.op))
        else:
            rate, figure, count = self.machine.vector, "vector", max(count, kernels.operations)
        seconds = count / rate
        on_chip = kernels.inside / self.chip.on_chip_bandwidth if self.chip.on_chip_bandwidth else 0.0
        return (on_chip, "on_chip_bandwidth") if on_chip > seconds else (seconds, figure)

    def step(self, eqn: JaxprEqn, launched: Launched, share: float) -> Step:
        op = eqn.op
        if isinstance(op, Collective) and op.kind:
            return self.collective(eqn, op)
        if isinstance(op, Callback) and (axes := op.shared_along(self.mesh.shape)):
            return self.sent(eqn, tuple(axes), tuple(("all_reduce", a.nbytes, a.nbytes) for a in op.results))
        if isinstance(op, RegionOp) and op.regions():
            return self.regions(eqn, op)
        alone, figure = self.alone(eqn, launched)
        return self.placed(eqn, ARITHMETIC, alone, (figure,), share)

    def collective(self, eqn: JaxprEqn, op: Collective) -> Step:
        return self.sent(eqn, op.axes, ((op.kind, eqn.invars[0].aval.nbytes, eqn.outvars[0].aval.nbytes),))

    def sent(self, eqn: JaxprEqn, axes: tuple[str, ...], kinds: Transfers) -> Step:
        """A step of collectives along ``axes``, one after the other."""
        stream, seconds, figures = _on_links(self.mesh, axes, kinds)
        return self.placed(eqn, stream, Seconds(links=seconds), figures)

    def regions(self, eqn: JaxprEqn, op: RegionOp) -> Step:
        inner = tuple(step_time(region.jaxpr, self.mesh) for region in op.regions())
        if op.chooses:
            inner = (max(inner, key=lambda t: t.seconds),)
        trips = op.trips(eqn.invars)
        if self.chip.launch and (op.chooses or trips != 1):
            self.one_more(eqn, inner[-1])
        trips = 1 if trips is None else trips
        for stream in (ARITHMETIC, LINKS, FAR):
            self.free.setdefault(stream, (0.0, -1))
        waits = max((self.ready.get(a, (0.0, -1)) for a in eqn.invars), default=(0.0, -1))
        start, before = max(waits, *self.free.values())
        links = trips * sum(t.links for t in inner)
        end = start + trips * sum(t.seconds for t in inner)
        return Step(eqn, ARITHMETIC, Seconds(links=links), start, end, before, (), trips, inner)

    def one_more(self, eqn: JaxprEqn, inner: Schedule) -> None:
        """Append the kernel that counts the iterations of a loop, or selects a branch, to the schedule of a region."""
        last = max(range(len(inner.steps)), key=lambda n: inner.steps[n].end, default=-1)
        start, launch = inner.seconds, self.chip.launch
        inner.steps.append(Step(eqn, ARITHMETIC, Seconds(starts=launch), start, start + launch, last))
        inner.seconds += launch

    def placed(self, eqn: JaxprEqn, stream: str, alone: Seconds, figures: tuple[str, ...], share: float = 1.0) -> Step:
        waits = max((self.ready.get(a, (0.0, -1)) for a in eqn.invars), default=(0.0, -1))
        took = share * max(alone)
        start, before = max(waits, self.free.get(stream, (0.0, -1))) if took else waits
        return Step(eqn, stream, alone, start, start + took, before, figures)
