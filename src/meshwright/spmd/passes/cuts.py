"""Places all-gathers of values with several uses where the fewest bytes are sent.

There is no single place after all uses of a gathered value, so it is not part of the trees of
:mod:`~meshwright.spmd.passes.sink`. Here the values that can be computed in tiles form a graph, from the operands of
gathers to the equations that need whole operands. Devices get a whole value by gathering it or by computing it from
whole operands, so the gathers that are needed form a vertex cut of the graph, and the cheapest ones a minimum cut (Ford
and Fulkerson 1956).

The price is in bytes, and includes starting the collectives and redundant work: values before the cut are computed in
tiles, a share on each device (:func:`~meshwright.spmd.passes.gathers.on_tiles`); values after it on every device. Ties
are decided in favour of the last cut. A slice that takes the device's own tile of a gathered value needs no gather. A
sum over tiles ends its path; its price is that of completing the sum.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import field, replace
from functools import cached_property
from itertools import islice
from typing import Any, TypeGuard

from meshwright.core.records import dataclass
from meshwright.ir.flow import Network
from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn, Var
from meshwright.ir.rewrite import producers_of, uses_of
from meshwright.ops.collective.tiles import AllGather, AllSlice
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim
from meshwright.sharding import AbstractMesh
from meshwright.spmd.passes.gathers import on_tiles
from meshwright.spmd.passes.rewrite import merged_note
from meshwright.spmd.passes.sink import Moved, is_simple
from meshwright.spmd.prices import collective_price, prices
from meshwright.spmd.rules import eqn_rule
from meshwright.spmd.varying import Variance

#: capacities are whole numbers of this fraction of a byte
_UNIT = 1 << 20
#: the rough share of an elementwise equation's operands and results that goes through memory, given fusion
_FUSED = 0.25
#: the most reasons that a gather takes over from those it replaces
_NAMED = 3
#: the most values of a graph; larger ones are left as they are
_MOST = 4_000


def cut_gathers(jaxpr: Jaxpr, variance: Variance, mesh: AbstractMesh) -> Jaxpr:
    """Place gathers at the last of the cheapest cuts. Repeated for values gathered along several axes in turn."""
    for _ in mesh.axis_names:
        if not any(isinstance(e.op, AllGather) for e in jaxpr.eqns):
            return jaxpr
        graph = _Graph(jaxpr, variance, mesh)
        if not graph.moves():
            return jaxpr
        jaxpr = graph.rewritten()
        if not graph.in_turn:  # a second cut would be the first
            return jaxpr
        variance = Variance(jaxpr, variance.inputs, variance.units)
    return jaxpr


@dataclass(eq=False)
class _Graph:
    """The values of a jaxpr that can be computed in tiles.

    ``tiled`` says how and ``eqns`` which equation computes them. ``whole`` are those with a reader that needs them
    whole, ``taken`` maps slices to the value of which they are the tile, and ``cut`` are those to gather. Sums over
    tiles are included, with partial sums as their tiles; their readers always get them whole.
    """

    jaxpr: Jaxpr
    variance: Variance
    mesh: AbstractMesh
    tiled: dict[Var, Moved] = field(default_factory=dict, init=False)
    eqns: dict[Var, JaxprEqn] = field(default_factory=dict, init=False)
    whole: set[Var] = field(default_factory=set, init=False)
    taken: dict[Var, Var] = field(default_factory=dict, init=False)
    cut: set[Var] = field(default_factory=set, init=False)

    @property
    def in_turn(self) -> bool:
        """Whether a gather moves whose operand is gathered along other axes, so that this one may follow it."""
        moving = (v for v, m in self.tiled.items() if m.local is None and v not in self.cut)
        return any(self._is_tiled(self.eqns[v].invars[0]) for v in moving)

    @cached_property
    def makers(self) -> dict[Var, JaxprEqn]:
        return producers_of(self.jaxpr)

    def moves(self) -> bool:
        """Compute the cut; whether it places any gather elsewhere than now."""
        for eqn in self.jaxpr.eqns:
            self._enter(eqn)
        starts = {v for v, m in self.tiled.items() if m.local is None}
        if len(starts) == len(self.tiled) and not self.taken:
            return False
        if len(self.tiled) > _MOST:
            return False
        uses = uses_of(self.jaxpr)
        for var in self.tiled:
            users = uses.get(var, ())
            if (users and not self._is_tiled(var)) or any(e is None or not self._by_tiles(e) for e in users):
                self.whole.add(var)
        self.cut = _cut(self)
        return self.cut != starts

    def _enter(self, eqn: JaxprEqn) -> None:
        if not is_simple(eqn):
            return
        (out,) = eqn.outvars
        if isinstance(eqn.op, AllGather):
            self.tiled[out], self.eqns[out] = Moved(None, (), eqn.invars[0].aval, eqn.op), eqn
            return
        pending = {i: self.tiled[a] for i, a in enumerate(eqn.invars) if self._is_tiled(a)}
        if not pending:
            return
        if isinstance(eqn.op, AllSlice):
            if _undoes(eqn.op, pending[0].collective):
                self.taken[out] = eqn.invars[0]  # type: ignore[assignment]
            return
        moved = on_tiles(eqn, pending, self.variance, self.mesh)
        if moved is not None:
            self.tiled[out], self.eqns[out] = moved, eqn

    def _is_tiled(self, atom: Atom) -> TypeGuard[Var]:
        """Whether an operand is available in tiles, which sums are not."""
        return isinstance(atom, Var) and atom in self.tiled and isinstance(self.tiled[atom].collective, AllGather)

    def _by_tiles(self, eqn: JaxprEqn) -> bool:
        """Whether an equation can take its operands in tiles."""
        if len(eqn.outvars) != 1:
            return False
        moved = self.tiled.get(eqn.outvars[0])
        return eqn.outvars[0] in self.taken if moved is None else moved.local is not None

    def operands(self, var: Var) -> Iterator[Var]:
        """The values whose tiles a value's tile is computed from."""
        if self.tiled[var].local is not None:
            yield from (a for a in dict.fromkeys(self.eqns[var].invars) if self._is_tiled(a))

    def price(self, var: Var) -> int:
        moved = self.tiled[var]
        return round(collective_price(moved.collective, moved.value, self.mesh) * _UNIT)

    def repeated(self, var: Var) -> int:
        """The price of the redundant work if every device computes the whole value."""
        moved, eqn = self.tiled[var], self.eqns[var]
        if moved.local is None or eqn.op.moves_only:
            return 0
        points = eqn_rule(eqn).work if eqn_rule(eqn).is_product else 0
        size = max(a.aval.nbytes for a in (*eqn.invars, *eqn.outvars))
        unit, n = prices(self.mesh), moved.collective.group_size
        return round((unit.work * points + unit.memory * _FUSED * size) * (n - 1) / n * _UNIT)

    # --- the new program ------------------------------------------------------------------------------------
    def rewritten(self) -> Jaxpr:
        """The jaxpr with gathers at the cut, and everything before them computed in tiles."""
        whole, local = self._needed()
        names: dict[Atom, Atom] = {}
        eqns: list[JaxprEqn] = []
        for eqn in self.jaxpr.eqns:
            out = eqn.outvars[0] if len(eqn.outvars) == 1 else None
            if out in self.taken:
                names[out] = names[self.taken[out]]
                continue
            eqn = eqn.replace(invars=[names[a] if a in self.taken else a for a in eqn.invars])
            if out is None or out not in self.tiled:
                eqns.append(eqn)
                continue
            if out in local:
                names[out] = self._local(eqn, names, eqns)
            if out in self.cut and out in whole:
                leaves = list(islice(self._leaves(out), _NAMED))
                moved = JaxprEqn(self.tiled[out].collective, [names[out]], [out], leaves[0].source, merged_note(leaves))
                eqns.append(moved)
            elif out in whole:
                eqns.append(eqn)
        outs = [names[a] if a in self.taken else a for a in self.jaxpr.outvars]
        return self.jaxpr.replace(eqns=eqns, outvars=outs)

    def _needed(self) -> tuple[set[Var], set[Var]]:
        """The values that are needed whole, and those in tiles."""
        whole, local = set(self.whole), set(self.taken.values())
        for var in reversed(self.tiled):
            if var in whole and var not in self.cut:
                whole.update(self.operands(var))
            if var in whole and var in self.cut:
                local.add(var)
            if var in local:
                local.update(self.operands(var))
        return whole, local

    def _local(self, eqn: JaxprEqn, names: dict[Atom, Atom], eqns: list[JaxprEqn]) -> Atom:
        """The tile of a value; appends the equations that compute it."""
        (out,) = eqn.outvars
        moved = self.tiled[out]
        if moved.local is None:
            return eqn.invars[0]
        before = [
            self._slice(e.replace(invars=[names[a] if a in self.taken else a for a in e.invars])) for e in moved.before
        ]
        invars = [names[a] if a in self.taken or self._is_tiled(a) else a for a in moved.local.invars]
        value = Var(moved.value)
        eqns += [*before, moved.local.replace(invars=invars, outvars=[value])]
        return value

    def _slice(self, eqn: JaxprEqn) -> JaxprEqn:
        """The equation for the tile of a whole value. A broadcast value is broadcast to the tile's shape directly."""
        (whole,) = eqn.invars
        made = self.makers.get(whole)  # type: ignore[arg-type]
        if made is None or not isinstance(made.op, BroadcastInDim):
            return eqn
        if eqn.op.dimension in made.op.broadcast_dimensions:  # type: ignore[attr-defined]
            return eqn
        return made.replace(op=replace(made.op, shape=eqn.outvars[0].aval.shape), outvars=eqn.outvars)

    def _leaves(self, var: Var) -> Iterator[JaxprEqn]:
        """The gathers on which a value depends, nearest first."""
        seen, left = {var}, deque([var])
        while left:
            v = left.popleft()
            if self.tiled[v].local is None:
                yield self.eqns[v]
            new = [o for o in self.operands(v) if o not in seen]
            seen.update(new)
            left += new


