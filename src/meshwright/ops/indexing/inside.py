"""Positions that are inside an array for certain: a gather that fills others, with NaN say, need not look for them.

Where positions come from says where they are: a counter, the place of a maximum, what is sorted, a remainder, what is
clamped. Comparisons that this decides are left out as well, such as those for positions that count from the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.ir.constants import known_values
from meshwright.ir.interval import ANYWHERE, BITS, Interval, common_bits, hull
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var, all_eqns
from meshwright.ir.passes import Pass
from meshwright.ir.rewrite import in_jaxprs, producers_of, rebuilt, renamed
from meshwright.ops.elementwise.table import SelectN
from meshwright.ops.indexing.gather_add import FILL, Gather
from meshwright.ops.indexing.indexed import GatherScatterMode

#: the most elements of a constant that is looked at
_MOST = 2**24
Known = Sequence[Interval]
Avals = Sequence[ShapedArray]


def gathers_inside(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with gathers that promise to be inside for those that fill, where positions are known to be."""
    if not any(_fills(e.op) for e in all_eqns(jaxpr.jaxpr)):
        return jaxpr
    bounds = Bounds(jaxpr)
    names: dict[Var, Atom] = {}
    eqns: list[JaxprEqn] = []
    for old in jaxpr.eqns:
        eqn = in_jaxprs(renamed(old, names), gathers_inside)
        if (only := bounds.only.get(old.outvars[0])) is not None:
            names[old.outvars[0]] = eqn.invars[only]
            continue
        if isinstance(eqn.op, Gather) and _fills(eqn.op) and bounds.are_inside(old):
            eqn = eqn.replace(op=dataclasses.replace(eqn.op, mode=GatherScatterMode.PROMISE_IN_BOUNDS))
        eqns.append(eqn)
    return jaxpr.replace(jaxpr=rebuilt(jaxpr.jaxpr, eqns, names))


INSIDE = Pass("inside", gathers_inside, "Gathers fill nothing where positions are known to be inside.")


def _fills(op: Any) -> bool:
    return isinstance(op, Gather) and op.mode is FILL


# --- bounds -------------------------------------------------------------------------------------------------
class Bounds:
    """Intervals that contain the integers of a program for certain, whatever its arguments are."""

    def __init__(self, jaxpr: ClosedJaxpr) -> None:
        self._known: dict[Var, Interval] = {}
        self._values: dict[Var, np.ndarray] = {}
        self._made = producers_of(jaxpr.jaxpr)
        #: the operand that a select of integers always chooses
        self.only: dict[Var, int] = {}
        for var, constant in zip(jaxpr.jaxpr.constvars, jaxpr.consts):
            if _counts(var.aval) and 0 < var.aval.size <= _MOST and (values := known_values(constant)) is not None:
                self._values[var], self._known[var] = values, _span(values)
        for eqn in jaxpr.eqns:
            self._follow(eqn)

    def of(self, atom: Atom) -> Interval:
        """Where the elements of a value are."""
        if isinstance(atom, Literal):
            return _span(np.asarray(atom.val)) if _counts(atom.aval) and atom.aval.size else ANYWHERE
        return self._known.get(atom, _all_of(atom.aval))

    def are_inside(self, gather: JaxprEqn) -> bool:
        """Whether all windows of a gather are inside its operand."""
        op: Any = gather.op
        x, indices = gather.invars
        limits = op.dimension_numbers.limits(x.aval.shape, op.slice_sizes)
        columns = self._columns(indices)
        return all(0 <= at.low and at.high <= limit for at, limit in zip(columns, limits, strict=True))

    def _columns(self, indices: Atom) -> list[Interval]:
        """Where each component of the vectors in the last dimension is."""
        count = indices.aval.shape[-1]
        if isinstance(indices, Var) and indices in self._values:
            return [_span(column) for column in np.moveaxis(self._values[indices], -1, 0)]
        made: Any = self._made.get(indices) if isinstance(indices, Var) else None
        if made is not None and made.op.name == "concatenate" and made.op.dimension == indices.aval.ndim - 1:
            return [at for part in made.invars for at in self._columns(part)]
        return [self.of(indices)] * count

    def _follow(self, eqn: JaxprEqn) -> None:
        known, avals = [self.of(a) for a in eqn.invars], [a.aval for a in eqn.invars]
        if not all(v.aval.size for v in (*eqn.invars, *eqn.outvars)):
            return
        if isinstance(eqn.op, SelectN):
            found = [self._select(eqn, known)] if _counts(eqn.outvars[0].aval) else []
        elif _fills(eqn.op):
            found = known[:1] if self.are_inside(eqn) else []
        else:
            rule = _RULES.get(eqn.op.name)
            found = [] if rule is None else list(rule(eqn.op, known, avals))
        for var, interval in zip(eqn.outvars, found):
            if _counts(var.aval) and _all_of(var.aval).holds(interval):  # others go round, from one end to the other
                self._known[var] = interval

    # --- what is chosen by comparisons ----------------------------------------------------------------------
    def _select(self, eqn: JaxprEqn, known: Known) -> Interval:
        which, cases = known[0], known[1:]
        if which.low == which.high:
            chosen = 1 + int(which.low)
            if eqn.invars[chosen].aval == eqn.outvars[0].aval:
                self.only[eqn.outvars[0]] = chosen
            return known[chosen]
        if len(cases) == 2:
            ways = (self._if(eqn.invars[0], bool(i), eqn.invars[1 + i]) for i in range(2))
            cases = [way for way in ways if way.low <= way.high] or cases
        return hull(*cases)

    def _if(self, condition: Atom, holds: bool, x: Atom) -> Interval:
        """Where ``x`` is if a condition holds, or does not; low > high if it never does."""
        interval, made = self.of(x), self._made.get(x) if isinstance(x, Var) else None
        for var, where in self._told(condition, holds):
            if var is x:
                interval = _both(interval, where)
            elif made is not None and made.op.name in ("add", "sub") and var in made.invars:
                given = [_both(self.of(a), where) if a is var else self.of(a) for a in made.invars]
                moved = _RULES[made.op.name](made.op, given, [])[0]
                if _all_of(x.aval).holds(moved):
                    interval = _both(interval, moved)
        return interval

    def _told(self, condition: Atom, holds: bool) -> Iterator[tuple[Atom, Interval]]:
        """What a condition says of the integers that it compares."""
        made = self._made.get(condition) if isinstance(condition, Var) else None
        if made is None or len(made.invars) != 2 or not all(_counts(a.aval) for a in made.invars):
            return
        name, (x, y) = made.op.name, made.invars
        if name == "and" and holds and dtypes.is_bool(x.aval.dtype):
            yield from self._told(x, True)
            yield from self._told(y, True)
        elif name == "ne" and dtypes.is_bool(x.aval.dtype) and self.of(y).high == 0:
            yield from self._told(x, holds)
        elif name in _ORDERS:
            swapped, gap = _ORDERS[name]
            if not holds:
                swapped, gap = not swapped, 1 - gap
            less, more = (y, x) if swapped else (x, y)
            yield less, Interval(high=self.of(more).high - gap)
            yield more, Interval(low=self.of(less).low + gap)


