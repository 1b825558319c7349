"""Merges dimensions in the order of their tiles where the tiles of the merged dimension would not be blocks.

Windows of images are merged with the batch, computed as a batch of windows, and taken apart again. If the batch is
split by one axis and rows of windows by another, a device has windows of several images, which are no block of the
merged dimension: they would be moved to others and back. But what happens in between is the same for all windows, so
their order does not matter. Here the tiles of all merged dimensions come first, and what is in a tile after them: then
each device's windows are a block.

Batches that are concatenated, computed with as one, and cut into the same parts again (diffusion with and without a
prompt, real images and made ones) are merged likewise: each device has its rows of all parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.op import Op
from meshwright.ir.rewrite import producers_of, renamed, uses_of
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim
from meshwright.ops.shape.rearrange import Reshape, Transpose
from meshwright.ops.shape.whole_parts import joined_along, keeps_rows, moves_parts, on_tiles
from meshwright.sharding import AbstractMesh
from meshwright.sharding.rule import PARALLEL, REDUCTION, DimFactors, ShardingRule
from meshwright.spmd.factors import Axes, join_axes
from meshwright.spmd.propagate import Propagation
from meshwright.spmd.rules import eqn_rule

#: a dimension of a value
Place = tuple[Var, int]


class _Merged(NamedTuple):
    """The dimensions that are merged: their sizes, and the axes that split them."""

    sizes: tuple[int, ...]
    axes: tuple[Axes, ...]


class _Region(NamedTuple):
    """The places of a merged dimension, those of them in arguments, and the equations that merge and part it, with the
    place at which they do."""

    places: set[Place]
    given: list[Place]
    ends: dict[JaxprEqn, Place]

    def is_worth(self, merged: _Merged) -> bool:
        """Whether arguments, of which rows are exchanged for their order, are small beside what is merged or parted."""
        if not self.given:
            return True
        whole = (place[0] if place[0] in e.outvars else e.outvars[0] for e, place in self.ends.items())
        moved = sum(v.aval.size for v in whole)
        return len(merged.sizes) == 2 and not merged.axes[0] and 2 * sum(v.aval.size for v, _ in self.given) < moved


def merged_order(closed: ClosedJaxpr, propagation: Propagation, mesh: AbstractMesh) -> ClosedJaxpr:
    """The program with dimensions merged in the order of their tiles, where nothing in between depends on the order."""
    regions: _Regions | None = None
    changed: dict[JaxprEqn, tuple[Place, _Merged]] = {}
    done: set[Place] = set()
    names: dict[Var, Var] = {}
    eqns: list[JaxprEqn] = []
    for eqn in closed.jaxpr.eqns:
        for place, merged in _merges(eqn, propagation, mesh):
            regions = regions or _Regions(closed)
            region = None if place in done else regions.of(place, merged.sizes)
            if region is None or any(e in changed for e in region.ends) or any(v in names for v, _ in region.places):
                continue
            if not region.is_worth(merged) or (merged.axes[0] and not all(e.op.is_view for e in region.ends)):
                continue
            done |= region.places
            changed.update((end, (at, merged)) for end, at in region.ends.items())
            names.update((v, _like(v, d, merged, propagation)) for v, d in region.places)
            for v, d in region.given:
                eqns += _reordered(eqn, (v, d), names[v], merged, propagation, mesh)
    if not changed:
        return closed
    for old in closed.jaxpr.eqns:
        eqn = renamed(old, names).replace(outvars=[names.get(v, v) for v in old.outvars])
        if old in changed:
            (v, d), merged = changed[old]
            ways = _in_tiles if eqn.op.is_view else _parts_in_tiles
            eqns += ways(eqn, (names[v], d), merged, propagation, mesh)
        else:
            eqns.append(eqn)
    return closed.replace(jaxpr=closed.jaxpr.replace(eqns=eqns))


def _merges(eqn: JaxprEqn, propagation: Propagation, mesh: AbstractMesh) -> Iterator[tuple[Place, _Merged]]:
    """The dimensions that a reshape or a concatenation of equal parts merges so that their tiles are no blocks."""
    yield from _joined(eqn, propagation, mesh)
    if not eqn.op.is_view or not isinstance(x := eqn.invars[0], Var) or not propagation.layout(x).axes_used:
        return
    rule, layout = eqn_rule(eqn), propagation.layout(x)
    for d, factors in enumerate(rule.results[0]):
        if len(factors) > 1 and are_apart(factors, rule.operands[0]):
            sizes = tuple(rule.factors[f].size for f in factors)
            axes = tuple(layout.dims[rule.operands[0].index((f,))] for f in factors)
            numbers = tuple(range(len(sizes)))
            even = all(n % mesh.sizes(a) == 0 for n, a in zip(sizes, axes))
            if even and not join_axes(numbers, sizes, axes, mesh)[1]:
                yield (eqn.outvars[0], d), _Merged(sizes, axes)


def _joined(eqn: JaxprEqn, propagation: Propagation, mesh: AbstractMesh) -> Iterator[tuple[Place, _Merged]]:
    """The dimension along which parts of one size are joined that are split alike, or not at all."""
    found = joined_along(eqn)
    if found is not None:
        d, parts = found
        axes = {propagation.layout(a).dims[d] for a in parts} - {()}
        sizes = len(parts), parts[0].aval.shape[d]
        if len(axes) == 1 and sizes[1] % mesh.sizes(inner := axes.pop()) == 0:
            yield (eqn.outvars[0], d), _Merged(sizes, ((), inner))


def are_apart(factors: DimFactors, dims: Sequence[DimFactors]) -> bool:
    """Whether each of some factors is a dimension of its own."""
    return all((f,) in dims for f in factors)


class _Regions:
    """What computes with a merged dimension, from where it is merged to where it is taken apart."""

    def __init__(self, closed: ClosedJaxpr) -> None:
        self.makers, self.users = producers_of(closed.jaxpr), uses_of(closed.jaxpr)

    def of(self, start: Place, sizes: tuple[int, ...]) -> _Region | None:
        """The region of a place where dimensions of these sizes are merged; None if the order of its rows matters."""
        region = _Region(set(), [], {})
        left = [start]
        while left:
            place = left.pop()
            if place in region.places:
                continue
            region.places.add(place)
            v, _ = place
            made = [self.makers[v]] if v in self.makers else []
            if not made:
                region.given.append(place)
            for eqn in (*made, *self.users.get(v, ())):
                more = None if eqn is None else self.across(eqn, place, sizes, region)
                if more is None:
                    return None
                left += more
        return region

    def across(self, eqn: JaxprEqn, place: Place, sizes: tuple[int, ...], region: _Region) -> list[Place] | None:
        """The places with the same rows as one of an equation; None if their order matters to it."""
        op, (v, d) = eqn.op, place
        if op.holds_jaxprs or op.has_effects or op.kept_whole:
            return None
        if len(sizes) == 2 and moves_parts(eqn, v, d, *sizes) and region.ends.get(eqn, place) == place:
            region.ends[eqn] = place
            return []
        rule = eqn_rule(eqn)
        values = [*zip(eqn.invars, rule.operands), *zip(eqn.outvars, rule.results)]
        found: list[Place] = []
        for factors in {dims[d] for atom, dims in values if atom is v}:
            if (
                op.is_view
                and tuple(rule.factors[f].size for f in factors) == sizes
                and are_apart(factors, rule.operands[0] if v is eqn.outvars[0] else rule.results[0])
                and region.ends.get(eqn, place) == place
            ):
                region.ends[eqn] = place
            elif len(factors) == 1 and (is_any_order(eqn, rule, factors[0]) or keeps_rows(op, rule, factors[0])):
                at = [(a, n, fs) for a, dims in values for n, fs in enumerate(dims) if factors[0] in fs]
                if any(fs != factors or isinstance(a, Literal) for a, _, fs in at):
                    return None
                found += [(a, n) for a, n, _ in at]  # type: ignore[misc]
            else:
                return None
        return found


def is_any_order(eqn: JaxprEqn, rule: ShardingRule, f: int) -> bool:
    """Whether rows of a factor may come in any order: what an op does with a tile does not depend on where this is."""
    factor, op = rule.factors[f], eqn.op
    if not (op.is_same_on_tiles or op.is_view):
        return False
    given = isinstance(op, BroadcastInDim) or bool(rule.operand_dims(f))
    return given and factor.kind in (PARALLEL, REDUCTION) and not factor.indexed and rule.reduction != "masked"


def _like(v: Var, dim: int, merged: _Merged, propagation: Propagation) -> Var:
    """A variable for a value in the order of tiles, split along its merged dimension by the axes of all parts of it."""
    axes = tuple(a for part in merged.axes for a in part)
    dims = _without(axes, v, propagation)
    dims[dim] = axes
    return propagation.place(Var(v.aval), dims)


def _without(axes: Axes, value: Atom, propagation: Propagation) -> list[Axes]:
    """The axes of a value's dimensions but those that split another one of it in the order of tiles."""
    return [tuple(a for a in own if a not in axes) for own in propagation.layout(value).dims]


