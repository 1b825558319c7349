"""Guards exponentials whose operand may be a NaN that the compiler knows at compile time.

XLA's code for floating-point exponentials uses the ``nnan`` assumption for intermediate values. If LLVM knows that one
is NaN, as in ``exp(where(ok, x, nan))`` where ``ok`` is False, that is undefined behavior: it may remove even the store
of the result, and the caller reads uninitialized memory. Here a select on ``x == x`` passes NaNs through. NaNs may also
come from constant folding, such as ``sqrt(-1.0)``. For a few ops, the constants are evaluated with NumPy; any other op
on constants alone is assumed to return NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.rewrite import in_jaxprs, replaced
from meshwright.ops.elementwise.table import SelectN, eq

#: ops that XLA expands to its exponential for some dtype
EXPONENTIALS = frozenset({"exp", "exp2", "expm1", "logistic", "sinh", "cosh"})
#: the largest constant, in bytes, that is embedded in the program; larger ones are passed as arguments
INLINE_BYTES = 4096
#: NumPy functions that emulate constant folding
_BY_NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative, "max": np.maximum,
    "min": np.minimum, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "log": np.log, "log1p": np.log1p,
    "pow": np.float_power, "square": np.square, "abs": np.abs, "exp": np.exp,
}  # fmt: skip


def keep_not_numbers(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with ``exp(x)`` replaced by ``where(x == x, exp(x), x)`` where a constant NaN may reach ``x``.

    The same object if there is none.
    """
    return _Guard().guarded(jaxpr, False)[0]


class _Guard:
    """Rewrites each jaxpr at most twice: for operands that may be such a NaN, and for others."""

    def __init__(self) -> None:
        self.done: dict[tuple[int, bool], tuple[ClosedJaxpr, bool]] = {}

    def guarded(self, jaxpr: ClosedJaxpr, given: bool) -> tuple[ClosedJaxpr, bool]:
        """The rewritten jaxpr, and whether one of its results may be a constant NaN."""
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
        """The equation with its inner jaxprs rewritten, and whether its results may be NaN.

        If a result of an inner jaxpr may be NaN, so may the operands of the others, and of the next iteration.
        """
        flags = []

        def apply(inside: ClosedJaxpr) -> ClosedJaxpr:
            after, leaves = self.guarded(inside, known)
            flags.append(leaves)
            return after

        after = in_jaxprs(eqn, apply)
        return self._inside(eqn, True) if any(flags) and not known else (after, known)


def _makes_nan(eqn: JaxprEqn, fixed: dict[Var, np.ndarray | None]) -> bool:
    """Whether ``eqn`` has constant operands only and may return NaN; adds its results to ``fixed`` (None: unknown)."""
    if eqn.op.has_effects or not all(isinstance(a, Literal) or a in fixed for a in eqn.invars):
        return False
    if not eqn.op.of_operands:  # what it returns is not known when the program is compiled
        return False
    if not eqn.invars:  # iota
        fixed.update(dict.fromkeys(eqn.outvars))
        return False
    values = [np.asarray(a.val, a.aval.dtype) if isinstance(a, Literal) else fixed[a] for a in eqn.invars]
    result = _by_numpy(eqn, values)
    fixed.update(dict.fromkeys(eqn.outvars, result))
    return result is None or bool(_is_float(eqn.outvars[0]) and (result != result).any())


def _by_numpy(eqn: JaxprEqn, values: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The result of an equation on constants, if it is small and NumPy can evaluate it."""
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
    """Whether a constant is embedded in the program and contains NaN."""
    return bool(_is_inline(value) and _is_float(var) and (np.asarray(value) != np.asarray(value)).any())


def _is_inline(value: Any) -> bool:
    """Whether a constant is embedded in the program."""
    return getattr(value, "nbytes", 8) <= INLINE_BYTES and getattr(value, "is_fully_addressable", True)


def _is_float(atom: Atom) -> bool:
    return dtypes.is_float(atom.aval.dtype)
