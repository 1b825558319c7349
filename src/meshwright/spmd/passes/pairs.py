"""Merges neighbouring collectives that together are one cheaper collective, or none.

==================================================  ========================================================
``all_slice(all_reduce(x))``                        ``reduce_scatter(x)``; the tile is then reduced over the
                                                    remaining axes, if that is cheaper
``all_reduce(all_reduce(x))``                       one, over the axes of both
``all_gather(reduce_scatter(x))``                   ``all_reduce(x)``: as many bytes, one collective
``all_slice(all_gather(x))``, same dimension        ``all_gather(x)`` over the remaining minor axes, or ``x``
``all_slice(all_gather(x))``, another dimension     ``all_to_all(x)``
``all_gather(all_gather(x))``, same dimension       one, over the axes of both
``all_gather(all_slice(x))``, ``x`` held by all     ``x``
``move(convert(x))``, ``x`` being narrower          ``convert(move(x))``
==================================================  ========================================================

The first collective of a pair must have no other use, unless ``x`` itself replaces the pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn, Var
from meshwright.ir.op import Op
from meshwright.ir.rewrite import rebuilt, renamed, resolve, uses_of
from meshwright.ops.collective.all_reduce import ALL_REDUCE, AllReduce
from meshwright.ops.collective.base import Collective
from meshwright.ops.collective.exchange import AllToAll
from meshwright.ops.collective.tiles import AllGather, AllSlice, ReduceScatter
from meshwright.ops.elementwise.table import ConvertElementType
from meshwright.sharding import AbstractMesh, joined_reduction
from meshwright.spmd.passes.rewrite import merged_note
from meshwright.spmd.prices import collective_price
from meshwright.spmd.varying import Variance


def merge_pairs(jaxpr: Jaxpr, variance: Variance, mesh: AbstractMesh) -> Jaxpr:
    """Replace the pairs in the left column of the table by the right column."""
    firsts = {e.outvars[0] for e in jaxpr.eqns if isinstance(e.op, (Collective, ConvertElementType))}
    if not any(isinstance(e.op, Collective) and e.invars and e.invars[0] in firsts for e in jaxpr.eqns):
        return jaxpr
    return _Pairs(jaxpr, variance, mesh).run()


@dataclass(frozen=True)
class _Pair:
    """``second(first(x))`` of an ``x`` of this type; ``same`` tells whether it is the same on all devices along some
    axes."""

    first: Any
    second: Any
    type: ShapedArray
    mesh: AbstractMesh
    same: Callable[[Sequence[str]], bool]

    @property
    def disjoint(self) -> bool:
        return not set(self.mesh.expand(self.first.axes)) & set(self.mesh.expand(self.second.axes))


#: the ops that replace a pair, in order; None if the pair stays
Replacement = tuple[Op, ...] | None


def _alone(pair: _Pair) -> bool:
    """Whether a pair is the identity, so that ``x`` replaces it whatever else uses the first result."""
    first, second = pair.first, pair.second
    match first, second:
        case AllGather(), AllSlice():
            return first.axes == second.axes and first.dimension == second.dimension
        case AllSlice(), AllGather():
            return first.axes == second.axes and first.dimension == second.dimension and pair.same(first.axes)
    return False


def _together(pair: _Pair) -> Replacement:
    first, second = pair.first, pair.second
    match first, second:
        case AllReduce(), AllSlice():
            return _scattered(pair)
        case AllReduce(), AllReduce() if pair.disjoint:
            return _over_both(pair)
        case ReduceScatter(), AllGather() if first.axes == second.axes and first.dimension == second.dimension:
            return (ALL_REDUCE[first.reduction](first.axes, first.sizes),)
        case AllGather(), AllSlice() if first.dimension == second.dimension:
            k = len(second.axes)
            return (first.over(first.axes[k:], first.sizes[k:]),) if first.axes[:k] == second.axes else None
        case AllGather(), AllSlice() if first.axes == second.axes:
            return (AllToAll(first.axes, first.sizes, second.dimension, first.dimension),)
        case AllGather(), AllGather() if first.dimension == second.dimension and pair.disjoint:
            return (first.over((*second.axes, *first.axes), (*second.sizes, *first.sizes)),)
        case ConvertElementType(), Collective() if second.kind and second.moves_only:
            return second, first
    return None


def _scattered(pair: _Pair) -> Replacement:
    first, second = pair.first, pair.second
    if not set(second.axes) <= set(first.axes):
        return None
    scatter = ReduceScatter(second.axes, second.sizes, second.dimension, first.reduction)
    rest = [(axis, size) for axis, size in zip(first.axes, first.sizes) if axis not in second.axes]
    if not rest:
        return (scatter,)
    tiles = first.over(*zip(*rest))
    # Where little is sent, a second collective takes longer than it saves.
    two = collective_price(scatter, pair.type, pair.mesh)
    two += collective_price(tiles, scatter.infer(pair.type), pair.mesh)
    return (scatter, tiles) if two <= collective_price(first, pair.type, pair.mesh) else None


def _over_both(pair: _Pair) -> Replacement:
    first, second = pair.first, pair.second
    kind = joined_reduction(first.reduction, second.reduction)
    if kind is None:
        return None
    axes = pair.mesh.coalesce(pair.mesh.in_mesh_order(pair.mesh.expand((*first.axes, *second.axes))))
    return (ALL_REDUCE[kind](axes, tuple(pair.mesh.axis_size(a) for a in axes)),)


class _Pairs:
    def __init__(self, jaxpr: Jaxpr, variance: Variance, mesh: AbstractMesh) -> None:
        self.jaxpr = jaxpr
        self.variance = variance
        self.mesh = mesh
        self.uses = {v: len(users) for v, users in uses_of(jaxpr).items()}
        self.producers: dict[Var, JaxprEqn] = {}
        self.names: dict[Var, Atom] = {}
        self.gone: set[int] = set()

    def run(self) -> Jaxpr:
        eqns: list[JaxprEqn] = []
        for old in self.jaxpr.eqns:
            eqn = renamed(old, self.names)
            new = self._merged(eqn) if isinstance(eqn.op, Collective) and eqn.invars else None
            for one in [eqn] if new is None else new:
                eqns.append(one)
                self.producers.update((v, one) for v in one.outvars)
        return rebuilt(self.jaxpr, [e for e in eqns if id(e) not in self.gone], self.names)

    def _merged(self, second: JaxprEqn) -> list[JaxprEqn] | None:
        """The equations that replace ``second`` and its producer if they form a pair; None if they stay."""
        between = second.invars[0]
        first = self.producers.get(between) if isinstance(between, Var) else None
        if first is None or not isinstance(between, Var) or not self._is_first(first):
            return None
        x = resolve(self.names, first.invars[0])
        pair = _Pair(first.op, second.op, x.aval, self.mesh, lambda axes: self.variance.same(x, axes))
        if _alone(pair):
            self.names[second.outvars[0]] = x
            if isinstance(x, Var):
                self.uses[x] = self.uses.get(x, 1) + self.uses.get(second.outvars[0], 0)
            return []
        merged = _together(pair) if self.uses.get(between, 1) == 1 else None
        if merged is None:
            return None
        self.gone.add(id(first))
        return self._written(merged, first, second, x)

    def _is_first(self, eqn: JaxprEqn) -> bool:
        if isinstance(eqn.op, ConvertElementType):
            (x,), (y,) = eqn.invars, eqn.outvars
            return x.aval.dtype.itemsize < y.aval.dtype.itemsize
        return isinstance(eqn.op, Collective) and bool(eqn.invars)

    def _written(self, ops: Sequence[Op], first: JaxprEqn, second: JaxprEqn, x: Atom) -> list[JaxprEqn]:
        note = merged_note([e for e in (first, second) if isinstance(e.op, Collective) and e.op.kind])
        eqns = []
        for op in ops:
            out = second.outvars[0] if op is ops[-1] else Var(op.infer(x.aval))
            place = second if type(op) is type(second.op) else first
            eqns.append(JaxprEqn(op, [x], [out], place.source, note if isinstance(op, Collective) else first.note))
            x = out
        return eqns
