"""Integers that constants alone make become constants, so that numbers of iterations are known.

JAX's tracing leaves such arithmetic in programs: the interpreter of Pallas' kernels multiplies the sizes of the grid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.rewrite import in_regions, rebuilt, renamed

#: by an op's name: NumPy's function, which wraps around as XLA's
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


def known_scalars(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr without scalar arithmetic of literal integers, also in its regions."""
    names: dict[Var, Atom] = {}
    eqns: list[JaxprEqn] = []
    for old in jaxpr.jaxpr.eqns:
        eqn = in_regions(renamed(old, names), known_scalars)
        value = _value(eqn)
        if value is None:
            eqns.append(eqn)
        else:
            names[eqn.outvars[0]] = value
    if len(eqns) == len(jaxpr.jaxpr.eqns) and all(a is b for a, b in zip(eqns, jaxpr.jaxpr.eqns)):
        return jaxpr
    return jaxpr.replace(jaxpr=rebuilt(jaxpr.jaxpr, eqns, names))


def _value(eqn: JaxprEqn) -> Literal | None:
    if eqn.op.name == "select_n" and isinstance(eqn.invars[0], Literal):
        chosen = eqn.invars[1 + int(np.asarray(eqn.invars[0].val))]
        return chosen if isinstance(chosen, Literal) and chosen.aval.dtype.kind in "iub" else None
    function = _FUNCTIONS.get(eqn.op.name)
    given = [np.asarray(a.val).reshape(1) for a in eqn.invars if isinstance(a, Literal)]
    if function is None or len(given) < len(eqn.invars) or any(x.dtype.kind not in "iu" for x in given):
        return None
    (out,) = eqn.outvars
    return None if out.aval.shape else Literal(function(*given)[0].astype(out.aval.dtype), out.aval)
