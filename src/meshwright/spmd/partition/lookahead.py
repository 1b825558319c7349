"""Lookahead: the search for the strategy with which a program is partitioned.

Annotations conflict at an equation if each would place the same mesh axis on a different factor, or other axes on the
same one. Propagation resolves the conflict in favour of one of them, but the cost of that only shows in the rest of the
program. So the program is partitioned both ways: for each conflict, the annotations of one sort propagate after all
others, or before. Annotations of equal type and layout (as in repeated layers) are one sort, and one decision. The step
times of the resulting programs, after the communication passes, are compared. No annotation is overridden: only the
order of propagation changes.

The search then tries more changes whose cost also shows only in the whole program: leaving results as they were
computed where a dimension had to be whole for that (sorts), splitting values that one annotation reaches along several
dimensions along another one of them, splitting products along dimensions that nothing else is split along (two
all-to-alls instead of a gather), splitting them over axes that they do not use yet, resharding values in the layouts
that are best for all equations of the same form together, leaving whole what operands would be moved to split,
gathering what loops do not change once before them, completing the sums that loops stack in each step, and keeping sums
in tiles.
Products are split with and without the first of these, since either may be better.

The search is a greedy descent. Strategies that propagate to the same layouts count as one. Sorts whose conflicts cause
almost no communication are skipped. A budget of equations limits how often large programs are partitioned, so that
planning them takes about as long as without a search.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from meshwright.core.source import SourceLocation
from meshwright.ir.jaxpr import Atom
from meshwright.sharding.rule import ShardingRule
from meshwright.spmd.origin import Origins, Sort
from meshwright.spmd.partition.attempt import EQUAL, GAIN, Attempt
from meshwright.spmd.partition.choose import choose
from meshwright.spmd.partition.idle import shares
from meshwright.spmd.partition.planner import Planner
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.partition.turned import turns
from meshwright.spmd.passes.scattered_sums import has_large_sums
from meshwright.spmd.propagate import Propagation, clashes_at, contests_at, scanned
from meshwright.spmd.report import atoms_joined, collectives, sent_for_equations, totals
from meshwright.spmd.strategy import AS_WRITTEN, FIRST, LARGEST, Strategy

#: budget of equations to partition again per program; the least and the greatest number of strategies to try
EQUATIONS, FEWEST, MOST = 20_000, 2, 24
#: of programs with more equations, only the order in which annotations spread and how sums are completed is searched
SEARCHED = 2_500
#: in programs with more equations, only what is sent at conflicts counts, and not what they cause elsewhere
CAUSED = 1_000
#: programs with more equations do not keep sums in tiles
TILED = 10_000
#: the greatest number of attempts to share products, and the factor by which they may increase the bytes sent
SHARINGS, SHARED_BYTES = 6, 2.0
#: the greatest number of attempts to split values along another dimension that an axis reaches
TURNINGS = 6
#: after how many turns that are much better further ones are tried
ROUNDS = 2
#: the greatest number of those where products are split along other dimensions
MOVED = 2
#: products may be split along other dimensions if that costs at most this many times as much before values are, too
NEAR = 1.3
#: how many sorts are tried one after the other, later and then first; the greatest number of sorts, and the least
#: fraction of all bytes that must be sent at their conflicts, or because of them
WIDTH, SORTS, SHARE = 3, 9, 0.02
#: the greatest number of strategies to try before moving to the best: where weights rank first, those in which they
#: wait often propagate to the same layouts, and leave some for the activations that they contend with
NEIGHBOURS = 8
#: the factor by which a step may take longer for less that is sent or held
LONGER = 1.05
#: the factor by which the operations of a device may increase where values are left whole
REPEATED = 1.05
#: the factor by which sums in tiles may increase the bytes sent: allows for the gradients of norm weights
MORE_BYTES = 1.01


class Search:
    """The search for the best strategy for a program; ``as_written`` is the program without any."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        outcome = planner.propagate(AS_WRITTEN)
        self.seen = {_signature(outcome)}
        self.best = self.as_written = Attempt(planner.partition(outcome))
        #: the best attempt without products that are split along dimensions that nothing else is split along
        self.unexchanged: Attempt | None = None
        self.tries = min(MOST, max(FEWEST, EQUATIONS // max(1, len(outcome.origins.eqns))))

    def run(self) -> Attempt:
        """The program partitioned with the best strategy that is found."""
        while self.tries > 0 and self.improve():
            pass
        plain = self.best
        self.stay()
        self.refine()
        if self.best.strategy.stays:
            # What repeats work, or has to be moved later, may be the better start all the same, or not.
            stayed, self.best, self.unexchanged = self.best, plain, None
            self.refine()
            self.best = self.best if self.best.is_better(stayed, SHARED_BYTES, gain=1) else stayed
        return self.best

    def refine(self) -> None:
        """Change what shows only in the whole program, one thing after the other, as long as that is better."""
        unturned = self.best
        self.turn()
        self.split_products()
        if self.best.strategy.turns:
            turned, plain = self.best, self.unexchanged
            self.best = unturned
            self.split_products()
            if self.best.price > turned.price or not self.best.is_better(turned, SHARED_BYTES):
                self.best, self.unexchanged = turned, plain
        self.reshard_together()
        self.leave_whole()
        self.gather_once()
        self.complete_in_steps()
        self.keep_tiles()

    def stay(self) -> None:
        """Leave results as they are computed where operands are moved to have a dimension whole, if that is better."""
        part = self.best.part
        if self.best.sent[1] and len(part.propagation.rules) <= SEARCHED:
            ways = (replace(part.strategy, stays=rules) for rules in dict.fromkeys(moved_for(part)) if rules)
            for other in self.attempts(ways, 2):
                self.best = other if other.is_better(self.best) and other.price <= self.best.price else self.best

    def turn(self, left: int = TURNINGS, also_unmoved: bool = True) -> None:
        """Split values that one annotation reaches along several dimensions along another one, if that is better, and
        what products or reshapes end at (see :func:`~meshwright.spmd.partition.turned.turns`)."""
        rounds = ROUNDS
        while left > 0 and self.best.sent[1] and len(self.best.part.propagation.rules) <= SEARCHED:
            found = turns(self.best.part, also_unmoved)
            ways = (replace(self.best.strategy, turns=(*self.best.strategy.turns, t)) for t in found)
            tried = self.attempts(ways, left)
            left -= len(tried)
            better = [c for c in tried if c.price <= self.best.price and c.is_better(self.best, gain=1)]
            if not better:
                return
            before, self.best = self.best, min(better, key=lambda c: c.price_with_starts)
            # Pencils are several turns, each of which shows its worth.
            if self.best.price < GAIN * before.price and rounds:
                left, rounds = max(left, WIDTH), rounds - 1

    def split_products(self) -> None:
        """Split products along other dimensions and over other axes, if that is better."""
        self.exchange()
        self.share()

    def turn_moved(self) -> None:
        """Split values along the dimensions along which products are, where these are split unevenly or evenly."""
        part = self.best.part
        self.turn(MOVED, also_unmoved=False)
        if any(choose(q).is_uneven for q in dict.fromkeys(part.questions)):
            turned = self.best
            strategy = replace(part.strategy, evenly=True)
            self.best = Attempt(self.planner.partition(replace(part.propagation, strategy=strategy)))
            self.turn(MOVED, also_unmoved=False)
            if self.best.price > turned.price or not self.best.is_better(turned):
                self.best = turned

    def exchange(self) -> None:
        """Share products along other dimensions too, if that is better, at least where values are split so as well."""
        before = self.best
        other = self.reconsidered(before, replace(before.strategy, exchanges=True))
        if other is not None and other.costs < NEAR * before.costs:
            self.best = other
            self.turn_moved()
            if not self.best.is_better(before):
                self.best = before
        self.unexchanged = None if self.best is before else before

    def reshard_together(self) -> None:
        """Reshard values as is best for all equations of the same form together, if that is better and takes no
        longer."""
        before = self.best
        self.reconsider(before, replace(before.strategy, together=True))
        if self.best.price_with_starts > before.price_with_starts:
            self.best = before

    def leave_whole(self) -> None:
        """Do not split what no annotation splits where operands are moved for it, if that is better, takes no longer
        and repeats little.

        What follows may be split so as well, until it is needed whole: tables that are filled and read by index."""
        before = self.best
        self.reconsider(before, replace(before.strategy, whole_results=True))
        longer = self.best.times[0] > before.times[0] or self.best.price_with_starts > before.price_with_starts
        if longer or self.best.work > REPEATED * before.work:
            self.best = before

    def gather_once(self) -> None:
        """Gather what loops do not change before them, if that is better.

        What is gathered in each step may have been the reason for another order of annotations, so this is also tried
        without one."""
        for attempt in [self.best, self.as_written] if self.best.strategy.later else [self.best]:
            self.reconsider(attempt, replace(attempt.strategy, once=True))

    def reconsider(self, attempt: Attempt, strategy: Strategy) -> None:
        """Choose anew how to compute each equation, with a strategy that propagates to the same layouts, if that is
        better."""
        other = self.reconsidered(attempt, strategy)
        if other is not None and other.is_better(self.best):
            self.best = other

    def reconsidered(self, attempt: Attempt, strategy: Strategy) -> Attempt | None:
        """The attempt with a strategy that propagates to the same layouts; None if all equations would be computed as
        they are."""
        part = attempt.part
        if not attempt.sent[1] or len(part.propagation.rules) > SEARCHED:
            return None
        if all(choose(q) == choose(q.under(strategy)) for q in dict.fromkeys(part.questions)):
            return None
        return Attempt(self.planner.partition(replace(part.propagation, strategy=strategy)))

    def share(self) -> None:
        """Split products over axes that they do not use yet, along the best dimension, if that is better."""
        left, asked = SHARINGS, set[ShardingRule]()
        while left > 0 and self.best.sent[1] and len(self.best.part.propagation.rules) <= SEARCHED:
            kinds = itertools.groupby(shares(self.best.part), lambda share: share.rule)
            ways = next((list(ways) for rule, ways in kinds if rule not in asked), [])
            if not ways:
                return
            asked.add(ways[0].rule)
            strategies = (replace(self.best.strategy, shares=(*self.best.strategy.shares, way)) for way in ways[:left])
            tried = self.attempts(strategies, left)
            left -= len(tried)
            better = [c for c in tried if c.price <= self.best.price and c.is_better(self.best, SHARED_BYTES)]
            self.best = min(better, key=lambda c: c.price, default=self.best)

    def attempts(self, strategies: Iterable[Strategy], most: int) -> list[Attempt]:
        """The program partitioned with each strategy, ``most`` of them, without layouts that were seen before."""
        return [Attempt(self.planner.partition(found)) for found in itertools.islice(self.unseen(strategies), most)]

    def unseen(self, strategies: Iterable[Strategy]) -> Iterator[Propagation]:
        for strategy in strategies:
            outcome = self.planner.propagate(strategy)
            if (signature := _signature(outcome)) not in self.seen:
                self.seen.add(signature)
                yield outcome

    def complete_in_steps(self) -> None:
        """Complete sums that loops stack in each of their steps, if that is better."""
        part = self.best.part
        if not part.stacks_sums:
            return
        strategy = replace(part.strategy, in_steps=True)
        other = Attempt(self.planner.partition(replace(part.propagation, strategy=strategy)))
        if other.price_with_starts < LONGER * self.best.price_with_starts and other.is_better(self.best):
            self.best = other

    def keep_tiles(self) -> None:
        """Keep sums in tiles until a use needs them whole, if that is better. Of the ways with and without exchanges,
        the quicker one is taken if it is as good, or much quicker."""
        plain = self.unexchanged
        self.best = self.in_tiles(self.best) or self.best
        if plain is None:
            return
        other = self.in_tiles(plain) or plain
        equal = other.costs <= self.best.costs * EQUAL and other.price < self.best.price
        if equal or self.best.price > LONGER * other.price:
            self.best = other

    def in_tiles(self, best: Attempt) -> Attempt | None:
        """The attempt with sums in tiles, if that is better."""
        part = best.part
        if len(part.propagation.rules) > TILED or not has_large_sums(part.jaxpr.jaxpr):
            return None
        other = Attempt(self.planner.in_tiles(part))
        # The memory estimate is accurate enough for the differences between these two programs.
        cheaper = other.price * other.estimate < GAIN * best.price * best.estimate
        return other if cheaper and other.is_better(best, MORE_BYTES) else None

    def improve(self) -> bool:
        """Move to the best neighbour of the current strategy that is cheaper and takes hardly longer; False if none."""
        tried = self.attempts(neighbours(self.best.part), min(self.tries, NEIGHBOURS))
        self.tries -= len(tried)
        quick = (c for c in tried if c.times[0] <= LONGER * self.best.times[0])
        better = min(quick, key=lambda c: c.price, default=self.best)
        if better.price >= GAIN * self.best.price:
            return False
        self.best = better
        return True


def _signature(propagation: Propagation) -> int:
    return hash(frozenset((v, p.dims) for v, p in propagation.placements.items() if any(p.dims)))


# --- contests -----------------------------------------------------------------------------------------------
def neighbours(part: Partition) -> list[Strategy]:
    """Strategies that differ in one respect from that of ``part``: a sort of annotations propagates later or earlier
    (those with the most bytes sent at their conflicts first), slices of loops are split along another dimension, or a
    sort propagates first.
    """
    strategy, sent = part.strategy, contests(part)
    total = totals(part.jaxpr.jaxpr)[1]
    sorts = [sort for sort, there in sent.most_common() if there > SHARE * total]
    if len(sent) > len(sorts) and len(part.propagation.rules) <= CAUSED:
        because = caused(part)
        others = (s for s in sent if s not in sorts and because[s] > SHARE * total)
        sorts += sorted(others, key=lambda s: -because[s])
    ways = ("", LARGEST, FIRST) if scanned(part.propagation) or strategy.across else ()
    across = [replace(strategy, across=way) for way in ways if way != strategy.across]
    found: list[Strategy] = []
    for at in range(0, max(1, min(len(sorts), SORTS)), WIDTH):
        some = sorts[at : at + WIDTH]
        found += [replace(strategy, later=strategy.later ^ {sort}) for sort in some]
        found += across if at == 0 else []
        found += [replace(strategy, later=frozenset(part.propagation.origins.sorts) - {sort}) for sort in some]
    return found


def contests(part: Partition) -> Counter[Sort]:
    """For each sort of annotations, the bytes sent at equations where it conflicts with another sort.

    They conflict over an axis, which each brings to another factor, or over a factor, to which each brings other axes.

    Between annotations of different priorities there is no conflict: the user said which one goes first.
    """
    sent = sent_for_equations(part.jaxpr.jaxpr)
    bytes_by_sort: Counter[Sort] = Counter()
    origins = part.propagation.origins
    for eqn, rule in zip(origins.eqns, part.propagation.rules):
        met: dict[Sort, None] = {}  # in an order that all processes agree on: ties are decided by it
        for _, by_axis in contests_at(eqn, rule, part.propagation):
            for axis, by_factor in by_axis.items():
                met |= _in_conflict(origins, ((var, axis) for values in by_factor.values() for var in values))
        for by_axes in clashes_at(eqn, rule, part.propagation):
            met |= _in_conflict(origins, ((var, axes[0]) for axes, values in by_axes.items() for var in values))
        for sort in met:
            bytes_by_sort[sort] += sent[id(eqn)]
    return bytes_by_sort


def _in_conflict(origins: Origins, brought: Iterable[tuple[Atom, str]]) -> dict[Sort, None]:
    """The sorts of annotations that brought axes to values, if there are several, of one priority."""
    found = ((origins.of(atom, axis), axis) for atom, axis in brought)
    causes = {(c.sort, c.priority_of(axis)): None for c, axis in found if c is not None and c.sort is not None}
    one = len(causes) > 1 and len({priority for _, priority in causes}) == 1
    return {sort: None for sort, _ in causes if sort is not None} if one else {}


def moved_for(part: Partition) -> Iterator[frozenset[ShardingRule]]:
    """The rules of equations for which much is sent along dimensions of which splitting has a price.

    Several may stand for one of them (each transforms a dimension), and what follows it be what they are moved for. So
    bytes count first by op and where it comes from, then by the latter alone.
    """
    ops, places = Counter[tuple[str, SourceLocation]](), Counter[SourceLocation]()
    for c in collectives(part.jaxpr.jaxpr):
        for op, place in {(r.user.op.name, r.user.source) for r in c.reasons if r.user is not None}:
            ops[op, place] += c.bytes_sent
            places[place] += c.bytes_sent
    priced = [
        (eqn, rule)
        for eqn, rule in zip(part.propagation.origins.eqns, part.propagation.rules)
        if rule.with_whole_windows != rule
    ]
    least = SHARE * totals(part.jaxpr.jaxpr)[1]
    yield frozenset(rule for eqn, rule in priced if ops[eqn.op.name, eqn.source] > least)
    yield frozenset(rule for eqn, rule in priced if places[eqn.source] > least)


def caused(part: Partition) -> Counter[Sort]:
    """For each sort of annotations, the bytes sent because of axes that it brought to a value."""
    bytes_by_sort: Counter[Sort] = Counter()
    origins = part.propagation.origins
    for c in collectives(part.jaxpr.jaxpr):
        values = {id(r.value): r.value for r in c.reasons if r.value is not None}.values()
        axes = list(atoms_joined(c, part.mesh))
        causes = (origins.of(value, axis) for value in values for axis in axes)
        for sort in {cause.sort for cause in causes if cause is not None and cause.sort is not None}:
            bytes_by_sort[sort] += c.bytes_sent
    return bytes_by_sort
