"""A schedule of a per-device program: when each equation starts and ends, and what it had to wait for.

Equations run in program order on streams: one of arithmetic, one of the links inside a node or slice, one of the
network between them. Each starts as soon as its operands are there and its stream is free; so a collective overlaps
with the arithmetic that does not wait for it. Loops run one iteration after the other, and overlap with nothing outside
of them; of a branch the longest counts. On chips that start kernels one by one (GPUs), an equation takes at least as
long as its kernels take to start, and a loop or a branch one more for what counts, or decides.
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
from meshwright.spmd.flatten import eqn_rule
from meshwright.spmd.steptime.kernels import Launched, moved_by_kernels
from meshwright.spmd.steptime.traffic import traffic
from meshwright.spmd.work import operations, precision_of

#: streams
ARITHMETIC, LINKS, FAR = "arithmetic", "links", "network"
#: what binds an equation
MEMORY, STARTS = "memory", "starts"


class Step(NamedTuple):
    """An equation in the schedule: seconds that it takes of arithmetic, memory traffic and links, when it starts and
    ends, and the number of the step that it waited for last (-1: none). ``inside`` is what a loop or branch waits for
    in each of its ``trips``, ``parts`` all that it does; ``starts`` are the seconds in which its kernels start."""

    eqn: JaxprEqn
    stream: str
    arithmetic: float
    memory: float
    links: float
    start: float
    end: float
    before: int
    figures: tuple[str, ...] = ()
    trips: int = 1
    inside: tuple[Schedule, ...] = ()
    starts: float = 0.0

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def binds(self) -> str:
        """What more of would make it quicker."""
        if self.stream != ARITHMETIC:
            return self.stream
        if self.starts > max(self.memory, self.arithmetic):
            return STARTS
        return MEMORY if self.memory > self.arithmetic else ARITHMETIC


@dataclass
class Schedule:
    """The steps of one run of a jaxpr in program order, its seconds, and how long the links are busy in it."""

    steps: list[Step] = field(default_factory=list)
    seconds: float = 0.0
    links: float = 0.0

    def critical(self) -> Iterator[Step]:
        """The steps of which each waits for the one before, up to the last that ends, in order."""
        path = []
        at = max(range(len(self.steps)), key=lambda n: self.steps[n].end, default=-1)
        while at >= 0:
            path.append(self.steps[at])
            at = self.steps[at].before
        yield from reversed(path)


def step_time(jaxpr: Jaxpr, mesh: AbstractMesh) -> Schedule:
    """The schedule of a per-device program of a mesh, on the mesh's machine."""
    return _Scheduler(mesh).run(jaxpr)


#: collectives, each with the bytes of its operand and result
Transfers = tuple[tuple[str, int, int], ...]


@lru_cache(maxsize=4096)
def _on_links(mesh: AbstractMesh, axes: tuple[str, ...], kinds: Transfers) -> tuple[str, float, tuple[str, ...]]:
    """The stream that collectives are on, their seconds, and the figures that these rest on."""
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
            self.schedule.links += step.links
            self.ready.update(dict.fromkeys(eqn.outvars, (step.end, number)))
            if step.seconds:
                for stream in self.free if step.inside else (step.stream,):
                    self.free[stream] = (step.end, number)
        self.schedule.seconds = max((step.end for step in self.schedule.steps), default=0.0)
        return self.schedule

    def moved(self, jaxpr: Jaxpr) -> list[Launched]:
        """Bytes to and from memory of each equation, and its kernels, where the chip starts some."""
        if self.chip.launch:
            return moved_by_kernels(jaxpr)
        return [Launched(nbytes, Kernels(0), None) for nbytes in traffic(jaxpr)]

    def shares(self, jaxpr: Jaxpr, launched: Sequence[Launched]) -> dict[int | None, float]:
        """How long each kernel takes, as a share of the sum of what its equations would take one by one: its arithmetic
        goes on while memory is read and written."""
        sums: dict[int, list[float]] = {}
        for eqn, each in zip(jaxpr.eqns, launched):
            if each.kernel is not None:
                bounds = (self.arithmetic(eqn, each.kernels)[0], *self.bounds(each))
                of = sums.setdefault(each.kernel, [0.0] * 4)
                of[:] = map(add, of, (*bounds, max(bounds)))
        return {kernel: max(bounds) / alone for kernel, (*bounds, alone) in sums.items() if alone}

    def bounds(self, launched: Launched) -> tuple[float, float]:
        """Seconds of memory traffic, and in which kernels start."""
        return launched.nbytes / self.machine.memory_bandwidth, launched.kernels.starts * self.chip.launch

    def arithmetic(self, eqn: JaxprEqn, kernels: Kernels) -> tuple[float, str]:
        """Seconds of arithmetic, and the figure that they rest on."""
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
        arithmetic, figure = self.arithmetic(eqn, launched.kernels)
        memory, starts = self.bounds(launched)
        return self.placed(eqn, ARITHMETIC, arithmetic, memory, 0.0, (figure,), starts, share)

    def collective(self, eqn: JaxprEqn, op: Collective) -> Step:
        return self.sent(eqn, op.axes, ((op.kind, eqn.invars[0].aval.nbytes, eqn.outvars[0].aval.nbytes),))

    def sent(self, eqn: JaxprEqn, axes: tuple[str, ...], kinds: Transfers) -> Step:
        """Collectives along axes, one after the other."""
        stream, seconds, figures = _on_links(self.mesh, axes, kinds)
        return self.placed(eqn, stream, 0.0, 0.0, seconds, figures)

    def regions(self, eqn: JaxprEqn, op: RegionOp) -> Step:
        inner = tuple(step_time(region.jaxpr, self.mesh) for region in op.regions())
        if op.chooses:
            inner = (max(inner, key=lambda t: t.seconds),)
        trips = op.trips(eqn.invars)
        if self.chip.launch and (op.chooses or trips != 1):
            self.one_more(eqn, inner[-1])
        trips = trips or 1
        for stream in (ARITHMETIC, LINKS, FAR):
            self.free.setdefault(stream, (0.0, -1))
        waits = max((self.ready.get(a, (0.0, -1)) for a in eqn.invars), default=(0.0, -1))
        start, before = max(waits, *self.free.values())
        links = trips * sum(t.links for t in inner)
        end = start + trips * sum(t.seconds for t in inner)
        return Step(eqn, ARITHMETIC, 0.0, 0.0, links, start, end, before, (), trips, inner)

    def one_more(self, eqn: JaxprEqn, inner: Schedule) -> None:
        """Put what counts the trips of a loop, or decides, after all that is inside."""
        last = max(range(len(inner.steps)), key=lambda n: inner.steps[n].end, default=-1)
        start, launch = inner.seconds, self.chip.launch
        inner.steps.append(Step(eqn, ARITHMETIC, 0.0, 0.0, 0.0, start, start + launch, last, starts=launch))
        inner.seconds += launch

    def placed(
        self, eqn: JaxprEqn, stream: str, arithmetic: float, memory: float, links: float, figures: tuple[str, ...],
        starts: float = 0.0, share: float = 1.0,
    ) -> Step:  # fmt: skip
        waits = max((self.ready.get(a, (0.0, -1)) for a in eqn.invars), default=(0.0, -1))
        took = share * max(arithmetic, memory, links, starts)
        start, before = max(waits, self.free.get(stream, (0.0, -1))) if took else waits
        return Step(eqn, stream, arithmetic, memory, links, start, start + took, before, figures, starts=starts)
