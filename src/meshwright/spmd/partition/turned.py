"""Equations that an axis reaches along several dimensions because of one annotation, and the other ways to split them.

In ``x[None] - x[:, None]``, the axis that splits the rows of ``x`` reaches both dimensions of the result, which it can
split along one of them only. Propagation takes the first, so that what follows (a sum over one of the dimensions) may
have to be reduced between the devices, although the other would need no communication. No annotation decides that, and
none has to be overridden.

Where operands are moved to compute a product along another dimension than propagation found (attention along a split
dimension), its result is moved back, and what follows is moved again. If axes spread from that dimension, what comes
before is moved once. The same goes for axes along which an operand is gathered, so that devices repeat the product,
and for those by which a weight splits a result that is gathered for what follows: if they split rows instead, the
weight is gathered, as in fully sharded data parallelism.

Axes that split the minor of two dimensions do not reach what a reshape merges these into, whose tiles would not be
blocks, and axes of a dimension not those of its parts of which the first is too small (queries, keys and values). What
follows is then split as other annotations say, or not at all. If the axes split the major one of the two instead, or
another part, for which the operand is moved, they spread from there.

Transforms along a split dimension exchange its tiles for parts of another one, and back. What follows (a product with a
spectrum, the inverse transform) may be computed before they are sent back, if it is split along the other one.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence

from meshwright.core.source import SourceLocation
from meshwright.ir.jaxpr import JaxprEqn, Var
from meshwright.sharding.rule import EXCHANGED, ShardingRule
from meshwright.spmd.factors import Axes
from meshwright.spmd.flatten import is_tie_of_loop
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.propagate import Propagation, contests_at
from meshwright.spmd.reason import Reason
from meshwright.spmd.report import atoms_joined, collectives, sent_for_equations, totals
from meshwright.spmd.strategy import Turn

#: the least share of all bytes that must be sent at equations of a kind for an attempt to split them otherwise
SENT = 0.02
#: the same share for attempts to split them along any other dimension, of which there are more
ELSEWHERE = 0.05
#: the greatest number of equations between a product and one that has its result moved
STEPS = 6


def turns(part: Partition, also_unmoved: bool = True) -> Iterator[Turn]:
    """Other ways to split results that axes reach along several dimensions or were moved to, and with ``also_unmoved``
    those that weights split and what axes end at; those with the most bytes sent there first, and of these the ones
    with the most axes."""
    sent = sent_for_equations(part.jaxpr.jaxpr)
    ways: Counter[Turn] = Counter()
    for eqn, rule in zip(part.propagation.origins.eqns, part.propagation.rules):
        for turn in _ways(eqn, rule, part.propagation) if sent[id(eqn)] else ():
            ways[turn] += sent[id(eqn)]
    more = (_brought(part, sent), _lost(part.propagation), _exchanged(part)) if also_unmoved else ()
    for turn, nbytes in itertools.chain(_moved(part), _repeated(part), *more):
        ways[turn] += nbytes
    least = SENT * sum(sent.values())
    return (turn for turn in sorted(ways, key=lambda t: (-ways[t], -len(t.axes))) if ways[turn] > least)


def stays(part: Partition) -> Iterator[frozenset[ShardingRule]]:
    """The rules of equations for which much is sent along dimensions of which splitting has a price: their results may
    stay as they are computed.

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
    least = SENT * totals(part.jaxpr.jaxpr)[1]
    yield frozenset(rule for eqn, rule in priced if ops[eqn.op.name, eqn.source] > least)
    yield frozenset(rule for eqn, rule in priced if places[eqn.source] > least)


def carried(part: Partition) -> Iterator[Turn]:
    """The axes by which loops split what they carry or read, on its other dimensions, where something is sent in each
    step for what reads it (sums, shifts): it may be moved once instead. Those with the most bytes first."""
    sent, readers, mesh = sent_for_equations(part.jaxpr.jaxpr), _readers(part), part.mesh
    ways: Counter[Turn] = Counter()
    for eqn, rule in zip(part.propagation.origins.eqns, part.propagation.rules):
        if not is_tie_of_loop(eqn):
            continue
        out, dims = eqn.outvars[0], part.propagation.layout(eqn.outvars[0]).dims
        nbytes = max((_sent_after(v, readers, sent) for v in eqn.invars[1:] if isinstance(v, Var)), default=0)
        for at, axes in enumerate(dims) if nbytes else ():
            for dim, own in enumerate(dims) if axes else ():
                if dim != at and out.aval.shape[dim] % mesh.sizes((*own, *axes)) == 0:
                    ways[Turn(rule, axes, 0, dim, moves=True)] += nbytes
    least = SENT * sum(sent.values())
    return (turn for turn, nbytes in ways.most_common() if nbytes > least)


