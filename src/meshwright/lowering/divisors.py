"""Guards integer divisions that XLA would constant-fold with a divisor of 0.

XLA simplifies ``x - x`` to 0. For ``3 // (x - x)``, it then divides 3 by 0 while constant folding, and the compiling
process is killed by ``SIGFPE``. Here divisors of 0 are replaced by 1, and the result by the one that XLA's generated
code would give: -1 (all bits set) for a quotient, the dividend for a remainder. Constant nonzero divisors are not
guarded.
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

#: ops that only repeat or rearrange elements
_ARRANGED = frozenset({"broadcast_in_dim", "copy", "reshape", "squeeze", "transpose"})


def keep_divisors(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with guarded integer divisions; the same object if all divisors are nonzero constants."""
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
    """Whether a constant is a NumPy value or int without zeros."""
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
    """A mask of the zeros of the divisor, and the divisor with ones in their place."""
    nothing = eq(y, _all(0, y))
    return nothing, select(nothing, _all(1, y), y)


def _all(number: int, y: Any) -> Any:
    return match_shape(scalar_like(number, y), typeof(y))


_GUARDED: dict[str, Callable[..., list[Any]]] = {"div": _divided, "rem": _remaining}
