"""Guards powers against XLA's algebraic simplifications.

XLA rewrites ``log(x ** y)`` to ``y * log(abs(x))``, which is not NaN for negative numbers, and ``exp(x) ** y`` to
``exp(x * y)``, which is NaN for infinity times 0. Here a power is wrapped in a select that does not change its value:
1 where the base is 1 or the exponent is 0. Programs without logarithms and exponentials are unchanged.
"""

from __future__ import annotations

from typing import Any

from meshwright.core import dtypes
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, all_eqns
from meshwright.ir.rewrite import replaced_in_all
from meshwright.ir.tracing import typeof
from meshwright.lowering.narrow_bits import called
from meshwright.ops.elementwise.table import eq, or_, pow_, scalar_like, select
from meshwright.ops.shape.broadcast_reduce import match_shape

#: ops that XLA simplifies together with a power
_JOINED = frozenset({"exp", "exp2", "log"})


def keep_powers(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with guarded powers; the same object if it has no logarithms or exponentials."""
    if not any(e.op.name in _JOINED for e in all_eqns(jaxpr.jaxpr)):
        return jaxpr
    return replaced_in_all(jaxpr, lambda _: _chosen)


def _chosen(eqn: JaxprEqn) -> list[JaxprEqn]:
    if eqn.op.name != "pow" or not all(dtypes.is_float(a.aval.dtype) for a in eqn.invars):
        return []
    return [called(_power, eqn.invars, eqn.outvars, eqn.source)]


def _power(x: Any, y: Any) -> list[Any]:
    power = pow_(x, y)
    aval = typeof(power)
    base, exponent = match_shape(x, aval), match_shape(y, aval)
    known = or_(eq(base, scalar_like(1, base)), eq(exponent, scalar_like(0, exponent)))
    return [select(known, match_shape(scalar_like(1, power), aval), power)]
