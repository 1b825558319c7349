"""Programs in float64, so that differences between two of them are not due to rounding.

Each op gets wide operands and wide parameters. Its own type rule says whether that yields the wide results. If not (the
bits of a float32, a function of the user's), the op keeps its types, with conversions around it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.dot_algorithms import Algorithm
from meshwright.errors import MeshwrightError
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from meshwright.ir.op import Op
from meshwright.ops.elementwise.table import ConvertElementType, copy


def wide_dtype(dtype: np.dtype) -> np.dtype:
    """float64 for floats, complex128 for complex numbers, other dtypes unchanged."""
    if dtypes.is_complex(dtype):
        return dtypes.complex128
    return dtypes.float64 if dtypes.is_float(dtype) else dtype


def wide_aval(aval: ShapedArray) -> ShapedArray:
    """The type with a wide dtype."""
    return aval.update(dtype=wide_dtype(aval.dtype))


@dataclasses.dataclass
class Widened:
    """A program in float64.

    ``vars`` maps the original program's variables to its own. ``narrow`` has the names of ops that kept their types.
    """

    jaxpr: ClosedJaxpr
    vars: dict[Var, Var]
    narrow: set[str]


def widened(jaxpr: ClosedJaxpr) -> Widened:
    """The program in float64 and complex128."""
    widener = _Widener()
    return Widened(widener.closed(jaxpr), widener.vars, widener.narrow)


class _Widener:
    def __init__(self) -> None:
        self.vars: dict[Var, Var] = {}
        self.narrow: set[str] = set()

    def closed(self, jaxpr: ClosedJaxpr) -> ClosedJaxpr:
        consts = [_wide_value(c, v.aval) for c, v in zip(jaxpr.consts, jaxpr.jaxpr.constvars)]
        return ClosedJaxpr(self.jaxpr(jaxpr.jaxpr), consts)

    def jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        constvars, invars = ([self.new(v) for v in old] for old in (jaxpr.constvars, jaxpr.invars))
        eqns: list[JaxprEqn] = []
        for eqn in jaxpr.eqns:
            eqns += self.equation(eqn)
        return Jaxpr(constvars, invars, [self.read(a) for a in jaxpr.outvars], eqns, jaxpr.debug_name)

    def new(self, var: Var) -> Var:
        wide = self.vars[var] = Var(wide_aval(var.aval))
        return wide

    def read(self, atom: Atom) -> Atom:
        if isinstance(atom, Var):
            return self.vars[atom]
        return _literal(atom, wide_aval(atom.aval))

    def equation(self, eqn: JaxprEqn) -> list[JaxprEqn]:
        operands = [self.read(a) for a in eqn.invars]
        results = [self.new(v) for v in eqn.outvars]
        same = all(a.aval.dtype == b.aval.dtype for a, b in zip((*operands, *results), (*eqn.invars, *eqn.outvars)))
        op = eqn.op if same and not eqn.op.holds_jaxprs else self.op(eqn.op)
        if _fits(op, operands, results):
            return [eqn.replace(op=op, invars=operands, outvars=results)]
        self.narrow.add(eqn.op.name)
        return _kept(eqn, operands, results)

    def op(self, op: Op) -> Op:
        """The op with wide dtypes and jaxprs in its parameters."""
        if op.rounds:
            return copy
        changed = {name: new for name, old in op.params.items() if (new := self.parameter(old)) is not old}
        return dataclasses.replace(op, **changed) if changed else op

    def parameter(self, value: Any) -> Any:
        match value:
            case np.dtype():
                return value if wide_dtype(value) == value else wide_dtype(value)
            case Algorithm():  # prescribes a rounding
                return None
            case ClosedJaxpr():
                return self.closed(value)
            case Jaxpr():
                return self.jaxpr(value)
            case tuple() if any(isinstance(x, ClosedJaxpr | Jaxpr) for x in value):
                return tuple(map(self.parameter, value))
        return value


def _literal(atom: Literal, aval: ShapedArray) -> Literal:
    """The literal with another type; never a Python number, whose width depends on a setting."""
    return Literal(np.asarray(atom.val, atom.aval.dtype).astype(aval.dtype)[()], aval)


def _wide_value(value: Any, aval: ShapedArray) -> Any:
    """A constant of type ``aval`` with a wide dtype; unchanged if that is its own."""
    wide = wide_dtype(aval.dtype)
    return value if wide == aval.dtype else np.asarray(np.asarray(value, aval.dtype), wide)


def _fits(op: Op, operands: Sequence[Atom], results: Sequence[Var]) -> bool:
    """Whether the op returns such results for such operands."""
    try:
        out = op.infer(*(a.aval for a in operands))
    except MeshwrightError:
        return False
    outs = out if op.multiple_results else [out]
    return [(a.shape, a.dtype) for a in outs] == [(v.aval.shape, v.aval.dtype) for v in results]


def _kept(eqn: JaxprEqn, operands: Sequence[Atom], results: Sequence[Var]) -> list[JaxprEqn]:
    """The equation in its own types, with conversions before and after it."""
    before: list[JaxprEqn] = []
    invars: list[Atom] = []
    for atom, wide in zip(eqn.invars, operands):
        if isinstance(atom, Literal):
            invars.append(_literal(atom, atom.aval))
            continue
        if atom.aval.dtype == wide.aval.dtype:
            invars.append(wide)
            continue
        narrow = Var(atom.aval)
        invars.append(narrow)
        before.append(_converted(eqn, wide, narrow))
    outvars, after = [], []
    for var, wide in zip(eqn.outvars, results):
        same = var.aval.dtype == wide.aval.dtype
        outvars.append(wide if same else Var(var.aval))
        after += [] if same else [_converted(eqn, outvars[-1], wide)]
    return [*before, eqn.replace(invars=invars, outvars=outvars), *after]


def _converted(eqn: JaxprEqn, before: Atom, after: Var) -> JaxprEqn:
    return JaxprEqn(ConvertElementType(after.aval.dtype), [before], [after], eqn.source)
