"""Exponentials of what may be a NaN that the compiler knows.

XLA's code for exponentials of floats says of its intermediate values that they are no NaN. Where LLVM knows that one is
NaN, as of ``exp(where(ok, x, nan))`` for an ``ok`` that is false, it leaves the rest out, storing the result included:
the caller gets what lay in the memory before. A comparison of the operand with itself keeps such values as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.rewrite import in_jaxprs, replaced
from meshwright.ops.elementwise.table import SelectN, eq

#: what XLA writes with its exponential, of numbers of some type
EXPONENTIALS = frozenset({"exp", "exp2", "expm1", "logistic", "sinh", "cosh"})
#: constants up to this many bytes are written into the program; larger ones are passed to it
INLINE_BYTES = 4096


def keep_not_numbers(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """``where(x == x, exp(x), x)`` for ``exp(x)`` where a constant NaN may come into ``x``; itself where none does."""
    return _Guard().guarded(jaxpr, False)[0]


class _Guard:
    """Goes once over each jaxpr, for operands among which there may be such a NaN, and for others."""

    def __init__(self) -> None:
        self.done: dict[tuple[int, bool], tuple[ClosedJaxpr, bool]] = {}

    def guarded(self, jaxpr: ClosedJaxpr, given: bool) -> tuple[ClosedJaxpr, bool]:
        """The jaxpr, and whether there may be a constant NaN in one of its results."""
        key = id(jaxpr), given
        if key not in self.done:
            self.done[key] = self._guarded(jaxpr, given)
        return self.done[key]

    def _guarded(self, jaxpr: ClosedJaxpr, given: bool) -> tuple[ClosedJaxpr, bool]:
        inner = jaxpr.jaxpr
        may = {v for v, c in zip(inner.constvars, jaxpr.consts) if _holds_nan(v, c)}
        may.update(v for v in inner.invars if given and _is_float(v))

        def rule(eqn: JaxprEqn) -> JaxprEqn | Sequence[JaxprEqn]:
            known = any(_may_be_nan(a, may) for a in eqn.invars)
            eqn, known = self._inside(eqn, known) if eqn.op.holds_jaxprs else (eqn, known)
            may.update(v for v in eqn.outvars if known and _is_float(v))
            return _unless_nan(eqn) if known and eqn.op.name in EXPONENTIALS and _is_float(eqn.invars[0]) else eqn

        after = replaced(jaxpr, rule)
        return after, any(_may_be_nan(a, may) for a in inner.outvars)

    def _inside(self, eqn: JaxprEqn, known: bool) -> tuple[JaxprEqn, bool]:
        """The equation with its jaxprs guarded; what one of them gives may come into another, or around again."""
        flags = []

        def apply(inside: ClosedJaxpr) -> ClosedJaxpr:
            after, leaves = self.guarded(inside, known)
            flags.append(leaves)
            return after

        after = in_jaxprs(eqn, apply)
        return self._inside(eqn, True) if any(flags) and not known else (after, known)


def _unless_nan(eqn: JaxprEqn) -> list[JaxprEqn]:
    (x,), (out,) = eqn.invars, eqn.outvars
    same, value = Var(x.aval.update(dtype=dtypes.bool_, weak_type=False)), Var(out.aval)
    return [
        JaxprEqn(eq, [x, x], [same], eqn.source),
        eqn.replace(outvars=[value]),
        JaxprEqn(SelectN(), [same, x, value], [out], eqn.source),
    ]


def _may_be_nan(atom: Atom, may: set[Var]) -> bool:
    return bool(_is_float(atom) and atom.val != atom.val) if isinstance(atom, Literal) else atom in may


def _holds_nan(var: Var, value: Any) -> bool:
    """Whether a constant that is written into the program has a NaN."""
    small = getattr(value, "nbytes", 8) <= INLINE_BYTES and getattr(value, "is_fully_addressable", True)
    return bool(small and _is_float(var) and (np.asarray(value) != np.asarray(value)).any())


def _is_float(atom: Atom) -> bool:
    return dtypes.is_float(atom.aval.dtype)
