"""Where values go from the dimensions that inputs split to those that outputs do.

Layouts of outputs, and of what can be taken in one layout alone, are carried back to what these are made of. Where a
value's own layout has the same axes on other dimensions, something has to be sent, here or further on: what one device
sends is least at a minimum cut between the values that are needed as they are (what a sum takes, for one) and these
ends. Before the cut values stay as they are, behind it they are as the ends are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field

from meshwright.core.records import dataclass
from meshwright.ir.flow import Network
from meshwright.ir.jaxpr import JaxprEqn, Var
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.rule import ShardingRule
from meshwright.spmd.factors import carried_back, carried_on
from meshwright.spmd.reshard.plan import reshard_cost

_SOURCE, _SINK = "source", "sink"


@dataclass(frozen=True)
class Turned:
    """The values of ``eqns`` whose layouts are ``carried`` back from the ``ends``; ``levels`` is 0 where these
    are carried through, and ``own`` says the layouts that values have else."""

    eqns: Sequence[JaxprEqn]
    rules: Sequence[ShardingRule]
    levels: Sequence[int]
    carried: Mapping[Var, Layout]
    ends: Collection[Var]
    own: Callable[[Var], Layout]
    mesh: AbstractMesh
    as_made: dict[Var, Layout] = field(default_factory=dict, init=False)

    def up_to_the_cut(self) -> set[Var]:
        """The values that are computed as they are, those at the cut too, which then go where the ends are."""
        turned = {v for v, layout in self.carried.items() if _turns(self.own(v), layout)}
        if not turned:
            return set()
        self.as_made.update(self._made_of(turned))
        turned |= self.as_made.keys()
        network = Network()
        for var in turned:
            network.edge((var, 0), (var, 1), max(1, self._price(var)))
        made = {v for eqn in self.eqns for v in eqn.outvars}
        for var in turned - made:
            network.edge(_SOURCE, (var, 0), math.inf)
        for eqn, rule, level in zip(self.eqns, self.rules, self.levels):
            self._enter(network, eqn, level, turned)
            for var in turned.intersection(eqn.outvars):
                network.edge((var, 0), _SINK, self._apart(eqn, rule))
        for var in turned.intersection(self.ends):
            network.edge((var, 1), _SINK, math.inf)
        behind = network.behind(_SOURCE, _SINK)
        return {v for v in turned if (v, 0) not in behind}

    def _made_of(self, turned: set[Var]) -> Iterator[tuple[Var, Layout]]:
        """Ends that take an axis to another dimension only themselves, and how they would be as what they are made of
        is."""
        for eqn, rule, level in zip(self.eqns, self.rules, self.levels):
            out = eqn.outvars[0] if len(eqn.outvars) == 1 and not level else None
            mine = [i for i, a in enumerate(eqn.invars) if a in turned]
            if out is not None and out in self.ends and out not in turned and mine:
                largest = max(mine, key=lambda i: eqn.invars[i].aval.nbytes)
                made = carried_on(self.own(eqn.invars[largest]).dims, largest, rule, self.mesh)  # type: ignore[arg-type]
                if made is not None:
                    yield out, made

    def _enter(self, network: Network, eqn: JaxprEqn, level: int, turned: set[Var]) -> None:
        out = eqn.outvars[0] if len(eqn.outvars) == 1 and not level else None
        passes = out in self.carried
        operands = list(dict.fromkeys(a for a in eqn.invars if isinstance(a, Var)))
        for var in filter(turned.__contains__, operands):
            if not passes:  # it takes the value as it is
                network.edge(_SOURCE, (var, 0), math.inf)
            else:
                network.edge((var, 1), (out, 0) if out in turned else _SINK, math.inf)
        for var in filter(turned.__contains__, eqn.outvars):
            others = sum(self._price(v) for v in operands if v not in turned) if passes else math.inf
            network.edge(_SOURCE, (var, 0), others)

    def _apart(self, eqn: JaxprEqn, rule: ShardingRule) -> int:
        """What an equation sends where all values are as they are: its operands may lie otherwise than its result."""
        needed = carried_back(self._as_it_is(eqn.outvars[0]).dims, rule, self.mesh)
        pairs = [(a, layout) for a, layout in zip(eqn.invars, needed) if isinstance(a, Var) and layout is not None]
        return sum(self._moved(var, layout) for var, layout in pairs if _turns(self._as_it_is(var), layout))

    def _as_it_is(self, var: Var) -> Layout:
        return self.as_made.get(var) or self.own(var)

    def _price(self, var: Var) -> int:
        """What bringing a value to the carried layout sends."""
        return self._moved(var, self.carried[var]) if var in self.carried else 0

    def _moved(self, var: Var, layout: Layout) -> int:
        """Whole numbers: sums of them are the same in any order, and so is the cut."""
        return round(reshard_cost(var.aval.shape, var.aval.dtype.itemsize, self._as_it_is(var), layout, self.mesh))


def _turns(own: Layout, carried: Layout) -> bool:
    """Whether an axis is on another dimension."""
    places = {axis: d for d, axes in enumerate(own.dims) for axis in axes}
    return any(places.get(axis, d) != d for d, axes in enumerate(carried.dims) for axis in axes)
