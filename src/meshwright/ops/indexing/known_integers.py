"""The small integer arrays of a program whose values are known: positions, and the bounds of positions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.ir.constants import known_values
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ops.elementwise.table import ConvertElementType, max_, min_

#: the maximum number of elements tracked for one array
_FEW = 64
#: the elementwise ops that are followed: what keeps positions within bounds
_BOUNDS = {max_: np.maximum, min_: np.minimum}


class KnownIntegers:
    """The known values of small integer arrays in a program; ``given`` are those of its arguments."""

    def __init__(self, jaxpr: ClosedJaxpr, given: Mapping[Var, np.ndarray] = MappingProxyType({})) -> None:
        self._known: dict[Var, np.ndarray] = dict(given)
        for var, constant in zip(jaxpr.jaxpr.constvars, jaxpr.consts):
            if _is_few(var.aval) and (values := known_values(constant)) is not None:
                self._known[var] = values
        for eqn in jaxpr.jaxpr.eqns:
            follows = isinstance(eqn.op, ConvertElementType) or eqn.op in _BOUNDS or eqn.op.moved is not None
            if follows and len(eqn.invars) <= _FEW and all(_is_few(v.aval) for v in eqn.outvars):
                self._follow(eqn)

    def _follow(self, eqn: JaxprEqn) -> None:
        operands, (out,) = [known for a in eqn.invars if (known := self.known(a)) is not None], eqn.outvars
        if len(operands) < len(eqn.invars):
            return
        if isinstance(eqn.op, ConvertElementType):
            self._known[out] = operands[0].astype(out.aval.dtype)
        elif eqn.op in _BOUNDS:
            self._known[out] = _BOUNDS[eqn.op](*operands)
        elif eqn.op.moved is not None:
            self._known[out] = np.asarray(eqn.op.moved(*operands))

    def known(self, atom: Atom) -> np.ndarray | None:
        """The value of an atom; None if it is unknown or large."""
        if isinstance(atom, Literal):
            return np.asarray(atom.val) if _is_few(atom.aval) else None
        return self._known.get(atom)


def _is_few(aval: ShapedArray) -> bool:
    return aval.size <= _FEW and aval.dtype.kind in "iu"
