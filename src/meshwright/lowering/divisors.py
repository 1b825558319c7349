"""Integers that the compiler would divide by 0.

XLA computes what it knows when it compiles: of ``x // (x - x)`` it knows that the divisor is 0. Where it knows the
dividend as well, as in ``3 // (x - x)``, it divides, and the processor ends the process (``SIGFPE``). Here integers are
divided by 1 where the divisor is 0, and the result is the one that XLA's code gives otherwise: -1 (all bits), or the
dividend as the remainder. Divisors that are written as numbers other than 0 stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.rewrite import replaced_in_all
from meshwright.ir.tracing import typeof
from meshwright.lowering.narrow_bits import called
from meshwright.ops.elementwise.table import div, eq, not_, rem, scalar_like, select
from meshwright.ops.shape.broadcast_reduce import match_shape

#: ops that repeat or arrange what they are given
_ARRANGED = frozenset({"broadcast_in_dim", "copy", "reshape", "squeeze", "transpose"})


def keep_divisors(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with no integers divided by 0; itself where none might be."""
    return replaced_in_all(jaxpr, _rule_in)


def _rule_in(jaxpr: ClosedJaxpr) -> Callable[[JaxprEqn], Sequence[JaxprEqn]]:
    written: set[Var] = {v for v, c in zip(jaxpr.jaxpr.constvars, jaxpr.consts) if _is_whole(c)}

    def rule(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
        if eqn.op.name in _ARRANGED and _is_not_zero(eqn.invars[0], written):
            written.update(eqn.outvars)
        if eqn.op.name not in _GUARDED or not dtypes.is_integer(eqn.invars[1].aval.dtype):
            return ()
        if _is_not_zero(eqn.invars[1], written):
            return ()
        return [called(_GUARDED[eqn.op.name], eqn.invars, eqn.outvars, eqn.source)]

    return rule


def _is_whole(constant: Any) -> bool:
    """Whether an array that is at hand has no 0."""
    return isinstance(constant, (np.ndarray, np.generic, int)) and bool(np.all(np.asarray(constant) != 0))


def _is_not_zero(atom: Atom, written: set[Var]) -> bool:
    return bool(atom.val != 0) if isinstance(atom, Literal) else atom in written


def _divided(x: Any, y: Any) -> list[Any]:
    nothing, safe = _safe(y)
    return [select(nothing, not_(_all(0, y)), div(x, safe))]


def _remaining(x: Any, y: Any) -> list[Any]:
    nothing, safe = _safe(y)
    return [select(nothing, x, rem(x, safe))]


def _safe(y: Any) -> tuple[Any, Any]:
    """Where the divisor is 0, and the divisor with 1 there."""
    nothing = eq(y, _all(0, y))
    return nothing, select(nothing, _all(1, y), y)


def _all(number: int, y: Any) -> Any:
    return match_shape(scalar_like(number, y), typeof(y))


_GUARDED: dict[str, Callable[..., list[Any]]] = {"div": _divided, "rem": _remaining}
