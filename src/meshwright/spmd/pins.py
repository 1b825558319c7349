"""Pins: the layouts in which values should end up because of what is made of them.

The update of a replicated bias in an optimizer is a chain of elementwise ops on its gradient. Knowing where the chain
ends, the partitioner gathers the gradient once, and not each moment and the update separately. So layouts are carried
backwards, through equations that pass values through, from where they are given: outputs, constraints, and operands
that an op cannot take as they are split.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, JaxprEqn, Var
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.evenness import well_divided
from meshwright.sharding.rule import PARALLEL, REPLICATED, ShardingRule
from meshwright.spmd.factors import carried_back
from meshwright.spmd.flatten import Flat, is_tie
from meshwright.spmd.layout_change import LayoutChange
from meshwright.spmd.spread import Dims


def pin(
    flat: Flat,
    pinned: dict[Var, Layout],
    fixing: Sequence[JaxprEqn],
    layout: Callable[[Atom], Layout],
    mesh: AbstractMesh,
) -> None:
    """Add to ``pinned``, the pins of outputs, those of other values.

    ``fixing`` are the constraints that fix all dimensions; ``layout`` gives the layouts that propagation found.
    """
    _Pins(flat, pinned, layout, mesh).run(fixing)


@dataclass(eq=False)
class _Pins:
    flat: Flat
    pinned: dict[Var, Layout]
    layout: Callable[[Atom], Layout]
    mesh: AbstractMesh

    def run(self, fixing: Sequence[JaxprEqn]) -> None:
        flat, pinned = self.flat, self.pinned
        for eqn in fixing:
            self.constrained(eqn)
        before = set(pinned)
        for eqn, rule in zip(flat.eqns, flat.rules):
            self.operands(eqn, rule)
        ends, only = dict(pinned), set(pinned) - before
        self.carry_back()
        passes = [not level or bool(self.carried(i)) for i, level in enumerate(flat.levels)]
        change = LayoutChange(flat.eqns, flat.rules, passes, pinned, ends, only, self.layout, self.mesh)
        stays = change.up_to_the_cut()
        if stays:
            pinned.clear()
            pinned.update(ends)
            self.carry_back(stays)

    def constrained(self, eqn: JaxprEqn) -> None:
        """Pin the operand of a constraint that fixes all dimensions, if nothing else reads it, and unless all that is
        behind the constraint is laid out otherwise."""
        dims = self.layout(eqn.outvars[0]).dims
        for atom in eqn.invars:  # none at the border of a manual region
            if isinstance(atom, Var) and self.has_one_reader(atom) and not self.is_laid_out_again(eqn, dims):
                self.pinned.setdefault(atom, Layout(dims))

    def has_one_reader(self, var: Var) -> bool:
        return len(self.flat.neighbours[var]) <= 2  # the other one computes it

    def is_laid_out_again(self, eqn: JaxprEqn, dims: Dims) -> bool:
        """Whether the result of a constraint to ``dims`` only goes where it is laid out otherwise, as back into a loop.

        What stays as it is there need not be sent to the constraint and back.
        """
        out = eqn.outvars[0]
        known = self.pinned.get(out)
        ends = [] if known is None else [[known.dims]]
        for j in self.flat.neighbours[out]:
            if self.flat.eqns[j] is not eqn:
                tied = is_tie(self.flat.eqns[j])
                ends.append([self.layout(a).dims for a in self.flat.atoms[j] if a is not out] if tied else [dims])
        return bool(ends) and not any(dims in end for end in ends)

    def operands(self, eqn: JaxprEqn, rule: ShardingRule) -> None:
        """Pin the operands that an equation cannot take as split, if it is their only reader.

        The axes of the dimension that cannot be split go to the first free dimension that they divide well, so that the
        producer of the value knows its destination.
        """
        for atom, factors in zip(eqn.invars, rule.operands):
            if not isinstance(atom, Var) or atom in self.pinned or not self.has_one_reader(atom):
                continue
            dims, shape = list(self.layout(atom).dims), atom.aval.shape
            if not any(dims):
                continue
            kinds = [rule.factors[fs[0]].kind if len(fs) == 1 else "" for fs in factors]
            for d, kind in enumerate(kinds):
                if kind == REPLICATED and dims[d]:
                    tiles = self.mesh.sizes(dims[d])
                    free = [o for o, k in enumerate(kinds) if k == PARALLEL and not dims[o]]
                    if free := well_divided({o: (shape[o], tiles) for o in free}):
                        dims[free[0]], dims[d] = dims[d], ()
                        self.pinned[atom] = Layout(tuple(dims))

    def carry_back(self, stays: Container[Var] = ()) -> None:
        """Pin the operands of pinned values, except where the pinned value is in ``stays``."""
        for i, eqn in reversed(list(enumerate(self.flat.eqns))):
            if eqn.outvars and eqn.outvars[0] not in stays:
                for atom, layout in zip(eqn.invars, self.carried(i)):
                    if layout is not None and isinstance(atom, Var):
                        self.pinned.setdefault(atom, layout)

    def carried(self, i: int) -> Sequence[Layout | None]:
        """The layouts that a pinned result of an equation that passes values through gives its operands, or none."""
        eqn = self.flat.eqns[i]
        if not self.flat.passes[i] or len(eqn.outvars) != 1 or eqn.outvars[0] not in self.pinned:
            return ()
        found = carried_back(self.pinned[eqn.outvars[0]].dims, self.flat.rules[i], self.mesh)
        own = frozenset(self.mesh.expand(eqn.op.own_axes))
        return [lo if lo is None or all(map(own.isdisjoint, lo.dims)) else None for lo in found] if own else found