#: comparisons: whether the second operand is the lesser one, and by how much at least
_ORDERS = {"lt": (False, 1), "le": (False, 0), "gt": (True, 1), "ge": (True, 0)}


def _counts(aval: ShapedArray) -> bool:
    """Whether elements are integers or truth values."""
    return dtypes.is_integer(aval.dtype) or dtypes.is_bool(aval.dtype)


def _all_of(aval: ShapedArray) -> Interval:
    """All numbers of a type."""
    if dtypes.is_bool(aval.dtype):
        return BITS
    if not dtypes.is_integer(aval.dtype):
        return ANYWHERE
    return Interval(int(dtypes.min_value(aval.dtype)), int(dtypes.max_value(aval.dtype)))


def _span(values: np.ndarray) -> Interval:
    return Interval(int(values.min()), int(values.max()))


def _both(x: Interval, y: Interval) -> Interval:
    return Interval(max(x.low, y.low), min(x.high, y.high))


# --- rules for integers -------------------------------------------------------------------------------------
Rule = Callable[[Any, Known, Avals], Sequence[Interval]]


def _of_ints(op: Any, known: Known, avals: Avals) -> Known:
    return known[:1] if _counts(avals[0]) else []


def _rem(op: Any, known: Known, avals: Avals) -> Known:
    x, y = known
    if y.low <= 0 or not _counts(avals[0]):
        return []
    most = y.high - 1
    return [Interval(max(-most, min(x.low, 0)), min(most, max(x.high, 0)))]


def _div(op: Any, known: Known, avals: Avals) -> Known:
    x, y = known
    return [Interval(0, x.high // y.low)] if x.low >= 0 and y.low > 0 and _counts(avals[0]) else []


def _order(first: int, gap: int) -> Rule:
    """Whether an operand is less than the other, by ``gap`` at least."""

    def rule(op: Any, known: Known, avals: Avals) -> Known:
        if not _counts(avals[0]):
            return []
        x, y = known[first], known[1 - first]
        return [Interval(int(x.high + gap <= y.low), int(x.low + gap <= y.high))]

    return rule


def _sum(op: Any, known: Known, avals: Avals) -> Known:
    count = prod(avals[0].shape[d] for d in op.axes)
    return [known[0] * Interval(count, count)] if _counts(avals[0]) else []


def _extreme(op: Any, known: Known, avals: Avals) -> Known:
    return [Interval(0, avals[0].shape[op.axes[0]] - 1)]


def _clamp(op: Any, known: Known, avals: Avals) -> Known:
    low, x, high = known
    return [Interval(min(max(low.low, x.low), high.low), min(max(low.high, x.high), high.high))]


_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        "reshape squeeze broadcast_in_dim transpose rev slice copy dynamic_slice reduce_max reduce_min "
        "optimization_barrier convert_element_type gather".split(), _of_ints
    ),
    **dict.fromkeys(("concatenate", "pad"), lambda op, known, avals: [hull(*known)]),
    "iota": lambda op, known, avals: [Interval(0, op.shape[op.dimension] - 1)],
    "add": lambda op, known, avals: [known[0] + known[1]],
    "sub": lambda op, known, avals: [known[0] + -known[1]],
    "mul": lambda op, known, avals: [known[0] * known[1]],
    "neg": lambda op, known, avals: [-known[0]],
    "max": lambda op, known, avals: [Interval(max(k.low for k in known), max(k.high for k in known))],
    "min": lambda op, known, avals: [Interval(min(k.low for k in known), min(k.high for k in known))],
    "not": lambda op, known, avals: [Interval(1, 1) + -known[0]] if dtypes.is_bool(avals[0].dtype) else [],
    "and": lambda op, known, avals: [common_bits(*known)],
    "clamp": _clamp, "rem": _rem, "div": _div, "reduce_sum": _sum, "argmax": _extreme, "argmin": _extreme,
    "lt": _order(0, 1), "le": _order(0, 0), "gt": _order(1, 1), "ge": _order(1, 0),
    "sort": lambda op, known, avals: known,
    "top_k": lambda op, known, avals: [known[0], Interval(0, avals[0].shape[-1] - 1)],
}  # fmt: skip