def elsewhere(part: Partition) -> Iterator[Turn]:
    """The axes over which something is sent for an equation, on each other dimension of its result that they divide:
    where operands are moved or come from neighbours, and where parts of sums come from, in turns.

    Of either, those with the most bytes first, of each the first dimension before all others."""
    propagation, mesh = part.propagation, part.mesh
    makers = {v: eqn for eqn in propagation.origins.eqns for v in eqn.outvars}
    rules = {id(eqn): rule for eqn, rule in zip(propagation.origins.eqns, propagation.rules)}
    moved, summed = Counter[Turn](), Counter[Turn]()
    for c in collectives(part.jaxpr.jaxpr):
        joined = frozenset(atoms_joined(c, mesh))
        for ways, eqns in (
            (moved, (r.user for r in c.reasons)),
            (summed, (_summing(r, joined, makers, propagation) for r in c.reasons)),
        ):
            for eqn in {id(e): e for e in eqns if e is not None and id(e) in rules and e.outvars}.values():
                turns = _to_others(eqn, rules[id(eqn)], joined, propagation)
                ways.update(dict.fromkeys(turns, c.bytes_sent))
    least = ELSEWHERE * totals(part.jaxpr.jaxpr)[1]
    lists = ([*_each_first(ways, least)] for ways in (moved, summed))
    return (turn for turns in itertools.zip_longest(*lists) for turn in turns if turn is not None)


def _each_first(ways: Mapping[Turn, int], least: float) -> Sequence[Turn]:
    """The turns with more than so many bytes, those with the most first, the first one of each equation and its axes
    before all second ones."""
    found, count = list[tuple[int, int, Turn]](), Counter[tuple[ShardingRule, Axes]]()
    for turn, nbytes in ways.items():
        if nbytes > least:
            found.append((count[turn.rule, turn.axes], -nbytes, turn))
            count[turn.rule, turn.axes] += 1
    return [turn for *_, turn in sorted(found, key=lambda way: way[:2])]


def _summing(
    reason: Reason, axes: frozenset[str], makers: Mapping[Var, JaxprEqn], propagation: Propagation
) -> JaxprEqn | None:
    """The equation that adds up the parts of sums over ``axes`` that are completed, from which what is needed is made
    element by element."""
    values = dict.fromkeys([reason.value] if reason.before is not None and reason.before.partial else [])
    for _ in range(STEPS):
        eqns = [makers[v] for v in values if isinstance(v, Var) and v in makers]
        for eqn in eqns:
            if any(axes & propagation.layout(a).axes_used for a in eqn.invars):
                return eqn
        values = dict.fromkeys(a for eqn in eqns for a in eqn.invars)
    return None


def _to_others(eqn: JaxprEqn, rule: ShardingRule, joined: frozenset[str], propagation: Propagation) -> Iterator[Turn]:
    """Turns of the axes among ``joined`` that split an operand or the result of an equation to each dimension of the
    result that they divide beside its own axes."""
    shape, dims = eqn.outvars[0].aval.shape, propagation.layout(eqn.outvars[0]).dims
    splits = [axes for a in eqn.invars for axes in propagation.layout(a).dims]
    ends = dict.fromkeys(last for axes in (*splits, *dims) for last in itertools.islice(_ends(axes, joined), 1))
    for axes in ends:
        for dim, factors in enumerate(rule.results[0]):
            turn = Turn(rule, axes, 0, dim, moves=True)
            fits = shape[dim] % propagation.mesh.sizes((*dims[dim], *axes)) == 0
            if fits and rule.is_parallel(factors) and not {*axes} & {*dims[dim]} and turn.of(dims) is not None:
                yield turn


