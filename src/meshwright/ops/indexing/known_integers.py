"""The small integer arrays of a program whose values are known: positions, and the bounds of positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.ir.constants import known_values
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.op import Op
from meshwright.ops.elementwise import table
from meshwright.ops.elementwise.clamp import Clamp
from meshwright.ops.elementwise.table import ConvertElementType, SelectN

#: the maximum number of elements tracked for one array
_FEW = 64
#: the elementwise ops that are followed, as functions of NumPy, which wrap around as XLA's do
_FUNCTIONS: dict[Op, Callable[..., Any]] = {
    table.add: np.add, table.sub: np.subtract, table.mul: np.multiply, table.neg: np.negative, table.rem: np.fmod,
    table.max_: np.maximum, table.min_: np.minimum, table.lt: np.less, table.le: np.less_equal, table.gt: np.greater,
    table.ge: np.greater_equal, table.eq: np.equal, table.ne: np.not_equal, table.and_: np.bitwise_and,
    table.or_: np.bitwise_or, table.xor: np.bitwise_xor, table.not_: np.invert,
    Clamp(): lambda low, x, high: np.minimum(np.maximum(x, low), high),
}  # fmt: skip


class KnownIntegers:
    """The known values of small integer arrays in a program; ``given`` are those of its arguments."""

    def __init__(self, jaxpr: ClosedJaxpr, given: Mapping[Var, np.ndarray] = MappingProxyType({})) -> None:
        self._known: dict[Var, np.ndarray] = dict(given)
        for var, constant in zip(jaxpr.jaxpr.constvars, jaxpr.consts):
            if _is_few(var.aval) and (values := known_values(constant)) is not None:
                self._known[var] = values
        for eqn in jaxpr.jaxpr.eqns:
            if len(eqn.invars) <= _FEW and len(eqn.outvars) == 1 and _is_few(eqn.outvars[0].aval):
                self._follow(eqn)

    def _follow(self, eqn: JaxprEqn) -> None:
        if not isinstance(eqn.op, (ConvertElementType, SelectN)) and eqn.op not in _FUNCTIONS and eqn.op.moved is None:
            return
        (out,), known = eqn.outvars, [self.known(a) for a in eqn.invars]
        if isinstance(eqn.op, SelectN) and (which := known[0]) is not None and not which.shape:
            value = known[1 + min(int(which), len(known) - 2)]  # what is not chosen need not be known
        else:
            operands = [x for x in known if x is not None]
            value = _value(eqn.op, operands) if len(operands) == len(known) else None
        if value is not None:
            self._known[out] = np.broadcast_to(value, out.aval.shape).astype(out.aval.dtype)

    def known(self, atom: Atom) -> np.ndarray | None:
        """The value of an atom; None if it is unknown or large."""
        if isinstance(atom, Literal):
            return np.asarray(atom.val) if _is_few(atom.aval) else None
        return self._known.get(atom)


def _value(op: Op, operands: list[np.ndarray]) -> Any:
    """The result of an op; None for remainders of divisions by zero, which NumPy defines otherwise."""
    if isinstance(op, ConvertElementType):
        return operands[0]
    if isinstance(op, SelectN):
        which, *cases = operands
        return np.choose(which.astype(np.intp), cases, mode="clip")
    if op in _FUNCTIONS:
        if op is table.rem and not np.all(operands[1]):
            return None
        with np.errstate(all="ignore"):
            return _FUNCTIONS[op](*operands)
    return op.moved(*operands) if op.moved is not None else None


def _is_few(aval: ShapedArray) -> bool:
    return aval.size <= _FEW and aval.dtype.kind in "iub"
