"""Exponentials of what may be a NaN that the compiler knows.

XLA's code for exponentials of floats says of its intermediate values that they are no NaN. Where LLVM knows that one is
NaN, as of ``exp(where(ok, x, nan))`` for an ``ok`` that is false, it leaves the rest out, storing the result included:
the caller gets what lay in the memory before. A comparison of the operand with itself keeps such values as they are.
What the compiler computes of constants, as ``sqrt(-1.0)``, it knows as well: here NumPy computes it, of a few ops, and
of any other whose operands are all constants the result is taken to be NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
#: how NumPy computes what compilers do of constants
_BY_NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative, "max": np.maximum,
    "min": np.minimum, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "log": np.log, "log1p": np.log1p,
    "pow": np.float_power, "square": np.square, "abs": np.abs, "exp": np.exp,
}  # fmt: skip


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
        fixed: dict[Var, np.ndarray | None] = {
            v: np.asarray(c) for v, c in zip(inner.constvars, jaxpr.consts) if v not in may and _is_inline(c)
        }

        def rule(eqn: JaxprEqn) -> JaxprEqn | Sequence[JaxprEqn]:
            known = any(_may_be_nan(a, may) for a in eqn.invars) or _makes_nan(eqn, fixed)
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


def _makes_nan(eqn: JaxprEqn, fixed: dict[Var, np.ndarray | None]) -> bool:
    """Whether ``eqn`` may make a NaN of constants alone; adds what it makes to ``fixed``, None where not computed."""
    if eqn.op.has_effects or not all(isinstance(a, Literal) or a in fixed for a in eqn.invars):
        return False
    if not eqn.op.of_operands:  # positions on a mesh
        return False
    if not eqn.invars:  # counts
        fixed.update(dict.fromkeys(eqn.outvars))
        return False
    values = [np.asarray(a.val, a.aval.dtype) if isinstance(a, Literal) else fixed[a] for a in eqn.invars]
    result = _by_numpy(eqn, values)
    fixed.update(dict.fromkeys(eqn.outvars, result))
    return result is None or bool(_is_float(eqn.outvars[0]) and (result != result).any())


def _by_numpy(eqn: JaxprEqn, values: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The result of an equation of constants, where it is small and NumPy knows how."""
    out = eqn.outvars[0].aval
    how = eqn.op.moved or _BY_NUMPY.get(eqn.op.name)
    if eqn.op.name == "convert_element_type":
        how = np.asarray
    if how is None or out.nbytes > INLINE_BYTES or any(v is None for v in values):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(how(*values)).astype(out.dtype)


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
    return bool(_is_inline(value) and _is_float(var) and (np.asarray(value) != np.asarray(value)).any())


def _is_inline(value: Any) -> bool:
    """Whether a constant is written into the program."""
    return getattr(value, "nbytes", 8) <= INLINE_BYTES and getattr(value, "is_fully_addressable", True)


def _is_float(atom: Atom) -> bool:
    return dtypes.is_float(atom.aval.dtype)
