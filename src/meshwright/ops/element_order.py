"""Moves reversals and rotations past elementwise computations, where they cancel.

The derivative of a function of a reversed or rotated array reverses or rotates its result back. Elementwise ops in
between do not depend on the order: computed on the original array, both turns disappear. Along a split dimension, each
turn would communicate the array. Sums over turned dimensions do not depend on the order either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var, all_eqns
from meshwright.ir.rewrite import in_regions, replaced
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.reduce.reductions import Reduction
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim, ReduceSum
from meshwright.ops.shape.cyclic import CyclicWindow
from meshwright.ops.shape.rearrange import Rev


class Turn(NamedTuple):
    """Row ``i`` of a value is row ``sign * i + start`` of another, modulo their number."""

    sign: int
    start: int


#: the turns of an array's dimensions, without identities
Order = Mapping[int, Turn]


class _Turned(NamedTuple):
    """A value whose rows are those of ``base`` in an order that an equation of the program defines."""

    base: Atom
    order: Order
    by: JaxprEqn | None = None


def in_one_order(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with reversals and rotations moved after elementwise computations, if that leaves fewer of them."""
    if not any(_turns(e) for e in all_eqns(jaxpr.jaxpr)):
        return jaxpr
    jaxpr = replaced(jaxpr, lambda e: in_regions(e, in_one_order))
    turned = _Orders(jaxpr.jaxpr).rewritten()
    return jaxpr.replace(jaxpr=turned) if _moved(turned) < _moved(jaxpr.jaxpr) else jaxpr


def _moved(jaxpr: Jaxpr) -> int:
    """The number of elements that are turned."""
    return sum(e.outvars[0].aval.size for e in jaxpr.eqns if _turns(e))


def _turns(eqn: JaxprEqn) -> Order | None:
    """The turns of a reversal or rotation; None for other equations."""
    shape = eqn.outvars[0].aval.shape if len(eqn.outvars) == 1 else ()
    if 0 in shape:
        return None
    if isinstance(eqn.op, Rev):
        return {d: Turn(-1, shape[d] - 1) for d in eqn.op.dimensions}
    if isinstance(eqn.op, CyclicWindow) and eqn.invars[0].aval.shape == shape:
        return {eqn.op.dimension: Turn(1, eqn.op.start)}
    return None


def _after(first: Order, then: Order, shape: tuple[int, ...]) -> Order:
    """The composition of two orders."""
    composed = dict(first)
    for d, (sign, start) in then.items():
        before = first.get(d, Turn(1, 0))
        turn = Turn(before.sign * sign, (before.sign * start + before.start) % shape[d])
        composed[d] = turn
        if turn == (1, 0) or shape[d] == 1:
            del composed[d]
    return composed


@dataclass(eq=False)
class _Orders:
    """Rewrites a jaxpr so that values are computed in the order of their operands, and turned only where needed."""

    jaxpr: Jaxpr

    def rewritten(self) -> Jaxpr:
        """The jaxpr with turns only where something needs them."""
        self.turned: dict[Var, _Turned] = {}
        self.made: dict[tuple[Atom, tuple[tuple[int, Turn], ...]], Atom] = {}
        self.repeated: dict[Var, set[int]] = {}
        self.eqns: list[JaxprEqn] = []
        for eqn in self.jaxpr.eqns:
            self._enter(eqn)
        outs = [self._in_order(a) for a in self.jaxpr.outvars]
        return self.jaxpr.replace(eqns=self.eqns, outvars=outs)

    def _of(self, atom: Atom) -> _Turned:
        return self.turned.get(atom, _Turned(atom, {})) if isinstance(atom, Var) else _Turned(atom, {})

    def _enter(self, eqn: JaxprEqn) -> None:
        """Add an equation, on unturned operands if that is possible."""
        given = [self._of(a) for a in eqn.invars]
        if (turns := _turns(eqn)) is not None:
            order = _after(given[0].order, turns, eqn.outvars[0].aval.shape)
            self.turned[eqn.outvars[0]] = _Turned(given[0].base, order, eqn)
            return
        if isinstance(eqn.op, BroadcastInDim):
            sizes = dict(zip(eqn.op.broadcast_dimensions, eqn.invars[0].aval.shape))
            self.repeated[eqn.outvars[0]] = {d for d in range(len(eqn.op.shape)) if sizes.get(d, 1) == 1}
        result = self._result(eqn)
        if result is None:
            self.eqns.append(eqn.replace(invars=[self._in_order(a) for a in eqn.invars]))
            return
        new = [Var(v.aval) for v in eqn.outvars] if result else eqn.outvars
        self.eqns.append(eqn.replace(invars=[g.base for g in given], outvars=new))
        if result:
            by = next(g.by for g in given if g.order)
            self.turned.update((old, _Turned(v, result, by)) for old, v in zip(eqn.outvars, new))

    def _result(self, eqn: JaxprEqn) -> Order | None:
        """The order of the results if the operands are taken unturned; None if the equation needs turned operands."""
        orders = [self._of(a).order for a in eqn.invars]
        if not any(orders):
            return {}
        op: Any = eqn.op
        if isinstance(op, Elementwise):
            order = {d: turn for o in orders for d, turn in o.items()}
            alike = all(o.get(d) == order[d] or self._repeats(a, d) for a, o in zip(eqn.invars, orders) for d in order)
            return order if alike else None
        if isinstance(op, (Reduction, ReduceSum)):
            rest = [d for d in range(eqn.invars[0].aval.ndim) if d not in op.axes]
            return {rest.index(d): turn for d, turn in orders[0].items() if d not in op.axes}
        if isinstance(op, BroadcastInDim):
            return {op.broadcast_dimensions[d]: turn for d, turn in orders[0].items()}
        return None

    def _repeats(self, atom: Atom, dim: int) -> bool:
        """Whether a value is constant along a dimension."""
        return not atom.aval.shape or (isinstance(atom, Var) and dim in self.repeated.get(atom, ()))

    def _in_order(self, atom: Atom) -> Atom:
        """The value in its proper order, turned at most once."""
        base, order, by = self._of(atom)
        if not order:
            return base
        key = base, tuple(sorted(order.items()))
        if key not in self.made:
            assert by is not None
            self.made[key] = self._turn(base, order, by)
        return self.made[key]

    def _turn(self, base: Atom, order: Order, by: JaxprEqn) -> Atom:
        shape = base.aval.shape
        reversed_ = tuple(d for d, turn in sorted(order.items()) if turn.sign < 0)
        starts = {d: (t.start if t.sign > 0 else shape[d] - 1 - t.start) % shape[d] for d, t in sorted(order.items())}
        ops: list[Any] = [Rev(reversed_)] if reversed_ else []
        ops += [CyclicWindow(d, start, shape[d]) for d, start in starts.items() if start]
        for op in ops:
            new = Var(base.aval)
            self.eqns.append(JaxprEqn(op, [base], [new], by.source, by.note))
            base = new
        return base