def _in_tiles(
    eqn: JaxprEqn, place: Place, merged: _Merged, propagation: Propagation, mesh: AbstractMesh
) -> Iterator[JaxprEqn]:
    """The equations of a reshape that merges dimensions in the order of their tiles, or takes them apart."""
    rule, (x,), (out,) = eqn_rule(eqn), eqn.invars, eqn.outvars
    joins, (_, at) = place[0] is out, place
    value, dims, factors = (
        (x, rule.operands[0], rule.results[0][at]) if joins else (out, rule.results[0], rule.operands[0][at])
    )
    # The shape of the value that is not merged, with its dimensions cut into tiles, the axes that split it, and where
    # the numbers of tiles are: dimensions of size 1 may be between them.
    cut: list[int] = []
    split: list[Axes] = []
    tiles: list[int] = []
    for n, outer, fs in zip(value.aval.shape, propagation.layout(value).dims, dims):
        if fs and fs[0] in factors:
            inner = merged.axes[factors.index(fs[0])]
            tiles.append(len(cut))
            cut, split = [*cut, mesh.sizes(inner), n // mesh.sizes(inner)], [*split, inner, ()]
        else:
            cut, split = [*cut, n], [*split, outer]
    first, parts = tiles[0], [*tiles, *(d + 1 for d in tiles)]
    turn = [*range(first), *parts, *(d for d in range(first, len(cut)) if d not in parts)]
    steps: list[tuple[Op, Sequence[Axes]]] = [
        (Reshape(tuple(cut)), split),
        (Transpose(tuple(turn)), [split[d] for d in turn]),
    ]
    if not joins:
        back = tuple(turn.index(d) for d in range(len(turn)))
        steps = [(Reshape(tuple(cut[d] for d in turn)), [split[d] for d in turn]), (Transpose(back), split)]
    y: Atom = x
    for op, axes in steps:
        new = propagation.place(Var(op.infer(y.aval)), axes)
        yield eqn.replace(op=op, invars=[y], outvars=[new])
        y = new
    yield eqn.replace(op=Reshape(out.aval.shape), invars=[y])


def _reordered(
    eqn: JaxprEqn, place: Place, new: Var, merged: _Merged, propagation: Propagation, mesh: AbstractMesh
) -> Iterator[JaxprEqn]:
    """The equations that bring the rows of an argument into the order of tiles."""
    (v, d), (count, size), inner = place, merged.sizes, merged.axes[1]
    shape, dims, tiles = v.aval.shape, propagation.layout(new).dims, mesh.sizes(inner)
    cut = Reshape((*shape[:d], count, tiles, size // tiles, *shape[d + 1 :]))
    turn = Transpose((*range(d), d + 1, d, *range(d + 2, len(shape) + 2)))
    parts = propagation.place(Var(cut.infer(v.aval)), (*dims[:d], (), inner, (), *dims[d + 1 :]))
    turned = propagation.place(Var(turn.infer(parts.aval)), (*dims[:d], inner, (), (), *dims[d + 1 :]))
    yield eqn.replace(op=cut, invars=[v], outvars=[parts])
    yield eqn.replace(op=turn, invars=[parts], outvars=[turned])
    yield eqn.replace(op=Reshape(shape), invars=[turned], outvars=[new])


def _parts_in_tiles(
    eqn: JaxprEqn, place: Place, merged: _Merged, propagation: Propagation, mesh: AbstractMesh
) -> Iterator[JaxprEqn]:
    """The equations that join parts in the order of tiles, take one out, or pad one."""
    (value, d), (count, size), inner = place, merged.sizes, merged.axes[1]
    tiles, found = mesh.sizes(inner), joined_along(eqn)
    moved = found[1] if found is not None else eqn.invars[:1]
    parts = 1 if value in eqn.outvars else count
    cuts: list[Atom] = []
    for x in moved:
        shape, dims = x.aval.shape, _without(inner, x, propagation)
        split = [*dims[:d], inner, (), (), *dims[d + 1 :]]
        op = Reshape((*shape[:d], tiles, parts, size // tiles, *shape[d + 1 :]))
        cuts.append(propagation.place(Var(op.infer(x.aval)), split))
        yield eqn.replace(op=op, invars=[x], outvars=[cuts[-1]])
    new = on_tiles(eqn.op, d, tiles, count, size)
    operands = [*cuts, *([] if found is not None else eqn.invars[1:])]
    out = propagation.place(Var(new.infer(*(a.aval for a in operands))), split)
    yield eqn.replace(op=new, invars=operands, outvars=[out])
    yield eqn.replace(op=Reshape(eqn.outvars[0].aval.shape), invars=[out])
