"""How long a per-device program takes, for comparing plans: a schedule on two streams, arithmetic and links.

Equations run in program order, each as soon as its operands are there and its stream is free; so a collective overlaps
with the arithmetic that does not wait for it. Loops run one iteration after the other, of a branch the longest counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn
from meshwright.ops.collective.collectives import Collective
from meshwright.ops.control.cond import Cond
from meshwright.ops.control.regions import RegionOp
from meshwright.spmd.report import wire_bytes
from meshwright.spmd.work import operations


@dataclass(frozen=True)
class Rates:
    """Operations and bytes a second of a device: arithmetic, memory, links; and seconds to start a collective."""

    operations: float = 100e12
    memory: float = 1e12
    links: float = 100e9
    latency: float = 2.5e-9


#: an accelerator of no particular make: the ratios by which equations are priced, too
DEFAULT = Rates()


@dataclass(frozen=True)
class StepTime:
    """Seconds of one run, and how long the links are busy in it."""

    seconds: float
    links: float


def step_time(jaxpr: Jaxpr, rates: Rates = DEFAULT) -> StepTime:
    """The time of a per-device program."""
    return _Schedule(rates).run(jaxpr)


class _Schedule:
    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.arithmetic = self.links = self.busy = 0.0
        self.ready: dict[Atom, float] = {}

    def run(self, jaxpr: Jaxpr) -> StepTime:
        for eqn in jaxpr.eqns:
            start = max((self.ready.get(a, 0.0) for a in eqn.invars), default=0.0)
            done = self._equation(eqn, start)
            self.ready.update(dict.fromkeys(eqn.outvars, done))
        return StepTime(max(self.arithmetic, self.links), self.busy)

    def _equation(self, eqn: JaxprEqn, start: float) -> float:
        op = eqn.op
        if isinstance(op, Collective) and op.kind:
            sent = wire_bytes(op.kind, op.group_size, eqn.invars[0].aval, eqn.outvars[0].aval)
            took = sent / self.rates.links + self.rates.latency
            self.busy += took
            self.links = max(start, self.links) + took
            return self.links
        if isinstance(op, RegionOp):
            return self._regions(eqn, op, start)
        self.arithmetic = max(start, self.arithmetic) + self._compute(eqn)
        return self.arithmetic

    def _regions(self, eqn: JaxprEqn, op: RegionOp, start: float) -> float:
        inner = [step_time(region.jaxpr, self.rates) for region in op.regions()]
        if isinstance(op, Cond):
            inner = [max(inner, key=lambda t: t.seconds)]
        trips = op.trips(eqn.invars) or 1
        self.busy += trips * sum(t.links for t in inner)
        end = max(start, self.arithmetic, self.links) + trips * sum(t.seconds for t in inner)
        self.arithmetic = self.links = end
        return end

    def _compute(self, eqn: JaxprEqn) -> float:
        """Arithmetic and memory traffic overlap; what is fused with what is not known, so operands are not counted."""
        written = sum(v.aval.nbytes for v in eqn.outvars)
        return max(operations(eqn) / self.rates.operations, written / self.rates.memory)
