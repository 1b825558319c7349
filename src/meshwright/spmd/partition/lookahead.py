"""Looking ahead: where annotations contest an axis, the program is partitioned both ways, and the quicker one wins.

Propagation gives an axis that annotations bring to an equation, each to another of its factors, to one of them; what
that costs shows only further on. So annotations that meet in such contests are tried: those of one sort spread after
all others, or before. Annotations of one sort (equal types, laid out alike, as in repeated layers) are one decision.
Each outcome is a whole program, communication passes included, and its step time decides. Nothing that a user has said
is overruled: only the order changes in which it spreads.

At last products may be shared along dimensions that nothing else is split along (two all-to-alls instead of a gather),
or by axes that nothing brings to them, and sums may stay in tiles: what that costs further on shows only in the whole,
too.

The search is a greedy descent. Orders that propagate alike are one; sorts at whose contests next to nothing is sent
are left alone; and the equations walked over again are limited, so that large programs are planned about as fast as
without it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

from meshwright.ir.jaxpr import JaxprEqn, Var
from meshwright.sharding import AbstractMesh
from meshwright.sharding.rule import REPLICATED, ShardingRule
from meshwright.spmd.factors import Axes, factor_axes_of
from meshwright.spmd.memory.estimate import estimate
from meshwright.spmd.memory.predict import predict
from meshwright.spmd.order import FIRST, LARGEST, Order, Share
from meshwright.spmd.origin import Sort
from meshwright.spmd.partition.choose import choose
from meshwright.spmd.partition.idle import shares
from meshwright.spmd.partition.planner import Planner
from meshwright.spmd.partition.record import Partition
from meshwright.spmd.passes.scattered_sums import has_large_sums
from meshwright.spmd.propagate import Propagation, scanned
from meshwright.spmd.report import collectives, starts, totals
from meshwright.spmd.steptime.schedule import step_time

#: equations that may be walked over again for one program, and how many orders are tried at least and at most
EQUATIONS, FEWEST, MOST = 20_000, 2, 24
#: equations of the largest program that is walked over once more to share its products along other dimensions
EXCHANGED = 2_500
#: equations of the largest program whose sums are kept in tiles
TILED = 10_000
#: in how many ways it is tried at most to share products, and how many times the bytes that may take
SHARINGS, SHARED_BYTES = 6, 2.0
#: how many sorts of annotations are tried at a time, and what share of what is sent must be at their contests
WIDTH, SHARE = 3, 0.02
#: how much quicker an order must be than the one before it
GAIN = 0.97
#: how many times the bytes a program with sums in tiles may send: those of the gradients of norms' weights
MORE_BYTES = 1.01
#: how far the ratio of two estimates is from that of the peaks at most, about
ROUGH = 1.6
#: how much of the time in which the links are busy counts even where it is hidden: schedules are not perfect
HIDDEN = 0.5


class Candidate:
    """A program in an order, with figures that are kept: each is asked for in several comparisons."""

    def __init__(self, part: Partition, order: Order) -> None:
        self.part, self.order = part, order

    @cached_property
    def sent(self) -> tuple[int, int]:
        """How many collectives there are, and the bytes that they send."""
        return totals(self.part.jaxpr.jaxpr)

    @cached_property
    def starts(self) -> int:
        return starts(self.part.jaxpr.jaxpr)

    @cached_property
    def price(self) -> float:
        return price(self.part)

    @cached_property
    def peak(self) -> int:
        return max(1, _peak(self.part))

    @cached_property
    def estimate(self) -> int:
        return max(1, estimate(self.part.jaxpr.jaxpr))

    @cached_property
    def ends(self) -> int:
        """The bytes of arguments and results: no peak is less."""
        inner = self.part.jaxpr.jaxpr
        return sum(a.aval.nbytes for a in (*inner.invars, *inner.outvars))

    def is_better(self, than: Candidate, more_bytes: float = 1.0) -> bool:
        """Whether it sends no more than another (or so many times as much), and its time, bytes and peak are less
        together: a percent of one is worth one of another. Starting collectives counts as time. Peaks are predicted
        where estimates are no answer: for large programs that takes as long as partitioning does."""
        sent, new_sent = than.sent[1], self.sent[1]
        if new_sent > more_bytes * sent:
            return False
        new = (self.price + (self.starts - than.starts) * self.part.mesh.fabric.start) * new_sent
        old = GAIN * than.price * sent
        if new * self.estimate * ROUGH < old * than.estimate:
            return True
        return new * self.ends < old * than.peak and new * self.peak < old * than.peak


def look_ahead(planner: Planner) -> Candidate:
    """The program in the order of its annotations that makes it quickest."""
    return _Search(planner).run()


class _Search:
    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        outcome = planner.propagate(Order())
        self.seen = {_signature(outcome)}
        self.best = Candidate(planner.partition(outcome), Order())
        self.tries = min(MOST, max(FEWEST, EQUATIONS // max(1, len(outcome.origins.eqns))))

    def run(self) -> Candidate:
        while self.tries > 0 and self.improve():
            pass
        self.exchange()
        self.share()
        self.keep_tiles()
        return self.best

    def exchange(self) -> None:
        """Share products along other dimensions too, if that is better."""
        part = self.best.part
        if not self.best.sent[1] or len(part.propagation.rules) > EXCHANGED or not _exchanged(part):
            return
        order = replace(self.best.order, exchanges=True)
        # Axes spread as they did.
        other = Candidate(self.planner.partition(replace(part.propagation, order=order)), order)
        if other.is_better(self.best):
            self.best = other

    def share(self) -> None:
        """Let axes that split nothing of products share them, where that is better, along the best dimension."""
        left, asked = SHARINGS, set[ShardingRule]()
        while left > 0 and self.best.sent[1] and len(self.best.part.propagation.rules) <= EXCHANGED:
            kinds = itertools.groupby(shares(self.best.part), lambda share: share.rule)
            ways = next((list(ways) for rule, ways in kinds if rule not in asked), [])
            if not ways:
                return
            asked.add(ways[0].rule)
            tried = [self.candidate(outcome, order) for outcome, order in self.shared(ways[:left])]
            left -= len(tried)
            better = [c for c in tried if c.price <= self.best.price and c.is_better(self.best, SHARED_BYTES)]
            self.best = min(better, key=lambda c: c.price, default=self.best)

    def shared(self, ways: Sequence[Share]) -> Iterator[tuple[Propagation, Order]]:
        """How axes spread with each of the shares, where that is new."""
        for share in ways:
            order = replace(self.best.order, shares=(*self.best.order.shares, share))
            outcome = self.planner.propagate(order)
            if (signature := _signature(outcome)) not in self.seen:
                self.seen.add(signature)
                yield outcome, order

    def keep_tiles(self) -> None:
        """Keep sums in tiles until something needs them whole, if that is better."""
        best, part = self.best, self.best.part
        if len(part.propagation.rules) > TILED or not has_large_sums(part.jaxpr.jaxpr):
            return
        other = Candidate(self.planner.in_tiles(part), replace(best.order, tiles=True))
        # Where these two programs differ, estimates see it.
        if other.price * other.estimate < GAIN * best.price * best.estimate and other.is_better(best, MORE_BYTES):
            self.best = other

    def candidate(self, outcome: Propagation, order: Order) -> Candidate:
        return Candidate(self.planner.partition(outcome), order)

    def improve(self) -> bool:
        """Whether one of the orders next to the best one so far is better; then it takes its place."""
        better: Candidate | None = None
        for order in neighbours(self.best.part, self.best.order):
            outcome = self.planner.propagate(order)
            signature = _signature(outcome)
            if signature in self.seen:
                continue
            if not self.tries:
                break
            self.seen.add(signature)
            self.tries -= 1
            other = self.candidate(outcome, order)
            if other.price < (better.price if better else GAIN * self.best.price):
                better = other
        if better is None:
            return False
        self.best = better
        return True


def _exchanged(part: Partition) -> bool:
    """Whether any product would be computed otherwise, could it be shared along other dimensions.

    Equations are localized in order: if none would be, the program stays what it is."""
    asked = dict.fromkeys(part.products)
    return any(choose(question) != choose(question._replace(exchanges=True)) for question in asked)


def price(part: Partition) -> float:
    """The seconds of a step, and a share of those in which the links are busy."""
    time = step_time(part.jaxpr.jaxpr, part.mesh)
    return time.seconds + HIDDEN * time.links


def _peak(part: Partition) -> int:
    return predict(part.jaxpr, part.mesh).peak_bytes


def _signature(propagation: Propagation) -> int:
    return hash(frozenset((v, p.dims) for v, p in propagation.placements.items() if any(p.dims)))


# --- contests -----------------------------------------------------------------------------------------------
def neighbours(part: Partition, order: Order) -> list[Order]:
    """Orders in which one sort of annotations spreads later or earlier than it does, those at whose contests most is
    sent first; in which slices of loops are split across; and in which one sort comes before all others."""
    sent = contests(part)
    total = totals(part.jaxpr.jaxpr)[1]
    sorts = [sort for sort, there in sent.most_common(WIDTH) if there > SHARE * total]
    toggled = [replace(order, later=order.later ^ {sort}) for sort in sorts]
    if scanned(part.propagation) or order.across:
        toggled += [replace(order, across=way) for way in ("", LARGEST, FIRST) if way != order.across]
    return toggled + [replace(order, later=frozenset(sent) - {sort}) for sort in sorts]


def contests(part: Partition) -> Counter[Sort]:
    """For each sort of annotations, the bytes sent at equations where another one brings its axis to another factor."""
    sent: Counter[int] = Counter()
    for c in collectives(part.jaxpr.jaxpr):
        for user in {id(r.user) for r in c.reasons if r.user is not None}:
            sent[user] += c.bytes_sent
    bytes_by_sort: Counter[Sort] = Counter()
    origins = part.propagation.origins
    for eqn, rule in zip(origins.eqns, part.propagation.rules):
        met: set[Sort] = set()
        for sides in _contested(eqn, rule, part.propagation):
            causes = (origins.of(var, axis) for var, axis in sides)
            sorts = {cause.sort for cause in causes if cause is not None and cause.sort is not None}
            met |= sorts if len(sorts) > 1 else set()
        for sort in met:
            bytes_by_sort[sort] += sent[id(eqn)]
    return bytes_by_sort


def _contested(eqn: JaxprEqn, whole: ShardingRule, propagation: Propagation) -> Iterator[list[tuple[Var, str]]]:
    """For each axis that values of an equation have on different factors, these values."""
    for part in whole.parts:
        atoms = [*(eqn.invars[i] for i in part.operands), *(eqn.outvars[i] for i in part.results)]
        dims = tuple(propagation.layout(atom).dims for atom in atoms)
        for axis, places in _contests_of(part.rule, dims, propagation.mesh):
            yield [(atoms[i], axis) for i in places]  # type: ignore[misc]  # literals have no axes


@lru_cache(maxsize=8192)
def _contests_of(
    rule: ShardingRule, dims: tuple[tuple[Axes, ...], ...], mesh: AbstractMesh
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The axes that operands and results with these dimensions have on different factors, and which of them do."""
    places: dict[str, list[tuple[int, int]]] = {}
    for i, (of, factors) in enumerate(zip(dims, (*rule.operands, *rule.results))):
        for f, axes in factor_axes_of(of, factors, rule, mesh).items():
            if rule.factors[f].kind != REPLICATED:
                for axis in axes:
                    places.setdefault(axis, []).append((f, i))
    return tuple((axis, tuple(i for _, i in where)) for axis, where in places.items() if len({f for f, _ in where}) > 1)