def _ways(eqn: JaxprEqn, rule: ShardingRule, propagation: Propagation) -> Iterator[Turn]:
    """For each result and dimension, the axes that also reach it along another dimension, by which it is not split."""
    for part, by_axis in contests_at(eqn, rule, propagation):
        own = {axis: by_factor for axis, by_factor in by_axis.items() if _is_of_one_sort(by_factor, axis, propagation)}
        for result, results in zip(part.results, part.rule.results):
            dims = propagation.layout(eqn.outvars[result]).dims
            for dim, factors in enumerate(results):
                if part.rule.is_parallel(factors):
                    here = {axis for axis, by_factor in own.items() if factors[0] in by_factor}
                    others = dims[:dim] + dims[dim + 1 :]
                    yield from (Turn(rule, last, result, dim) for axes in others for last in _ends(axes, here))


def _moved(part: Partition) -> Iterator[tuple[Turn, int]]:
    """The axes by which results of products were split along another dimension than they should be, and the bytes that
    a device sends to move the result back."""
    for eqn, rule, layout, target in part.placed:
        aval = eqn.outvars[0].aval
        nbytes = aval.dtype.itemsize * math.prod(layout.local_shape(aval.shape, part.mesh))
        for dim, (axes, wanted) in enumerate(zip(layout.dims, target.dims)):
            more = axes[len(wanted) :] if axes[: len(wanted)] == wanted else ()
            if more and any(other[-len(more) :] == more for d, other in enumerate(target.dims) if d != dim):
                yield Turn(rule, more, 0, dim, moves=True), nbytes


def _repeated(part: Partition) -> Iterator[tuple[Turn, int]]:
    """The axes of operands of products that were gathered, so that devices repeat these, on each dimension of the
    result, and its bytes on a device."""
    for eqn, rule, layout, _ in part.placed:
        brought = {axis for a in eqn.invars for axis in part.propagation.layout(a).axes_used}
        idle = tuple(a for a in part.mesh.atoms if a in brought - layout.axes_used)
        aval = eqn.outvars[0].aval
        shape = layout.local_shape(aval.shape, part.mesh)
        for dim, factors in enumerate(rule.results[0]) if idle else ():
            if rule.is_parallel(factors) and shape[dim] >= part.mesh.sizes(idle):
                yield Turn(rule, idle, 0, dim, moves=True), aval.dtype.itemsize * math.prod(shape)


def _brought(part: Partition, sent: Mapping[int, int]) -> Iterator[tuple[Turn, int]]:
    """The axes by which the smaller operand of a product splits its result, along dimensions of the larger operand, and
    the bytes of the result on a device: where what reads the result moves it, the operand may be moved instead."""
    readers = _readers(part)
    for eqn, rule, layout, _ in part.placed:
        out, operands = eqn.outvars[0], [{f for factors in dims for f in factors} for dims in rule.operands]
        small = min(range(2), key=lambda n: eqn.invars[n].aval.nbytes)
        own, others = operands[small] - operands[1 - small], operands[1 - small] - operands[small]
        shape = layout.local_shape(out.aval.shape, part.mesh)
        nbytes = out.aval.dtype.itemsize * math.prod(shape)
        axes = next((axes for axes, factors in zip(layout.dims, rule.results[0]) if axes and own & set(factors)), ())
        tiles = part.mesh.sizes(axes)
        moves_more = axes and eqn.invars[small].aval.nbytes < nbytes * tiles and _moved_for(out, readers, sent)
        for dim, factors in enumerate(rule.results[0]) if moves_more else ():
            if rule.is_parallel(factors) and factors[0] in others and shape[dim] >= tiles:
                yield Turn(rule, axes, 0, dim, moves=True), nbytes


def _readers(part: Partition) -> Mapping[Var, Sequence[JaxprEqn]]:
    readers = defaultdict[Var, list[JaxprEqn]](list)
    for eqn in part.propagation.origins.eqns:
        for a in {a for a in eqn.invars if isinstance(a, Var)}:
            readers[a].append(eqn)
    return readers


