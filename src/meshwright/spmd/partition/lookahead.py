"""Looking ahead: where annotations contest an axis, the program is partitioned both ways, and the quicker one wins.

Propagation gives an axis that annotations bring to an equation, each to another of its factors, to one of them; what
that costs shows only further on. So annotations that meet in such contests are tried: those of one sort spread after
all others, or before. Annotations of one sort (equal types, laid out alike, as in repeated layers) are one decision.
Each outcome is a whole program, communication passes included, and its step time decides. Nothing that a user has said
is overruled: only the order changes in which it spreads.

At last products may be shared along dimensions that nothing else is split along (two all-to-alls instead of a gather),
or by axes that nothing brings to them: what that costs further on shows only in the whole, too.

The search is a greedy descent. Orders that propagate alike are one; sorts at whose contests next to nothing is sent
are left alone; and the equations walked over again are limited, so that large programs are planned about as fast as
without it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import JaxprEqn, Var
from meshwright.sharding.rule import REPLICATED, ShardingRule
from meshwright.spmd.factors import factor_axes_of
from meshwright.spmd.memory.predict import predict
from meshwright.spmd.order import Order
from meshwright.spmd.origin import Sort
from meshwright.spmd.partition.idle import shares
from meshwright.spmd.propagate import Propagation, scanned
from meshwright.spmd.report import collectives, totals
from meshwright.spmd.steptime.schedule import step_time

if TYPE_CHECKING:
    from meshwright.spmd.partition.record import Partition

#: equations that may be walked over again for one program, and how many orders are tried at least and at most
EQUATIONS, FEWEST, MOST = 20_000, 2, 24
#: equations of the largest program that is walked over once more to share its products along other dimensions
EXCHANGED = 2_500
#: in how many ways it is tried at most to share products along dimensions that nothing brings an axis to
SHARINGS = 4
#: how many sorts of annotations are tried at a time, and what share of what is sent must be at their contests
WIDTH, SHARE = 3, 0.02
#: how much quicker an order must be than the one before it
GAIN = 0.97
#: how much of the time in which the links are busy counts even where it is hidden: schedules are not perfect
HIDDEN = 0.5


@dataclass(frozen=True)
class Planner:
    """How a program is propagated in an order, and partitioned from what was found."""

    propagate: Callable[[Order], Propagation]
    partition: Callable[[Propagation], Partition]


def look_ahead(planner: Planner) -> tuple[Partition, Order]:
    """The program in the order of its annotations that makes it quickest, and that order."""
    return _Search(planner).run()


class _Search:
    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.order = Order()
        outcome = planner.propagate(self.order)
        self.seen = {_signature(outcome)}
        self.best = planner.partition(outcome)
        self.price = price(self.best)
        self.tries = min(MOST, max(FEWEST, EQUATIONS // max(1, len(outcome.origins.eqns))))

    def run(self) -> tuple[Partition, Order]:
        while self.tries > 0 and self.improve():
            pass
        self.exchange()
        self.share()
        return self.best, self.order

    def exchange(self) -> None:
        """Share products along other dimensions too, if that is better."""
        rules = self.best.propagation.rules
        if not totals(self.best.jaxpr.jaxpr)[1] or len(rules) > EXCHANGED or not any(r.is_product for r in rules):
            return
        order = replace(self.order, exchanges=True)
        part = self.planner.partition(self.planner.propagate(order))
        if is_better(part, self.best):
            self.best, self.order = part, order

    def share(self) -> None:
        """Let axes that split nothing of products share them, if that is better."""
        if not totals(self.best.jaxpr.jaxpr)[1] or len(self.best.propagation.rules) > EXCHANGED:
            return
        for share in itertools.islice(shares(self.best), SHARINGS):
            if any(share.rule == known.rule for known in self.order.shares):
                continue
            order = replace(self.order, shares=(*self.order.shares, share))
            part = self.planner.partition(self.planner.propagate(order))
            if is_better(part, self.best) and price(part) <= price(self.best):
                self.best, self.order = part, order

    def improve(self) -> bool:
        """Whether one of the orders next to the best one so far is better; then it takes its place."""
        better: tuple[float, Partition, Order] | None = None
        for order in neighbours(self.best, self.order):
            outcome = self.planner.propagate(order)
            signature = _signature(outcome)
            if signature in self.seen:
                continue
            if not self.tries:
                break
            self.seen.add(signature)
            self.tries -= 1
            part = self.planner.partition(outcome)
            cost = price(part)
            if cost < (better[0] if better else GAIN * self.price):
                better = cost, part, order
        if better is None:
            return False
        self.price, self.best, self.order = better
        return True


def is_better(part: Partition, than: Partition) -> bool:
    """Whether a program sends no more than another, and its time, bytes and peak are less together: a percent of one is
    worth one of another. Starting collectives counts as time."""
    (number, sent), (more, new_sent) = totals(than.jaxpr.jaxpr), totals(part.jaxpr.jaxpr)
    if new_sent > sent:
        return False
    old, new = price(than), price(part) + (more - number) * part.mesh.fabric.start
    held = _peak(part) / max(1, _peak(than))
    return new * new_sent * held < GAIN * old * sent


def price(part: Partition) -> float:
    """The seconds of a step, and a share of those in which the links are busy."""
    time = step_time(part.jaxpr.jaxpr, part.mesh)
    return time.seconds + HIDDEN * time.links


def _peak(part: Partition) -> int:
    return predict(part.jaxpr, part.mesh).peak_bytes


def _signature(propagation: Propagation) -> int:
    atoms = (a for eqn in propagation.origins.eqns for a in (*eqn.invars, *eqn.outvars))
    return hash(tuple(propagation.layout(a) for a in atoms if isinstance(a, Var)))


# --- contests -----------------------------------------------------------------------------------------------
def neighbours(part: Partition, order: Order) -> list[Order]:
    """Orders in which one sort of annotations spreads later or earlier than it does, those at whose contests most is
    sent first; in which slices of loops are split across; and in which one sort comes before all others."""
    sent = contests(part)
    total = totals(part.jaxpr.jaxpr)[1]
    sorts = [sort for sort, there in sent.most_common(WIDTH) if there > SHARE * total]
    toggled = [replace(order, later=order.later ^ {sort}) for sort in sorts]
    if scanned(part.propagation) or order.across:
        toggled.append(replace(order, across=not order.across))
    return toggled + [replace(order, later=frozenset(sent) - {sort}) for sort in sorts]


def contests(part: Partition) -> Counter[Sort]:
    """For each sort of annotations, the bytes sent at equations where another one brings its axis to another factor."""
    sent: Counter[int] = Counter()
    for c in collectives(part.jaxpr.jaxpr, part.mesh):
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
        rule = part.rule
        atoms = [*(eqn.invars[i] for i in part.operands), *(eqn.outvars[i] for i in part.results)]
        places: dict[str, list[tuple[int, Var]]] = {}
        for atom, factors in zip(atoms, (*rule.operands, *rule.results)):
            if isinstance(atom, Var):
                for f, axes in factor_axes_of(propagation.layout(atom).dims, factors, rule, propagation.mesh).items():
                    if rule.factors[f].kind != REPLICATED:
                        for axis in axes:
                            places.setdefault(axis, []).append((f, atom))
        for axis, where in places.items():
            if len({f for f, _ in where}) > 1:
                yield [(var, axis) for _, var in where]
