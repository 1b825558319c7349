"""The candidates among which the partitioner chooses at an equation: which axes split which factors, which sums pass.

They come from the layouts of the operands and the target layouts of the results.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from meshwright.sharding import Layout, joined_reduction
from meshwright.sharding.rule import PARALLEL, REDUCTION, REPLICATED, WINDOW, DimFactors
from meshwright.spmd.factors import Axes, factor_axes_of, join_axes
from meshwright.spmd.partition.question import Question

#: up to this many assignments of a product's axes to its loops, all are tried; beyond it, axes are moved one at a time
DEALT = 64

#: the axes of each factor of an equation's rule
Assignment = tuple[Axes, ...]


def assignments(q: Question) -> Iterator[Assignment]:
    """Candidate axes for every factor.

    Each source takes precedence in turn, completed by the others. Variants drop the axes of one factor, or move the
    axes of a factor that is expensive to split to another factor.
    """
    given: list[tuple[Layout, tuple[DimFactors, ...]]] = []
    remade: list[tuple[Layout, tuple[DimFactors, ...]]] = []
    for operand, factors in zip(q.operands, q.rule.operands):
        (remade if operand.remade else given).extend((version, factors) for version in operand.versions)
    given += [(layout, factors) for layout, factors in zip(q.targets, q.rule.results) if layout is not None]
    # Recomputable operands come last, so that they do not decide ties.
    sources = [factor_axes_of(layout.dims, factors, q.rule, q.mesh) for layout, factors in (*given, *remade)]
    sources = [s for i, s in enumerate(sources) if s and s not in sources[:i]]
    seen: set[Assignment] = set()
    for i in range(len(sources)):
        order = [sources[i], *sources[:i], *sources[i + 1 :]]
        full = _merge(q, order)
        more: Iterable[Assignment] = () if q.unmoved else _moved(q, sources[i], full)
        more = [_merge(q, order, joins=True)] if q.rule.is_product else more
        for variant in (full, *_without_one(full), _merge(q, [sources[i]]), *more):
            # Once the axes of a major factor are dropped, those of a minor one may no longer form blocks.
            if variant not in seen and _fits(q, variant):
                seen.add(variant)
                yield variant
    empty: Assignment = ((),) * len(q.rule.factors)
    if empty not in seen:
        yield empty


def _without_one(assignment: Assignment) -> Iterator[Assignment]:
    for f, axes in enumerate(assignment):
        if axes:
            yield (*assignment[:f], (), *assignment[f + 1 :])


def _moved(q: Question, source: Mapping[int, Axes], full: Assignment) -> Iterator[Assignment]:
    """Assignments in which the axes of a factor that is impossible or expensive to split move to each free factor.

    The operand is then resharded by an all-to-all, which sends a fraction of what a gather would. Indexing rows of one
    operand by others along a split dimension is also expensive: it needs an all-reduce of results that are mostly zero.
    So is adding split rows at indices.
    """
    indexed = len(q.operands) > 1 and not q.rule.is_product
    for f, axes in source.items():
        factor = q.rule.factors[f]
        picks = factor.kind == REDUCTION and indexed and (q.rule.joins or len(q.rule.operand_dims(f)) == 1)
        # The minor factor of merged dimensions, whose tiles would not be blocks of the merged dimension.
        merged = factor.kind == PARALLEL and not full[f]
        if factor.kind != REPLICATED and factor.passes is None and not picks and not merged:
            continue
        rest = tuple(() if i == f else other for i, other in enumerate(full))
        if any(a in other for other in rest for a in axes):
            continue
        mates = {g for dims in (*q.rule.operands, *q.rule.results) for fs in dims if f in fs for g in fs}
        # Factors merged with this one first, then unsplit ones.
        for g in sorted(range(len(rest)), key=lambda g: (not merged or g not in mates, bool(rest[g]))):
            other, both = q.rule.factors[g], (*rest[g], *axes)
            free = other.kind == PARALLEL or (other.kind == WINDOW and other.passes is None)
            if g != f and free and q.mesh.sizes(both) <= other.size:
                yield (*rest[:g], both, *rest[g + 1 :])


def on_other_loops(q: Question, assignment: Assignment) -> Iterator[Assignment]:
    """Assignments with the axes of a product on any of its loops.

    All-to-alls of an operand and of the result can send less than a gather of the operand or a reduction of the result.
    """
    names = dict.fromkeys(q.mesh.axis_of(a) for axes in assignment for a in axes)
    used = [tuple(a for axes in assignment for a in axes if q.mesh.axis_of(a) == name) for name in names]
    loops = [f for f, factor in enumerate(q.rule.factors) if factor.kind in (PARALLEL, REDUCTION)]
    # The number of ways to distribute the axes over the loops, counting their order.
    if math.prod(range(len(loops), len(loops) + len(used))) > DEALT:
        yield from _one_on_another_loop(q, assignment, loops)
    else:
        for order in itertools.permutations(used):
            for places in itertools.product(loops, repeat=len(used)):
                yield from _dealt(q, order, places)
    yield from _in_two(q, assignment, loops)


def _dealt(q: Question, order: Sequence[Axes], places: Sequence[int]) -> Iterator[Assignment]:
    """The assignment of these axes, in this order, to these factors, if it fits."""
    rest: list[Axes] = [()] * len(q.rule.factors)
    for axes, f in zip(order, places):
        rest[f] = (*rest[f], *axes)
    if all(q.mesh.sizes(rest[f]) <= q.rule.factors[f].size for f in places) and _fits(q, rest):
        yield tuple(rest)


def _in_two(q: Question, assignment: Assignment, loops: Sequence[int]) -> Iterator[Assignment]:
    """Assignments that distribute the axes of a reduction over two other loops: major axes to one, minor to the other.

    Tiles of the result that are closer to square need smaller parts of the operands.
    """
    for f, axes in enumerate(assignment):
        if q.rule.factors[f].kind == REDUCTION:
            for cut, (g, h) in itertools.product(range(1, len(axes)), itertools.permutations(loops, 2)):
                if f not in (g, h):
                    rest = list(assignment)
                    rest[f], rest[g], rest[h] = (), (*rest[g], *axes[:cut]), (*rest[h], *axes[cut:])
                    if all(q.mesh.sizes(rest[i]) <= q.rule.factors[i].size for i in (g, h)) and _fits(q, rest):
                        yield tuple(rest)


def _one_on_another_loop(q: Question, assignment: Assignment, loops: Sequence[int]) -> Iterator[Assignment]:
    """Assignments that move all axes of one loop, or one mesh axis of them, to another loop."""
    for f, axes in enumerate(assignment):
        names = list(dict.fromkeys(q.mesh.axis_of(a) for a in axes))
        parts = [axes, *(tuple(a for a in axes if q.mesh.axis_of(a) == n) for n in names if len(names) > 1)]
        for part, g in itertools.product(parts, loops):
            if part and g != f:
                rest = list(assignment)
                rest[f] = tuple(a for a in axes if a not in part)
                rest[g] = (*rest[g], *part)
                if q.mesh.sizes(rest[g]) <= q.rule.factors[g].size and _fits(q, rest):
                    yield tuple(rest)


def _merge(q: Question, sources: Sequence[Mapping[int, Axes]], joins: bool = False) -> Assignment:
    """Each factor's axes, from the first source that has any or with ``joins`` from all sources, as far as they fit."""
    assigned: list[Axes] = [()] * len(q.rule.factors)
    taken: set[str] = set()
    for source in sources:
        for f, axes in source.items():
            factor, before = q.rule.factors[f], assigned[f]
            if (before and not joins) or factor.kind == REPLICATED or factor.size == 1:
                continue
            left = [axis for axis in axes if axis not in taken]
            free = left if joins else list(itertools.takewhile(lambda axis: axis not in taken, axes))
            while free and q.mesh.sizes((*before, *free)) > factor.size:
                free.pop()
            if free:
                assigned[f] = (*before, *free)
                if _fits(q, assigned):
                    taken.update(free)
                else:
                    assigned[f] = before
    return tuple(assigned)


