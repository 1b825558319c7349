"""Loop counters: scalars in a body that are linear in the iteration, ``start + step * run``.

If the number of iterations is static, their values are known in every iteration, and so are the starts of windows at
them and the results of comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import NamedTuple

from meshwright.core.avals import ShapedArray
from meshwright.core.dtypes import is_bool, is_integer, max_value, min_value
from meshwright.ir.jaxpr import Atom, JaxprEqn, Literal, Var
from meshwright.ops.indexing.dynamic_slice import DynamicSlice


class Line(NamedTuple):
    """The numbers ``start``, ``start + step``, ``start + 2 * step``, ..., one per iteration."""

    start: int
    step: int = 0

    def ends(self, runs: int) -> tuple[int, int]:
        """The smallest and the largest number."""
        last = self.start + (runs - 1) * self.step
        return min(self.start, last), max(self.start, last)

    def times(self, factor: int) -> Line:
        return Line(self.start * factor, self.step * factor)

    def plus(self, other: Line) -> Line:
        return Line(self.start + other.start, self.step + other.step)

    def minus(self, other: Line) -> Line:
        return self.plus(other.times(-1))


#: the line of a result, given those of the operands and the number of iterations; None if it is not linear
_Rule = Callable[..., Line | None]


class Counters:
    """The linear scalars in a body that runs ``runs`` times.

    ``known`` are the lines of parameters, and ``numbered`` the arrays whose elements are their own row numbers.
    """

    def __init__(
        self, eqns: Iterable[JaxprEqn], runs: int, known: Mapping[Var, Line], numbered: Container[Var]
    ) -> None:
        self.runs = runs
        self._known = {v: line for v, line in known.items() if self._fits(line, v)}
        self._numbered = numbered
        for eqn in eqns:
            self._follow(eqn)

    def of(self, atom: Atom) -> Line | None:
        """The line of a value; None if it is not linear, or unknown."""
        if isinstance(atom, Literal):
            return Line(int(atom.val)) if is_counter(atom.aval) else None
        return self._known.get(atom)

    def _follow(self, eqn: JaxprEqn) -> None:
        if not eqn.outvars or not is_counter(eqn.outvars[0].aval):
            return
        line = self._read(eqn) if isinstance(eqn.op, DynamicSlice) else self._computed(eqn)
        if line is not None and self._fits(line, eqn.outvars[0]):
            self._known[eqn.outvars[0]] = line

    def _computed(self, eqn: JaxprEqn) -> Line | None:
        rule, operands = _RULES.get(eqn.op.name), [self.of(a) for a in eqn.invars]
        return None if rule is None or None in operands else rule(self.runs, *operands)

    def _read(self, eqn: JaxprEqn) -> Line | None:
        """The line of an element read from an array that holds its row numbers."""
        x, line = eqn.invars[0], self.of(eqn.invars[1]) if len(eqn.invars) > 1 else None
        if line is None or x not in self._numbered:
            return None
        low, high = line.ends(self.runs)
        return line if low >= 0 and high < x.aval.size else None

    def _fits(self, line: Line, var: Var) -> bool:
        """Whether a value's dtype can represent all numbers of a line."""
        low, high = line.ends(self.runs)
        return bool(min_value(var.aval.dtype) <= low and high <= max_value(var.aval.dtype))


def is_counter(aval: ShapedArray) -> bool:
    """Whether a value is a single integer or bool."""
    return aval.size == 1 and (is_integer(aval.dtype) or is_bool(aval.dtype))


# --- rules --------------------------------------------------------------------------------------------------
def _below(runs: int, a: Line, b: Line) -> Line | None:
    """Whether a line is below another; None if that differs between iterations."""
    low, high = a.minus(b).ends(runs)
    return Line(int(high < 0)) if high < 0 or low >= 0 else None


def _equal(runs: int, a: Line, b: Line) -> Line | None:
    low, high = a.minus(b).ends(runs)
    return Line(int(low == high == 0)) if low == high or low > 0 or high < 0 else None


def _not(line: Line | None) -> Line | None:
    return None if line is None else Line(1 - line.start)


def _product(_: int, a: Line, b: Line) -> Line | None:
    return a.times(b.start) if not b.step else None if a.step else b.times(a.start)


def _larger(runs: int, a: Line, b: Line) -> Line | None:
    low, high = a.minus(b).ends(runs)
    return a if low >= 0 else b if high <= 0 else None


def _smaller(runs: int, a: Line, b: Line) -> Line | None:
    low, high = a.minus(b).ends(runs)
    return a if high <= 0 else b if low >= 0 else None


def _clamped(runs: int, low: Line, x: Line, high: Line) -> Line | None:
    raised = _larger(runs, x, low)
    return None if raised is None else _smaller(runs, raised, high)


def _rest(runs: int, a: Line, b: Line) -> Line | None:
    low, high = a.ends(runs)
    return a if low >= 0 and not b.step and high < b.start else None


def _selected(_: int, which: Line, *cases: Line) -> Line | None:
    return None if which.step else cases[which.start]


_RULES: dict[str, _Rule] = {
    "add": lambda _, a, b: a.plus(b),
    "sub": lambda _, a, b: a.minus(b),
    "neg": lambda _, a: a.times(-1),
    "mul": _product,
    "max": _larger,
    "min": _smaller,
    "clamp": _clamped,
    "rem": _rest,
    "lt": _below,
    "gt": lambda runs, a, b: _below(runs, b, a),
    "ge": lambda runs, a, b: _not(_below(runs, a, b)),
    "le": lambda runs, a, b: _not(_below(runs, b, a)),
    "eq": _equal,
    "ne": lambda runs, a, b: _not(_equal(runs, a, b)),
    "select_n": _selected,
    **dict.fromkeys(("convert_element_type", "reshape", "squeeze", "broadcast_in_dim"), lambda _, a: a),
}
