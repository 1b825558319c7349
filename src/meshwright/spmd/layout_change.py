"""Decides where values change from the layouts of the inputs to those of the outputs.

The layouts of outputs, and of operands that an op accepts in one layout only, are carried back to the values that they
are computed from. If a value's own layout has the same axes on other dimensions, there must be a reshard at this value
or after it. The fewest bytes are sent at a minimum cut between the values that are needed in their own layouts (such as
the operands of a sum) and these ends. Values before the cut keep their own layouts; values after it get those of the
ends.
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
class LayoutChange:
    """The minimum cut through ``eqns`` between values' ``own`` layouts and those ``carried`` back from the ``ends``.

    Layouts are carried through the equations of which ``passes`` is true.
    """

    eqns: Sequence[JaxprEqn]
    rules: Sequence[ShardingRule]
    passes: Sequence[bool]
    carried: Mapping[Var, Layout]
    ends: Collection[Var]
    #: the ends that their only reader takes in the layout of the end
    only: Collection[Var]
    own: Callable[[Var], Layout]
    mesh: AbstractMesh
    layouts_of_ends: dict[Var, Layout] = field(default_factory=dict, init=False)

    def up_to_the_cut(self) -> set[Var]:
        """The values that keep their own layouts, including those on the cut, which are resharded there."""
        changed = {v for v, layout in self.carried.items() if _changes(self.own(v), layout)}
        if not changed:
            return set()
        self.layouts_of_ends.update(self._made_of(changed))
        changed |= self.layouts_of_ends.keys()
        network = Network()
        for var in changed:
            network.edge((var, 0), (var, 1), max(1, self._price(var)))
        made = {v for eqn in self.eqns for v in eqn.outvars}
        for var in changed - made:
            network.edge(_SOURCE, (var, 0), math.inf)
        for eqn, rule, passes in zip(self.eqns, self.rules, self.passes):
            self._enter(network, eqn, passes, changed)
            for var in changed.intersection(eqn.outvars):
                network.edge((var, 0), _SINK, self._apart(eqn, rule))
        for var in changed.intersection(self.ends):
            network.edge((var, 1), _SINK, math.inf)
        behind = network.behind(_SOURCE, _SINK)
        return {v for v in changed if (v, 0) not in behind}

    def _made_of(self, changed: set[Var]) -> Iterator[tuple[Var, Layout]]:
        """The ends at which an axis first changes its dimension, and the layouts that their operands give them."""
        for eqn, rule, passes in zip(self.eqns, self.rules, self.passes):
            out = eqn.outvars[0] if len(eqn.outvars) == 1 and passes else None
            mine = [i for i, a in enumerate(eqn.invars) if a in changed]
            if out is not None and out in self.ends and out not in changed and mine:
                largest = max(mine, key=lambda i: eqn.invars[i].aval.nbytes)
                made = carried_on(self.own(eqn.invars[largest]).dims, largest, rule, self.mesh)  # type: ignore[arg-type]
                if made is not None:
                    yield out, made

    def _enter(self, network: Network, eqn: JaxprEqn, through: bool, changed: set[Var]) -> None:
        out = eqn.outvars[0] if len(eqn.outvars) == 1 and through else None
        passes = out in self.carried
        operands = list(dict.fromkeys(a for a in eqn.invars if isinstance(a, Var)))
        for var in filter(changed.__contains__, operands):
            if passes:
                network.edge((var, 1), (out, 0) if out in changed else _SINK, math.inf)
            elif var not in self.only:  # it takes the value as it is
                network.edge(_SOURCE, (var, 0), math.inf)
        for var in filter(changed.__contains__, eqn.outvars):
            others = sum(self._price(v) for v in operands if v not in changed) if passes else math.inf
            network.edge(_SOURCE, (var, 0), others)

    def _apart(self, eqn: JaxprEqn, rule: ShardingRule) -> int:
        """The bytes sent for an equation if all values keep their own layouts, which may not fit each other."""
        needed = carried_back(self._unchanged(eqn.outvars[0]).dims, rule, self.mesh)
        pairs = [(a, layout) for a, layout in zip(eqn.invars, needed) if isinstance(a, Var) and layout is not None]
        return sum(self._moved(var, layout) for var, layout in pairs if _changes(self._unchanged(var), layout))

    def _unchanged(self, var: Var) -> Layout:
        return self.layouts_of_ends.get(var) or self.own(var)

    def _price(self, var: Var) -> int:
        """The bytes sent to reshard a value to its carried layout."""
        return self._moved(var, self.carried[var]) if var in self.carried else 0

    def _moved(self, var: Var, layout: Layout) -> int:
        """The bytes sent to reshard a value; an integer, so that sums, and thus the cut, do not depend on the order."""
        return round(reshard_cost(var.aval.shape, var.aval.dtype.itemsize, self._unchanged(var), layout, self.mesh))


def _changes(own: Layout, carried: Layout) -> bool:
    """Whether the two layouts have some axis on different dimensions."""
    places = {axis: d for d, axes in enumerate(own.dims) for axis in axes}
    return any(places.get(axis, d) != d for d, axes in enumerate(carried.dims) for axis in axes)
