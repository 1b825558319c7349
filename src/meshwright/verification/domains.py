"""Finds intervals from which to draw the inputs of a program.

The forward pass computes intervals that contain values for certain (constants, counters, exponentials). The backward
pass propagates what ops need of their operands (:meth:`meshwright.ir.op.Op.domain`), through arithmetic and the bodies
of loops and branches. Correctness does not depend on this: inputs that are drawn badly lead to results that are not
finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import meshwright.ops.domains  # noqa: F401  (the rules)
from meshwright.core import dtypes
from meshwright.ir.interval import ANYWHERE, BITS, NON_NEGATIVE, Interval
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ops.control.regions import OPERAND, OUTPUT, PARAMETER, RESULT, End, RegionOp

#: backward passes over the body of a loop; what the next iteration needs of a carry, this one must return
_ROUNDS = 2


def input_domains(jaxpr: ClosedJaxpr) -> list[Interval]:
    """The interval in which each parameter of a jaxpr without calls should lie."""
    walk = _Walk()
    walk.forward(jaxpr)
    walk.backward(jaxpr)
    return [walk.wishes.get(v, ANYWHERE) for v in jaxpr.jaxpr.invars]


class _Walk:
    def __init__(self) -> None:
        self.known: dict[Var, Interval] = {}
        self.wishes: dict[Var, Interval] = {}
        #: maps a value to one of which it is a positive multiple
        self.multiple_of: dict[Atom, Atom] = {}

    def where(self, atom: Atom) -> Interval:
        """The interval in which a value is known to lie."""
        if isinstance(atom, Literal):
            return _span(atom.val)
        return BITS if dtypes.is_bool(atom.aval.dtype) else self.known.get(atom, ANYWHERE)

    def wish(self, atom: Atom, wish: Interval) -> None:
        """Add a wish for a value, unless the value is known to fulfil it."""
        special = wish.definite or wish.columns
        if isinstance(atom, Var) and not wish.says_nothing and (special or not wish.holds(self.where(atom))):
            self.wishes[atom] = self.wishes[atom].meet(wish) if atom in self.wishes else wish

    def forward(self, jaxpr: ClosedJaxpr) -> None:
        for var, value in zip(jaxpr.jaxpr.constvars, jaxpr.consts):
            self.known[var] = _span(value)
        for eqn in jaxpr.eqns:
            if isinstance(eqn.op, RegionOp):
                self._enter(eqn, eqn.op)
            elif not eqn.op.multiple_results:
                self.known[eqn.outvars[0]] = self.image(eqn)

    def image(self, eqn: JaxprEqn) -> Interval:
        """The interval of a result. A square, or the product of a value and its positive multiple, is not negative."""
        known = [self.where(a) for a in eqn.invars]
        if eqn.op.even:
            (a, x), (b, y) = ((self.multiple_of.get(v, v), k) for v, k in zip(eqn.invars, known))
            if a is b:
                return NON_NEGATIVE
            if x.low > 0 or y.low > 0:
                self.multiple_of[eqn.outvars[0]] = b if x.low > 0 else a
        return eqn.op.image(known, _avals(eqn))

    def _enter(self, eqn: JaxprEqn, op: RegionOp) -> None:
        for tie in op.ties():
            if {end.side for end in tie} == {OPERAND, PARAMETER}:
                for end in tie[1:]:
                    self.known[_atom(eqn, end)] = self.where(_atom(eqn, tie[0]))  # type: ignore[index]
        for region in op.regions():
            self.forward(region)

    def backward(self, jaxpr: ClosedJaxpr) -> None:
        for eqn in reversed(jaxpr.eqns):
            if isinstance(eqn.op, RegionOp):
                self._leave(eqn, eqn.op)
            wishes = [self.wishes.get(v, ANYWHERE) for v in eqn.outvars]
            for atom, wish in zip(eqn.invars, eqn.op.domain(wishes, [self.where(a) for a in eqn.invars], _avals(eqn))):
                self.wish(atom, wish)

    def _leave(self, eqn: JaxprEqn, op: RegionOp) -> None:
        ties = list(op.ties())
        for _ in range(_ROUNDS):
            self._pass(eqn, ties, (RESULT, PARAMETER), (OUTPUT,))
            for region in op.regions():
                self.backward(region)
        self._pass(eqn, ties, (RESULT, PARAMETER), (OPERAND,))

    def _pass(self, eqn: JaxprEqn, ties: Sequence[Sequence[End]], sources: Sequence[str], to: Sequence[str]) -> None:
        for tie in ties:
            wishes = [self.wishes.get(_atom(eqn, end), ANYWHERE) for end in tie if end.side in sources]  # type: ignore
            for end in tie:
                if end.side in to:
                    for wish in wishes:
                        self.wish(_atom(eqn, end), wish.without_columns())


_ENDS: dict[str, Callable[[JaxprEqn, End], Atom]] = {
    OPERAND: lambda eqn, end: eqn.invars[end.index],
    RESULT: lambda eqn, end: eqn.outvars[end.index],
    PARAMETER: lambda eqn, end: eqn.op.regions()[end.body].jaxpr.invars[end.index],
    OUTPUT: lambda eqn, end: eqn.op.regions()[end.body].jaxpr.outvars[end.index],
}


def _atom(eqn: JaxprEqn, end: End) -> Atom:
    """The operand, result, parameter or output at an end of a tie."""
    return _ENDS[end.side](eqn, end)


def _avals(eqn: JaxprEqn) -> list[Any]:
    return [a.aval for a in eqn.invars]


def _span(value: Any) -> Interval:
    """The interval of a constant's elements."""
    array = np.asarray(value)
    if array.dtype.kind == "c" or not array.size:
        return ANYWHERE
    with np.errstate(invalid="ignore"):
        numbers = array.astype(np.float64)
        return ANYWHERE if np.isnan(numbers).any() else Interval(float(numbers.min()), float(numbers.max()))
