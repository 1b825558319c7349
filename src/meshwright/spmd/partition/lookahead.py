"""Lookahead: the search for the strategy with which a program is partitioned.

What annotations leave open is decided by a strategy (:mod:`meshwright.spmd.strategy`), whose cost only shows in the
whole program. So the program is partitioned with several, and the step times of the resulting programs, after the
communication passes, are compared. No annotation is overridden.

The order in which annotations spread comes first, where they conflict (:mod:`~meshwright.spmd.partition.contests`). The
search then tries, one after the other, leaving results as they were computed where a dimension had to be whole for that
(sorts), splitting values that one annotation reaches along several dimensions along another one of them
(:mod:`~meshwright.spmd.partition.turned`), splitting products along dimensions that nothing else is split along (two
all-to-alls instead of a gather), splitting them over axes that they do not use yet
(:mod:`~meshwright.spmd.partition.idle`), resharding values in the layouts that are best for all equations of the same
form together, leaving whole what operands would be moved to split, gathering what loops do not change once before them,
completing the sums that loops stack in each step, keeping sums in tiles, splitting all else that takes long over axes
that it does not use yet, and splitting what loops carry and what something is sent for along any other dimension.
Products are split with and without the values turned before, since either may be better.

The search is a greedy descent. Strategies that propagate to the same layouts count as one. A budget of equations limits
how often large programs are partitioned, so that planning them takes about as long as without a search.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from meshwright.sharding.rule import ShardingRule
from meshwright.spmd.partition.attempt import EQUAL, GAIN, Attempt
from meshwright.spmd.partition.choose import choose
from meshwright.spmd.partition.contests import neighbours
from meshwright.spmd.partition.idle import seconds_alone, shares
from meshwright.spmd.partition.planner import Planner
from meshwright.spmd.partition.turned import carried, elsewhere, stays, turns
from meshwright.spmd.passes.scattered_sums import has_large_sums
from meshwright.spmd.propagate import Propagation
from meshwright.spmd.strategy import AS_WRITTEN, Strategy

#: budget of equations to partition again per program; the least and the greatest number of strategies to try
EQUATIONS, FEWEST, MOST = 20_000, 2, 24
#: programs with more equations do not keep sums in tiles
TILED = 10_000
#: the greatest number of attempts to share products, and the factor by which they may increase the bytes sent
SHARINGS, SHARED_BYTES = 6, 2.0
#: the greatest number of attempts to split values along another dimension that an axis reaches
TURNINGS = 6
#: the greatest number of attempts to split along any other dimension what something is sent for, and the least part of
#: a step in which links have to be busy for that
ELSEWHERE, BUSY = 4, 0.05
#: budget of equations to partition again for that
TURNED_AGAIN = 2_500
#: after how many turns that are much better further ones are tried, and how many of these at least
ROUNDS, FURTHER = 2, 3
#: the greatest number of those where products are split along other dimensions
MOVED = 2
#: the greatest number of attempts to leave results as they were computed
STAYS = 2
#: products may be split along other dimensions if that costs at most this many times as much before values are, too
NEAR = 1.3
#: the greatest number of strategies to try before moving to the best: where weights rank first, those in which they
#: wait often propagate to the same layouts, and leave some for the activations that they contend with
NEIGHBOURS = 8
#: the factor by which a step may take longer for less that is sent or held
LONGER = 1.05
#: the factor by which the operations of a device may increase where values are left whole
REPEATED = 1.05
#: the factor by which the peak may increase where what is sent for equations is split along other dimensions
HELD = 1.1
#: the factor by which sums in tiles may increase the bytes sent: allows for the gradients of norm weights
MORE_BYTES = 1.01


class Search:
    """The search for the best strategy for a program; ``as_written`` is the program without any.

    Each step takes the best attempt so far, and returns it or a better one.
    """

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        outcome = planner.propagate(AS_WRITTEN)
        #: what strategies propagated to that were tried
        self.seen = {_signature(outcome)}
        self.as_written = Attempt(planner.partition(outcome))

    @cached_property
    def alone(self) -> dict[int, float]:
        """The seconds that one device takes for each equation of the program, if it computes all of it."""
        return seconds_alone(self.planner.jaxpr, self.planner.mesh)

    def run(self) -> Attempt:
        """The program partitioned with the best strategy that is found."""
        ordered = self.order(self.as_written)
        best = self.refine(self.stay(ordered))
        if best.strategy.stays:
            # What repeats work, or has to be moved later, may be the better start all the same, or not.
            other = self.refine(ordered)
            best = other if other.is_better(best, SHARED_BYTES, gain=1) else best
        return self.turn_elsewhere(best)

    def refine(self, unturned: Attempt) -> Attempt:
        """Change what shows only in the whole program, one thing after the other, as long as that is better."""
        best, plainer = self.split_products(self.turn(unturned))
        if best.strategy.turns:
            other, other_plainer = self.split_products(unturned)
            if other.price <= best.price and other.is_better(best, SHARED_BYTES):
                best, plainer = other, other_plainer
        for step in (self.reshard_together, self.leave_whole, self.gather_once, self.complete_in_steps):
            best = step(best)
        return self.carry_otherwise(self.share(self.keep_tiles(best, plainer), leading=False))

    # --- how axes spread ------------------------------------------------------------------------------------
    def order(self, best: Attempt) -> Attempt:
        """Let annotations spread in another order: move to the best neighbour that is cheaper and takes hardly longer,
        until there is none."""
        left = min(MOST, max(FEWEST, EQUATIONS // max(1, best.num_equations)))
        while left > 0:
            tried = self.attempts(neighbours(best.part), min(left, NEIGHBOURS))
            left -= len(tried)
            quick = [c for c in tried if c.times[0] <= LONGER * best.times[0]]
            better = min(quick, key=lambda c: c.price, default=best)
            if better.price >= GAIN * best.price:
                break
            best = better
        return best

    def stay(self, best: Attempt) -> Attempt:
        """Leave results as they are computed where operands are moved to have a dimension whole, if that is better."""
        if best.is_searchable:
            ways = (replace(best.strategy, stays=rules) for rules in dict.fromkeys(stays(best.part)) if rules)
            for other in self.attempts(ways, STAYS):
                best = other if other.is_better(best) and other.price <= best.price else best
        return best

    def turn(self, best: Attempt, left: int = TURNINGS, also_unmoved: bool = True) -> Attempt:
        """Split values that one annotation reaches along several dimensions along another one, if that is better, and
        what products or reshapes end at (see :func:`~meshwright.spmd.partition.turned.turns`)."""
        rounds = ROUNDS
        while left > 0 and best.is_searchable:
            now = best.strategy
            ways = (replace(now, turns=(*now.turns, turn)) for turn in turns(best.part, also_unmoved))
            tried = self.attempts(ways, left)
            left -= len(tried)
            better = [c for c in tried if c.price <= best.price and c.is_better(best, gain=1)]
            if not better:
                break
            before, best = best, min(better, key=lambda c: c.price_with_starts)
            # Pencils are several turns, each of which shows its worth.
            if best.price < GAIN * before.price and rounds:
                left, rounds = max(left, FURTHER), rounds - 1
        return best

    # --- products -------------------------------------------------------------------------------------------
    def split_products(self, best: Attempt) -> tuple[Attempt, list[Attempt]]:
        """Split products along other dimensions and over other axes, if that is better; with the attempts before each
        of the two, if it is."""
        exchanged = self.exchange(best)
        shared = self.share(exchanged, leading=True)
        plainer = [best] if exchanged is not best else []
        return shared, [exchanged, *plainer] if shared is not exchanged else plainer

    def exchange(self, best: Attempt) -> Attempt:
        """Share products along other dimensions too, if that is better, at least where values are split so as well."""
        other = self.reconsidered(best, replace(best.strategy, exchanges=True))
        if other is None or other.costs_beside(best) >= NEAR:
            return best
        moved = self.turn(other, MOVED, also_unmoved=False)
        return moved if moved.is_better(best) else best

    def share(self, best: Attempt, leading: bool) -> Attempt:
        """Split products and the like (``leading``), or all else, over axes that they do not use yet, along the best
        dimension, if that is better.

        With products and the like, what is returned may be split, too. For all else, it stays as it is: nobody asked
        for it to be split."""
        left, asked = SHARINGS, set[ShardingRule]()
        while left > 0 and best.is_searchable:
            kinds = itertools.groupby(shares(best.part, best.times[0], self.alone, leading), lambda share: share.rule)
            ways = next((list(ways) for rule, ways in kinds if rule not in asked), [])
            if not ways:
                break
            asked.add(ways[0].rule)
            before = best.strategy
            tried = self.attempts((replace(before, shares=(*before.shares, way)) for way in ways), left)
            left -= len(tried)
            fit = [c for c in tried if leading or c.part.out_layouts == best.part.out_layouts]
            better = [c for c in fit if c.price <= best.price and c.is_better(best, SHARED_BYTES)]
            best = min(better, key=lambda c: c.price, default=best)
        return best

    # --- choices for the layouts found ----------------------------------------------------------------------
    def reshard_together(self, best: Attempt) -> Attempt:
        """Reshard values as is best for all equations of the same form together, if that is better and takes no
        longer."""
        other = self.reconsidered(best, replace(best.strategy, together=True))
        quick = other is not None and other.price_with_starts <= best.price_with_starts
        return other if other is not None and quick and other.is_better(best) else best

    def leave_whole(self, best: Attempt) -> Attempt:
        """Do not split what no annotation splits where operands are moved for it, if that is better, takes no longer
        and repeats little.

        What follows may be split so as well, until it is needed whole: tables that are filled and read by index."""
        other = self.reconsidered(best, replace(best.strategy, whole_results=True))
        if other is None or not other.is_better(best):
            return best
        longer = other.times[0] > LONGER * best.times[0] or other.price_with_starts > best.price_with_starts
        return best if longer or other.work > REPEATED * best.work else other

    def gather_once(self, best: Attempt) -> Attempt:
        """Gather what loops do not change before them, if that is better.

        What is gathered in each step may have been the reason for another order of annotations, so this is also tried
        without one."""
        for attempt in [best, self.as_written] if best.strategy.later else [best]:
            other = self.reconsidered(attempt, replace(attempt.strategy, once=True))
            best = other if other is not None and other.is_better(best) else best
        return best

    def complete_in_steps(self, best: Attempt) -> Attempt:
        """Complete sums that loops stack in each of their steps, if that is better."""
        if not best.part.stacks_sums:
            return best
        other = self.chosen_anew(best, replace(best.strategy, in_steps=True))
        quick = other.price_with_starts < LONGER * best.price_with_starts
        return other if quick and other.is_better(best) else best

    def keep_tiles(self, best: Attempt, plainer: Sequence[Attempt]) -> Attempt:
        """Keep sums in tiles until a use needs them whole, if that is better. Of the ways with products split otherwise
        and without (``plainer``), a quicker one is taken if it is as good, or much quicker."""
        best = self.in_tiles(best)
        for other in map(self.in_tiles, plainer):
            equal = other.costs_beside(best) <= EQUAL and other.price < best.price
            best = other if equal or best.price > LONGER * other.price else best
        return best

    def in_tiles(self, best: Attempt) -> Attempt:
        """The attempt with sums in tiles, if that is better."""
        if best.num_equations > TILED or not has_large_sums(best.part.jaxpr.jaxpr):
            return best
        other = Attempt(self.planner.in_tiles(best.part))
        # The memory estimate is accurate enough for the differences between these two programs.
        cheaper = other.price * other.estimate < GAIN * best.price * best.estimate
        return other if cheaper and other.is_better(best, MORE_BYTES) else best

    def carry_otherwise(self, best: Attempt) -> Attempt:
        """Split what loops carry along other dimensions, if that is better and repeats little."""
        if best.is_searchable:
            now = best.strategy
            ways = (replace(now, turns=(*now.turns, turn)) for turn in carried(best.part))
            for other in self.attempts(ways, MOVED):
                fits = other.price <= best.price and other.work <= REPEATED * best.work
                best = other if fits and other.is_better(best) else best
        return best

    def turn_elsewhere(self, best: Attempt) -> Attempt:
        """Split what something is sent for along another dimension, as what comes before and after it may be, if that
        is better, repeats little and holds little more (weights that are gathered instead of what flows between them).

        Only if links are busy for a noticeable part of a step: there are many ways, and most are no better. Results
        stay as they are: nobody asked for another way to split them."""
        left, rounds = min(ELSEWHERE, TURNED_AGAIN // max(1, best.num_equations)), ROUNDS
        while left > 0 and best.is_searchable and best.share_of_links > BUSY:
            now = best.strategy
            tried = self.attempts((replace(now, turns=(*now.turns, turn)) for turn in elsewhere(best.part)), left)
            left -= len(tried)
            fit = [c for c in tried if c.part.out_layouts == best.part.out_layouts and c.price <= best.price]
            # Peaks are predicted last: for large programs that takes as long as partitioning.
            better = [c for c in fit if c.work <= REPEATED * best.work and c.is_better(best)]
            better = [c for c in better if c.peak <= HELD * best.peak]
            if not better:
                break
            best = min(better, key=lambda c: c.price_with_starts)
            if rounds:
                left, rounds = max(left, FURTHER), rounds - 1
        return best

    # --- attempts -------------------------------------------------------------------------------------------
    def attempts(self, strategies: Iterable[Strategy], most: int) -> list[Attempt]:
        """The program partitioned with each strategy, ``most`` of them, without layouts that were seen before."""
        return [Attempt(self.planner.partition(found)) for found in itertools.islice(self.unseen(strategies), most)]

    def unseen(self, strategies: Iterable[Strategy]) -> Iterator[Propagation]:
        for strategy in strategies:
            outcome = self.planner.propagate(strategy)
            if (signature := _signature(outcome)) not in self.seen:
                self.seen.add(signature)
                yield outcome

    def reconsidered(self, attempt: Attempt, strategy: Strategy) -> Attempt | None:
        """The attempt with a strategy that propagates to the same layouts; None if all equations would be computed as
        they are, or if it is not to be searched."""
        questions = dict.fromkeys(attempt.part.questions) if attempt.is_searchable else ()
        if all(choose(q) == choose(q.under(strategy)) for q in questions):
            return None
        return self.chosen_anew(attempt, strategy)

    def chosen_anew(self, attempt: Attempt, strategy: Strategy) -> Attempt:
        """The program with the layouts of an attempt, and a strategy that propagates to these."""
        return Attempt(self.planner.partition(replace(attempt.part.propagation, strategy=strategy)))


def _signature(propagation: Propagation) -> int:
    return hash(frozenset((v, p.dims) for v, p in propagation.placements.items() if any(p.dims)))
