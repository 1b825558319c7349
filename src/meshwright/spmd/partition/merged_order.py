"""Merges dimensions in the order of their tiles where the tiles of the merged dimension would not be blocks.

Windows of images are merged with the batch, computed as a batch of windows, and taken apart again. If the batch is
split by one axis and rows of windows by another, a device has windows of several images, which are no block of the
merged dimension: they would be moved to others and back. But what happens in between is the same for all windows, so
their order does not matter. Here the tiles of all merged dimensions come first, and what is in a tile after them: then
each device's windows are a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.op import Op
from meshwright.ir.rewrite import producers_of, renamed, uses_of
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim
from meshwright.ops.shape.rearrange import Reshape, Transpose
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
    """The places of a merged dimension, and the equations that merge and part it, with the place at which they do."""

    places: set[Place]
    ends: dict[JaxprEqn, Place]


def merged_order(closed: ClosedJaxpr, propagation: Propagation, mesh: AbstractMesh) -> ClosedJaxpr:
    """The program with dimensions merged in the order of their tiles, where nothing in between depends on the order."""
    regions: _Regions | None = None
    changed: dict[JaxprEqn, tuple[Place, _Merged]] = {}
    done: set[Place] = set()
    names: dict[Var, Var] = {}
    for eqn in closed.jaxpr.eqns:
        for place, merged in _merges(eqn, propagation, mesh):
            regions = regions or _Regions(closed)
            region = None if place in done else regions.of(place, merged.sizes)
            if region is None or any(e in changed for e in region.ends) or any(v in names for v, _ in region.places):
                continue
            done |= region.places
            changed.update((end, (at, merged)) for end, at in region.ends.items())
            names.update((v, _like(v, d, merged, propagation)) for v, d in region.places)
    if not changed:
        return closed
    eqns: list[JaxprEqn] = []
    for old in closed.jaxpr.eqns:
        eqn = renamed(old, names).replace(outvars=[names.get(v, v) for v in old.outvars])
        if old in changed:
            (v, d), merged = changed[old]
            eqns += _in_tiles(eqn, (names[v], d), merged, propagation, mesh)
        else:
            eqns.append(eqn)
    return closed.replace(jaxpr=closed.jaxpr.replace(eqns=eqns))


def _merges(eqn: JaxprEqn, propagation: Propagation, mesh: AbstractMesh) -> Iterator[tuple[Place, _Merged]]:
    """The dimensions that a reshape merges so that their tiles are no blocks."""
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


def are_apart(factors: DimFactors, dims: Sequence[DimFactors]) -> bool:
    """Whether each of some factors is a dimension of its own."""
    return all((f,) in dims for f in factors)


class _Regions:
    """What computes with a merged dimension, from where it is merged to where it is taken apart."""

    def __init__(self, closed: ClosedJaxpr) -> None:
        self.makers, self.users = producers_of(closed.jaxpr), uses_of(closed.jaxpr)

    def of(self, start: Place, sizes: tuple[int, ...]) -> _Region | None:
        """The region of a place where dimensions of these sizes are merged; None if the order of its rows matters."""
        region = _Region(set(), {})
        left = [start]
        while left:
            place = left.pop()
            if place in region.places:
                continue
            region.places.add(place)
            v, _ = place
            maker = self.makers.get(v)
            if maker is None:
                return None
            for eqn in (maker, *self.users.get(v, ())):
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
            elif len(factors) == 1 and is_any_order(eqn, rule, factors[0]):
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
    dims = [tuple(a for a in other if a not in axes) for other in propagation.layout(v).dims]
    dims[dim] = axes
    return propagation.place(Var(v.aval), dims)


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
