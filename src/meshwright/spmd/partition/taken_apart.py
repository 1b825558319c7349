"""Computes with a dimension in parts where a reshape takes it apart, and its tiles are not tiles of the parts.

In ``(x @ w).reshape(b, s, 3, heads, width)``, the axis that splits heads splits the columns of ``w`` too: into other
tiles, so activations would be moved from these to those. As ``w.reshape(n, 3, heads, width)`` is what is multiplied
instead, the weight is moved. What comes between (a bias that is added) and the backward pass, in which the parts are
merged, are treated likewise.

Each equation along the dimension is computed with it whole or in parts, and each value that one has and the other needs
is moved once. Which equations are computed in parts is a minimum cut of the bytes moved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

from meshwright.ir.flow import Network
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.op import BatchAxis
from meshwright.ir.rewrite import in_regions, producers_of, rebuilt, uses_of, written_out
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.products.dot import DotGeneral
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim
from meshwright.ops.shape.rearrange import Reshape, move_dim
from meshwright.sharding import AbstractMesh
from meshwright.sharding.rule import PARALLEL, DimFactors
from meshwright.spmd.factors import Axes, join_axes
from meshwright.spmd.partition.in_parts import Shapes
from meshwright.spmd.partition.merged_order import Place, are_apart, is_any_order
from meshwright.spmd.propagate import Propagation
from meshwright.spmd.rules import eqn_rule

#: what is moved instead must be smaller than this fraction of what was moved before
LESS = 0.8
#: the greatest number of places of a dimension
MOST = 400

#: terminals of the flow network: equations in parts, and with the dimension whole
_PARTS, _WHOLE = "parts", "whole"


class _Parts(NamedTuple):
    """A dimension as two: ``outer``, which is not split, and ``inner``, split by ``axes``."""

    outer: int
    inner: int
    axes: Axes


def taken_apart(closed: ClosedJaxpr, propagation: Propagation, mesh: AbstractMesh) -> ClosedJaxpr:
    """The program with dimensions in parts where that moves less; adds new values to ``propagation``."""
    rewrite: _Rewrite | None = None
    for eqn in closed.jaxpr.eqns:
        for place, parts in _taken_apart(eqn, propagation, mesh):
            rewrite = rewrite or _Rewrite(closed, propagation, mesh)
            rewrite.consider(place, parts)
    return closed if rewrite is None or not rewrite.inside else rewrite.rewritten()


def taken_apart_everywhere(closed: ClosedJaxpr, propagation: Propagation, mesh: AbstractMesh) -> ClosedJaxpr:
    """The same for a program and the bodies of its loops and branches, in which shardings are to spread anew."""

    def within(region: ClosedJaxpr) -> ClosedJaxpr:
        return taken_apart_everywhere(region, propagation, mesh)

    eqns = [in_regions(e, within) if isinstance(e.op, ControlOp) else e for e in closed.jaxpr.eqns]
    return taken_apart(closed.replace(jaxpr=rebuilt(closed.jaxpr, eqns)), propagation, mesh)


def _taken_apart(eqn: JaxprEqn, propagation: Propagation, mesh: AbstractMesh) -> Iterator[tuple[Place, _Parts]]:
    """The dimensions that a reshape takes apart or merges whose tiles are not those of the parts."""
    if not isinstance(eqn.op, Reshape) or not isinstance(x := eqn.invars[0], Var):
        return
    rule, out = eqn_rule(eqn), eqn.outvars[0]
    sides = (x, rule.operands[0]), (out, rule.results[0])
    for (v, dims), (other, parts) in (sides, sides[::-1]):
        layout = propagation.layout(other)
        for d, factors in enumerate(dims) if layout.axes_used else ():
            if len(factors) < 2 or not are_apart(factors, parts):
                continue
            sizes = [f.size for f in rule.factors]
            axes: list[Axes] = [()] * len(sizes)
            for f in factors:
                axes[f] = layout.dims[parts.index((f,))]
            split = [n for n, f in enumerate(factors) if axes[f]]
            outer = math.prod(sizes[f] for f in factors[: split[0]]) if split else 1
            even = len(split) == 1 and sizes[factors[split[0]]] % mesh.sizes(axes[factors[split[0]]]) == 0
            if even and outer > 1 and not join_axes(factors, sizes, axes, mesh)[1]:
                yield (v, d), _Parts(outer, v.aval.shape[d] // outer, axes[factors[split[0]]])


class _Region:
    """The places of a dimension, and for each equation at one of them whether it can be computed in parts."""

    def __init__(self, parts: _Parts) -> None:
        self.parts = parts
        self.dims: dict[Var, int] = {}
        #: reshapes that take the dimension apart or merge it: those that would move it, and others
        self.ends: dict[JaxprEqn, bool] = {}
        #: equations that can be computed in parts, with the factor of the dimension
        self.inner: dict[JaxprEqn, int] = {}


class _Rewrite:
    def __init__(self, closed: ClosedJaxpr, propagation: Propagation, mesh: AbstractMesh) -> None:
        self.closed, self.propagation, self.mesh = closed, propagation, mesh
        self.makers, self.uses = producers_of(closed.jaxpr), uses_of(closed.jaxpr)
        #: the equations that are computed in parts, with their region
        self.inside: dict[JaxprEqn, _Region] = {}
        self.done: set[Place] = set()
        #: the values that are available in parts
        self.parts: dict[Var, Var] = {}

    # --- decisions ------------------------------------------------------------------------------------------
    def consider(self, place: Place, parts: _Parts) -> None:
        """Compute what is along a dimension in parts, as far as that moves less."""
        if place in self.done:
            return
        region = self.region(place, parts)
        if region is None or any(e in self.inside for e in (*region.ends, *region.inner)):
            return
        self.done.update(region.dims.items())
        inside = self.cut(region)
        as_it_is = {e for e, moves in region.ends.items() if moves}
        if inside != as_it_is and self.moved(region, inside) < LESS * self.moved(region, as_it_is):
            self.inside.update(dict.fromkeys(inside, region))

    def region(self, start: Place, parts: _Parts) -> _Region | None:
        """What is along the dimension of a place; None if that is not one dimension of each value."""
        region, left = _Region(parts), [start]
        while left:
            v, d = left.pop()
            if region.dims.setdefault(v, d) != d or len(region.dims) > MOST:
                return None
            for eqn in self.around(v):
                if eqn is None or eqn in region.ends:
                    continue
                found = self.factor(eqn, v, d, region)
                if found is None:
                    continue
                if region.inner.setdefault(eqn, found) != found:
                    return None
                left += (p for p in _places(eqn, found) if p[0] not in region.dims or region.dims[p[0]] != p[1])
        return region

    def around(self, v: Var) -> list[JaxprEqn | None]:
        """The equations that compute and use a value; None for what is outside of the program."""
        return [self.makers.get(v), *self.uses.get(v, ())]

    def factor(self, eqn: JaxprEqn, v: Var, d: int, region: _Region) -> int | None:
        """The factor of a place of an equation that can be computed in parts; None for ends, which are noted, and for
        equations that need the dimension whole."""
        rule = eqn_rule(eqn)
        values = [*zip(eqn.invars, rule.operands), *zip(eqn.outvars, rule.results)]
        found = {dims[d] for atom, dims in values if atom is v}
        if len(found) != 1:
            return None
        (factors,) = found
        if len(factors) == 1:
            return factors[0] if self.is_inner(eqn, factors[0]) else None
        sizes = [rule.factors[f].size for f in factors]
        if isinstance(eqn.op, Reshape) and region.parts.outer in accumulate(sizes, mul):
            moved = ((p, parts) for p, parts in _taken_apart(eqn, self.propagation, self.mesh) if p == (v, d))
            region.ends[eqn] = any(parts == region.parts for _, parts in moved)
        return None

    def is_inner(self, eqn: JaxprEqn, factor: int) -> bool:
        rule, op = eqn_rule(eqn), eqn.op
        if len(eqn.outvars) != 1 or op.has_effects or op.holds_jaxprs or op.kept_whole:
            return False
        if rule.factors[factor].kind != PARALLEL and not isinstance(op, DotGeneral):
            return False
        places = [(a, fs) for a, _, fs in _all_places(eqn, factor)]
        alone = all(fs == (factor,) and not isinstance(a, Literal) for a, fs in places)
        once = all(sum(factor in fs for fs in dims) <= 1 for dims in (*rule.operands, *rule.results))
        return alone and once and is_any_order(eqn, rule, factor)

    def price(self, v: Var, region: _Region) -> tuple[float, float]:
        """The bytes to take a value apart, and to merge it."""
        layout, axes = self.propagation.layout(v), region.parts.axes
        local = v.aval.dtype.itemsize * math.prod(layout.local_shape(v.aval.shape, self.mesh))
        if layout.dims[region.dims[v]]:
            return local, local
        if layout.axes_used.intersection(axes):
            return 0, 0
        return 0, local * (1 - 1 / self.mesh.sizes(axes))  # each device has all of it, or none

    def cut(self, region: _Region) -> set[JaxprEqn]:
        """The equations in parts, so that the fewest bytes are moved."""
        network = Network()
        known = {*region.ends, *region.inner}
        for eqn, moves in region.ends.items():
            if moves:
                network.edge(_PARTS, eqn, math.inf)
        for v in region.dims:
            maker, *users = (e if e in known else _WHOLE for e in self.around(v))
            apart, merge = self.price(v, region)
            network.edge((v, "apart"), maker, apart)
            network.edge(maker, (v, "merged"), merge)
            for user in users:
                network.edge(user, (v, "apart"), math.inf)
                network.edge((v, "merged"), user, math.inf)
        behind = network.behind(_PARTS, _WHOLE)
        return {e for e in known if e not in behind}

    def moved(self, region: _Region, inside: set[JaxprEqn]) -> float:
        """The bytes that are moved if these equations are computed in parts."""
        total = 0.0
        for v in region.dims:
            maker, *users = (e in inside for e in self.around(v))
            apart, merge = self.price(v, region)
            if not maker and any(users):
                total += apart
            if maker and not all(users):
                total += merge
        return total

    # --- the new program ------------------------------------------------------------------------------------
    def rewritten(self) -> ClosedJaxpr:
        eqns: list[JaxprEqn] = []
        for eqn in self.closed.jaxpr.eqns:
            eqns += self.in_parts(eqn, self.inside[eqn]) if eqn in self.inside else [eqn]
        return self.closed.replace(jaxpr=self.closed.jaxpr.replace(eqns=eqns))

    def in_parts(self, eqn: JaxprEqn, region: _Region) -> Iterator[JaxprEqn]:
        """The equations that compute one in parts, with those that take its operands apart or merge its result."""
        ins: list[Atom] = []
        for a in eqn.invars:
            if isinstance(a, Var) and a in region.dims and a not in self.parts:
                self.parts[a] = self.like(a, region)
                yield self.changed(eqn, a, self.parts[a])
            ins.append(self.parts[a] if isinstance(a, Var) and a in region.dims else a)
        (out,) = eqn.outvars
        result = out
        if out in region.dims:
            result = self.parts[out] = self.like(out, region)
        if eqn in region.ends:
            yield eqn.replace(op=Reshape(result.aval.shape), invars=ins, outvars=[result])
        else:
            yield from _in_parts(eqn, region.inner[eqn], region.parts, ins, result)
        if result is not out and any(user not in self.inside for user in self.uses.get(out, ())):
            yield self.changed(eqn, result, out)

    def changed(self, eqn: JaxprEqn, old: Var, new: Var) -> JaxprEqn:
        """The equation that takes a value apart for an equation, or merges it."""
        return eqn.replace(op=Reshape(new.aval.shape), invars=[old], outvars=[new])

    def like(self, v: Var, region: _Region) -> Var:
        """The variable of a value in parts, with its layout."""
        d, layout, (outer, inner, axes) = region.dims[v], self.propagation.layout(v), region.parts
        dims = [*layout.dims]
        dims[d : d + 1] = [(), axes if not set(axes) & set(layout.split_axes) - set(layout.dims[d]) else ()]
        shape = (*v.aval.shape[:d], outer, inner, *v.aval.shape[d + 1 :])
        return self.propagation.place(Var(v.aval.update(shape=shape)), dims)


def _all_places(eqn: JaxprEqn, factor: int) -> Iterator[tuple[Atom, int, DimFactors]]:
    """The dimensions of operands and results that have a factor."""
    rule = eqn_rule(eqn)
    for atom, dims in (*zip(eqn.invars, rule.operands), *zip(eqn.outvars, rule.results)):
        for d, factors in enumerate(dims):
            if factor in factors:
                yield atom, d, factors


def _places(eqn: JaxprEqn, factor: int) -> list[Place]:
    return [(atom, d) for atom, d, _ in _all_places(eqn, factor) if isinstance(atom, Var)]


def _in_parts(eqn: JaxprEqn, factor: int, parts: _Parts, ins: Sequence[Atom], out: Var) -> Iterator[JaxprEqn]:
    """The equations that compute ``out`` from operands in parts."""
    op, rule = eqn.op, eqn_rule(eqn)
    at = [next((d for d, fs in enumerate(dims) if factor in fs), None) for dims in (*rule.operands, *rule.results)]
    if isinstance(op, DotGeneral) and at[-1] is None:
        (lc, rc), (lb, rb) = op.dimension_numbers
        (left, lb), (right, rb) = (_shifted(c, b, d) for c, b, d in ((lc, lb, at[0]), (rc, rb, at[1])))  # type: ignore[arg-type]
        yield eqn.replace(op=replace(op, dimension_numbers=((left, right), (lb, rb))), invars=ins, outvars=[out])
        return
    if isinstance(op, BroadcastInDim) and at[0] is None:
        dims = tuple(d + (d > at[-1]) for d in op.broadcast_dimensions)  # type: ignore[operator]
        yield eqn.replace(op=BroadcastInDim(out.aval.shape, dims), invars=ins, outvars=[out])
        return

    one = op.localized(Shapes((tuple(n for d, n in enumerate(out.aval.shape) if d != at[-1]),)))

    def batched(*xs: Any) -> Any:
        y, dim = one.batch(BatchAxis(parts.outer), xs, at[:-1])
        return [move_dim(y, dim, at[-1])]  # type: ignore[arg-type]

    yield from written_out(eqn.replace(invars=ins, outvars=[out]), batched)


def _shifted(contracted: Sequence[int], batch: Sequence[int], d: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Contracted and batch dimensions of an operand of which the contracted dimension ``d`` has become two."""
    pairs = ([c + (c > d), c + 1] if c == d else [c + (c > d)] for c in contracted)
    return tuple(c for pair in pairs for c in pair), tuple(b + (b > d) for b in batch)