def _sent_after(v: Var, readers: Mapping[Var, Sequence[JaxprEqn]], sent: Mapping[int, int]) -> int:
    """The bytes that are sent for equations that read a value, or what is made of it within a few steps."""
    values, found = [v], set[int]()
    for _ in range(STEPS):
        eqns = {id(eqn): eqn for value in values for eqn in readers.get(value, ()) if id(eqn) not in found}
        found |= eqns.keys()
        values = [w for eqn in eqns.values() for w in eqn.outvars]
    return sum(sent[key] for key in found)


def _moved_for(v: Var, readers: Mapping[Var, Sequence[JaxprEqn]], sent: Mapping[int, int]) -> bool:
    """Whether something is sent for an equation that reads a value, or what is made of it in its shape within a few
    steps."""
    values = {v}
    for _ in range(STEPS):
        eqns = [eqn for value in values for eqn in readers.get(value, ())]
        if any(sent[id(eqn)] for eqn in eqns):
            return True
        values = {w for eqn in eqns for w in eqn.outvars if w.aval.shape == v.aval.shape}
    return False


def _lost(propagation: Propagation) -> Iterator[tuple[Turn, int]]:
    """The axes that end at a reshape, on another dimension of its result, and the bytes of this: those of minor
    dimensions that are merged, on the merged one, and those of a dimension that is taken apart, on one of its parts."""
    mesh = propagation.mesh
    for eqn, rule in zip(propagation.origins.eqns, propagation.rules):
        if not eqn.op.is_view or not isinstance(x := eqn.invars[0], Var):
            continue
        result = propagation.layout(eqn.outvars[0])
        for axes, factors in zip(propagation.layout(x).dims, rule.operands[0]):
            if axes and factors and result.axes_used.isdisjoint(axes):
                merged = next(
                    (d for d, fs in enumerate(rule.results[0]) if len(fs) > 1 and fs[0] != factors[0] in fs), None
                )
                parts = [d for d, fs in enumerate(rule.results[0]) if len(factors) > 1 and fs and fs[0] in factors]
                for dim in parts if merged is None else [merged]:
                    major = rule.factors[rule.results[0][dim][0]]
                    if major.size % mesh.sizes((*result.dims[dim], *axes)) == 0:
                        yield Turn(rule, axes, 0, dim, moves=True), x.aval.nbytes
                        break


def _exchanged(part: Partition) -> Iterator[tuple[Turn, int]]:
    """The axes along a dimension whose tiles are exchanged for parts of another one and back, on that one, and those
    that end at such an equation, on one that can be exchanged; with the bytes of the result on a device: what follows
    may take it as it is before it is sent back."""
    propagation = part.propagation
    for eqn, rule in zip(propagation.origins.eqns, propagation.rules):
        exchanged = {n for n, factor in enumerate(rule.factors) if factor.passes == EXCHANGED}
        if not exchanged:
            continue
        out = eqn.outvars[0]
        result = propagation.layout(out)
        passing = [bool(exchanged & set(factors)) for factors in rule.results[0]]
        ended = [a for a in propagation.layout(eqn.invars[0]).dims if a and result.axes_used.isdisjoint(a)]
        back = [a for a, passes in zip(result.dims, passing) if a and passes]
        for axes, among in (*((a, passing) for a in ended), *((a, [True] * len(passing)) for a in back)):
            fits = (n >= part.mesh.sizes(axes) for n in out.aval.shape)
            whole = (d for d, ok in enumerate(fits) if ok and not result.dims[d] and among[d])
            if (dim := max(whole, default=None)) is not None:
                yield Turn(rule, axes, 0, dim, moves=True), out.aval.nbytes // part.mesh.size


def _ends(axes: Axes, among: Container[str]) -> Iterator[Axes]:
    """The last axes of a dimension that are all ``among`` some: as many as there are, and fewer."""
    count = next((n for n, axis in enumerate(reversed(axes)) if axis not in among), len(axes))
    return (axes[-n:] for n in range(count, 0, -1))


def _is_of_one_sort(by_factor: Mapping[int, Sequence[Var]], axis: str, propagation: Propagation) -> bool:
    """Whether an axis reaches all factors from annotations of one sort. Between several, the search decides before."""
    causes = (propagation.origins.of(v, axis) for values in by_factor.values() for v in values)
    return len({cause.sort for cause in causes if cause is not None}) == 1