def _undoes(op: AllSlice, gather: Any) -> bool:
    return (op.axes, op.dimension) == (gather.axes, gather.dimension)


#: source and sink of the flow network. Each value is an edge between two nodes, with its price as capacity; the
#: capacity from the source to its first node is the price of the redundant work if it is not computed in tiles
_SOURCE, _SINK = "source", "sink"


def _cut(graph: _Graph) -> set[Var]:
    """The minimum cut nearest to the values that must be whole."""
    starts = {v for v, moved in graph.tiled.items() if moved.local is None}
    begins = starts - graph.whole  # the others are gathered whatever the cut
    network = Network()
    for var in graph.tiled:
        network.edge((var, 0), (var, 1), graph.price(var) if var in begins or var not in starts else 0)
        network.edge(_SOURCE, (var, 0), math.inf if var in begins else graph.repeated(var))
        for operand in graph.operands(var):
            network.edge((operand, 1), (var, 0), math.inf)
            network.edge((var, 0), (operand, 0), math.inf)  # a tile is computed from tiles
        if var in graph.whole:
            network.edge((var, 1), _SINK, math.inf)
    behind = network.behind(_SOURCE, _SINK)
    return (starts - begins) | {v for v in graph.tiled if (v, 1) in behind and (v, 0) not in behind}
