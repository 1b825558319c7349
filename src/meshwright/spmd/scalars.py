"""Integers that constants alone make become constants, so that numbers of iterations are known.

JAX's tracing leaves such arithmetic in programs: the interpreter of Pallas' kernels multiplies the sizes of the grid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.op import Op
from meshwright.ir.rewrite import in_regions, rebuilt, renamed
from meshwright.ops.elementwise.table import SelectN, add, eq, ge, gt, le, lt, max_, min_, mul, ne, sub

#: NumPy's functions, which wrap around as XLA's do
_FUNCTIONS: dict[Op, Callable[..., Any]] = {
    add: np.add, sub: np.subtract, mul: np.multiply, max_: np.maximum, min_: np.minimum, lt: np.less,
    le: np.less_equal, gt: np.greater, ge: np.greater_equal, eq: np.equal, ne: np.not_equal,
}  # fmt: skip
_SELECT = SelectN()


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
    """The result of an equation as a literal, if it is an integer or bool that literals alone make."""
    atoms, aval = eqn.invars, eqn.outvars[0].aval if eqn.outvars else None
    if aval is None or aval.shape or not atoms or not isinstance(atoms[0], Literal):
        return None
    if eqn.op == _SELECT:
        chosen = atoms[1 + int(np.asarray(atoms[0].val))]
        return Literal(chosen.val, aval) if isinstance(chosen, Literal) and aval.dtype.kind in "iub" else None
    given = [np.asarray(a.val).reshape(1) for a in atoms if isinstance(a, Literal)]
    if len(given) < len(atoms) or any(x.dtype.kind not in "iu" for x in given) or eqn.op not in _FUNCTIONS:
        return None
    return Literal(_FUNCTIONS[eqn.op](*given)[0].astype(aval.dtype), aval)