def _fits(q: Question, assigned: Sequence[Axes]) -> bool:
    merged = q.rule.merged_dims
    if not merged:
        return True
    sizes = [f.size for f in q.rule.factors]
    return all(join_axes(fs, sizes, assigned, q.mesh)[1] for fs in merged)


class Passing(NamedTuple):
    """Partial sums that pass through an equation: over which axes, the operands that carry them, and their kind.

    ``joins``: the axes are those that split the equation's own reduction, whose terms are added to the sums."""

    axes: Axes = ()
    operands: tuple[int, ...] = ()
    kind: str = ""
    joins: bool = False


def passing(q: Question, assignment: Assignment) -> Iterator[Passing]:
    """The partial sums that may pass through the equation.

    The order decides ties: the collective is deferred if every operand of a group is already partial, and done before
    the equation if some operand would have to be made partial.
    """
    yield from _joining(q, assignment)
    used = {a for axes in assignment for a in axes}
    ready: list[Passing] = []
    mixed: list[Passing] = []
    for group in q.linear_in:
        for version in {v: None for o in group for v in q.operands[o].versions if v.partial}:
            free, kind = tuple(a for a in version.partial if a not in used), version.reduction
            if free and (q.moves_only or kind == "sum" or (kind == "masked" and group in q.masked_in)):
                everywhere = all(any(_is_terms_of(v, version) for v in q.operands[o].versions) for o in group)
                (ready if everywhere else mixed).append(Passing(free, group, kind))
    yield from ready
    yield Passing()
    yield from mixed


def _joining(q: Question, assignment: Assignment) -> Iterator[Passing]:
    """Partial sums over the very axes that split the equation's reduction, to which its own terms are added."""
    over = reduced_axes(q, assignment)
    for o in q.rule.joins if over else ():
        for version in q.operands[o].versions:
            if set(version.partial) == set(over):
                yield Passing(version.partial, (o,), version.reduction, joins=True)


def reduced_axes(q: Question, assignment: Assignment) -> Axes:
    """The axes that split factors over which the equation reduces."""
    return tuple(a for f, axes in zip(q.rule.factors, assignment) if f.kind == REDUCTION for a in axes)


def _is_terms_of(layout: Layout, like: Layout) -> bool:
    """Whether ``layout`` is partial over the axes of ``like``, and its reduction can be treated as that of ``like``."""
    return layout.partial == like.partial and joined_reduction(layout.reduction, like.reduction) == like.reduction
