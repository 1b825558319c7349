"""Programs partitioned with different strategies, and which of two is better."""

from __future__ import annotations

import sys
from functools import cached_property

from meshwright.core.records import dataclass
from meshwright.spmd.memory.estimate import estimate
from meshwright.spmd.memory.predict import predict
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.report import starts, totals
from meshwright.spmd.steptime.schedule import step_time
from meshwright.spmd.strategy import Strategy
from meshwright.spmd.work import operations_of

#: the cost of a new strategy must be below this fraction of the best one's
GAIN = 0.97
#: products of time, bytes and memory whose ratio is at most this are equal
EQUAL = 1.001
#: the ratio of two estimates differs from the ratio of the predicted peaks by at most about this factor
ROUGH = 1.6
#: of programs with more equations, only the order in which annotations spread and how sums are completed is searched
SEARCHED = 2_500
#: the bytes that links send in this fraction of a step count as nothing: a program that sends less is not better for it
NOTICED = 0.01
#: the factor by which the operations of a device may increase for bytes that nobody would notice
MORE_WORK = 1.05
#: on a machine that the user named, what takes this fraction of the time may send any number of bytes for it
QUICKER = 0.95
#: fraction of the links' busy time that is added to the price even if hidden, because schedules are not perfect
HIDDEN = 0.5


@dataclass(frozen=True)
class Attempt:
    """A program partitioned with a strategy, with cached figures for the comparisons."""

    part: Partition

    @property
    def strategy(self) -> Strategy:
        return self.part.strategy

    @cached_property
    def sent(self) -> tuple[int, int]:
        """The number of collectives, and the bytes that they send."""
        return totals(self.part.jaxpr.jaxpr)

    @property
    def num_equations(self) -> int:
        """The number of equations of the program, those of its regions among them."""
        return len(self.part.propagation.rules)

    @property
    def is_searchable(self) -> bool:
        """Whether something is sent, and the program is small enough to search for ways to send less."""
        return self.sent[1] > 0 and self.num_equations <= SEARCHED

    @cached_property
    def starts(self) -> int:
        return starts(self.part.jaxpr.jaxpr)

    @cached_property
    def times(self) -> tuple[float, float]:
        """The predicted seconds of a step, and those in which the links are busy."""
        return times(self.part)

    @property
    def price(self) -> float:
        return _price(*self.times)

    @property
    def price_with_starts(self) -> float:
        """The price, and the seconds of starting collectives."""
        return self.price + self.starts * self.part.mesh.fabric.start

    @property
    def share_of_links(self) -> float:
        """The seconds in which links are busy, their starts among them, per second of a step."""
        starts = self.starts * self.part.mesh.fabric.start
        return (self.times[1] + starts) / max(self.times[0] + starts, sys.float_info.min)

    @cached_property
    def peak(self) -> int:
        return max(1, predict(self.part.jaxpr, self.part.mesh).peak_bytes)

    @cached_property
    def estimate(self) -> int:
        return max(1, estimate(self.part.jaxpr.jaxpr))

    @cached_property
    def work(self) -> int:
        """The number of operations of a device."""
        return operations_of(self.part.jaxpr.jaxpr)

    @cached_property
    def ends(self) -> int:
        """The bytes of arguments and results: a lower bound of the peak."""
        inner = self.part.jaxpr.jaxpr
        return sum(a.aval.nbytes for a in (*inner.invars, *inner.outvars))

    @property
    def unnoticed(self) -> float:
        """The bytes that the fastest links send in a small fraction (``NOTICED``) of the step."""
        return NOTICED * self.times[0] * self.part.mesh.fabric.fastest

    def costs_beside(self, other: Attempt) -> float:
        """The product of time, bytes and estimated memory, divided by that of another attempt."""
        sent = (self.sent[1] + other.unnoticed) / (other.sent[1] + other.unnoticed) if other.unnoticed else 1.0
        return self.price_with_starts / other.price_with_starts * sent * self.estimate / other.estimate

    def costs_as(self, other: Attempt) -> bool:
        """Whether the costs are equal, up to ``EQUAL``."""
        return 1 / EQUAL <= self.costs_beside(other) <= EQUAL

    def is_better(self, than: Attempt, more_bytes: float = 1.0, gain: float = GAIN) -> bool:
        """Whether it sends at most ``more_bytes`` times the bytes of ``than``, and its product of time, bytes and peak
        memory is less than ``gain`` times that of ``than``.

        A percent of one thus counts as much as a percent of another. Time includes starting collectives. To all bytes,
        those are added that nobody would notice (:attr:`unnoticed`): where few are sent, time and memory decide. Peaks
        are only predicted if estimates do not decide: for large programs, a prediction takes as long as partitioning.
        Where nothing else gets worse, unnoticed bytes decide after all, and what is much quicker on a machine that the
        user named (:meth:`_is_quicker`) may send more: there, each collective takes its time however little it sends.
        """
        if self._is_quicker(than):
            return True
        sent, new_sent = than.sent[1] + than.unnoticed, self.sent[1] + than.unnoticed
        if new_sent > more_bytes * sent:
            return False
        new = self.price_with_starts * new_sent
        old = gain * than.price_with_starts * sent
        if new * self.estimate * ROUGH < old * than.estimate:
            return True
        if new * self.ends < old * than.peak and new * self.peak < old * than.peak:
            return True
        return self.sent[1] < gain * than.sent[1] and self._costs_no_more(than)

    def _is_quicker(self, than: Attempt) -> bool:
        """Whether the step, and its product with peak memory, is much less on a machine that the user named."""
        time, other = self.price_with_starts, QUICKER * than.price_with_starts
        return self.part.mesh.fabric.is_given and time < other and time * self.peak < other * than.peak

    def _costs_no_more(self, than: Attempt) -> bool:
        """Whether it takes no longer, holds no more, and does hardly more."""
        quick = self.price_with_starts <= than.price_with_starts and self.work <= MORE_WORK * than.work
        return quick and self.estimate <= EQUAL * than.estimate and self.peak <= EQUAL * than.peak


def times(part: Partition) -> tuple[float, float]:
    """The predicted seconds of a step, and those in which the links are busy."""
    time = step_time(part.jaxpr.jaxpr, part.mesh)
    return time.seconds, time.links


def price(part: Partition) -> float:
    """The predicted seconds of a step, plus a fraction (``HIDDEN``) of the seconds in which the links are busy."""
    return _price(*times(part))


def _price(seconds: float, links: float) -> float:
    return seconds + HIDDEN * links
