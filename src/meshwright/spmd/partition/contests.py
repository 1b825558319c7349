"""Annotations that conflict, and other orders in which they could spread.

Annotations conflict at an equation if each would place the same mesh axis on a different factor, or other axes on the
same one. Propagation decides for one of them: that which spreads first. Annotations of equal type and layout (as in
repeated layers) are one sort, and one decision. Sorts whose conflicts cause almost no communication are skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from meshwright.ir.jaxpr import Atom
from meshwright.spmd.origin import Origins, Sort
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.propagate import clashes_at, contests_at, scanned
from meshwright.spmd.report import atoms_joined, collectives, sent_for_equations, totals
from meshwright.spmd.strategy import FIRST, LARGEST, Strategy

#: in programs with more equations, only what is sent at conflicts counts, and not what they cause elsewhere
CAUSED = 1_000
#: how many sorts are tried one after the other, later and then first; the greatest number of sorts, and the least
#: fraction of all bytes that must be sent at their conflicts, or because of them
WIDTH, SORTS, SHARE = 3, 9, 0.02


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
