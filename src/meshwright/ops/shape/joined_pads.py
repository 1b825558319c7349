"""Turns sums of zero-padded arrays at disjoint positions into concatenations.

Derivatives of slices are such sums: of a fused projection that is split into gate and up, or query, key and value, each
cotangent is padded to the full size, and all are added. As a concatenation nothing is added, and along a split
dimension the rows move in one redistribution. This also covers derivatives of rotations, which are rotations: of
several, as in stencils on a torus, each cotangent takes its rows from the sum. At most one term is nonzero at each
position, so rounding does not change; only the sign of a zero may differ: ``-0 + 0`` is ``0``.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshwright.ir.constants import known_values
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, all_eqns
from meshwright.ir.op import Op
from meshwright.ir.rewrite import in_regions, replaced, uses_of
from meshwright.ops.elementwise.table import ConvertElementType, add
from meshwright.ops.shape.slice_pad import Concatenate, Pad


class _Rows(NamedTuple):
    """An array at rows ``[low, high)``, among zeros."""

    low: int
    high: int
    array: Atom


class _Padded(NamedTuple):
    """An array padded with zeros at the ends of ``dim``."""

    dim: int
    rows: _Rows


def joined_pads(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Turn padded arrays in a sum that together fill a dimension into concatenations."""
    if sum(isinstance(e.op, Pad) for e in all_eqns(jaxpr.jaxpr)) < 2:
        return jaxpr
    sums, zeros = _Sums(jaxpr.jaxpr), zeros_of(jaxpr)

    def joined(eqn: JaxprEqn) -> JaxprEqn | list[JaxprEqn]:
        if eqn.op.holds_jaxprs:
            return in_regions(eqn, joined_pads)
        if isinstance(eqn.op, Pad) and (padded := _padded(eqn, zeros)) is not None:
            sums.padded[eqn.outvars[0]] = padded
        return sums.joined(eqn) if eqn.op == add else eqn

    return replaced(jaxpr, joined)


class _Sums:
    """The sums in a jaxpr, with their padded terms."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.users = uses_of(jaxpr)
        self.inner: dict[Atom, JaxprEqn] = {}
        self.padded: dict[Atom, _Padded] = {}

    def joined(self, eqn: JaxprEqn) -> JaxprEqn | list[JaxprEqn]:
        """An addition. If it is the last of its sum: the sum, with terms that fill a dimension concatenated."""
        (out,) = eqn.outvars
        user = self.users[out][0] if self._once(out) else None
        if user is not None and user.op == add:
            self.inner[out] = eqn
            return eqn
        terms = self._terms(eqn)
        fillings = self._fillings(terms)
        if not fillings:
            return eqn
        eqns: list[JaxprEqn] = []
        taken = {t for filling in fillings for t in filling}
        parts = [t for t in terms if t not in taken]
        for filling in fillings:
            arrays = [self.padded[t].rows.array for t in filling]
            parts.append(_made(eqn, Concatenate(self.padded[filling[0]].dim), arrays, eqns))
        total = parts[0]
        for part in parts[1:]:
            total = _made(eqn, eqn.op, [total, part], eqns)
        return [*eqns[:-1], eqns[-1].replace(outvars=[out])]

    def _terms(self, eqn: JaxprEqn) -> list[Atom]:
        """The terms of an addition, including those of additions used only by it, in order."""
        terms, left = [], list(eqn.invars[::-1])
        while left:
            atom = left.pop()
            if atom in self.inner:
                left += self.inner[atom].invars[::-1]
            else:
                terms.append(atom)
        return terms

    def _once(self, atom: Atom) -> bool:
        return isinstance(atom, Var) and len(self.users.get(atom, ())) == 1

    def _fillings(self, terms: Sequence[Atom]) -> list[list[Atom]]:
        """Lists of padded terms that together fill a dimension, ordered by rows."""
        left = [t for t in dict.fromkeys(terms) if t in self.padded and self._once(t)]
        fillings = []
        for first in list(left):
            filling, dim, end = [first], self.padded[first].dim, first.aval.shape[self.padded[first].dim]
            if first not in left or self.padded[first].rows.low:
                continue
            while (high := self.padded[filling[-1]].rows.high) < end:
                following = (t for t in left if self.padded[t].dim == dim and self.padded[t].rows.low == high)
                if (then := next(following, None)) is None:
                    break
                filling.append(then)
            else:
                fillings.append(filling)
                left = [t for t in left if t not in filling]
        return fillings


def _made(at: JaxprEqn, op: Op, operands: Sequence[Atom], eqns: list[JaxprEqn]) -> Var:
    """The result of a new equation, appended to ``eqns``."""
    result = Var(op.infer(*(a.aval for a in operands)))
    eqns.append(at.replace(op=op, invars=operands, outvars=[result]))
    return result


def zeros_of(jaxpr: ClosedJaxpr) -> set[Atom]:
    """The scalars of a program, constants and conversions of them, that are known to be zero."""
    zeros: set[Atom] = {v for v, c in zip(jaxpr.jaxpr.constvars, jaxpr.consts) if v.aval.ndim == 0 and is_zero_value(c)}
    for eqn in jaxpr.jaxpr.eqns:
        if isinstance(eqn.op, ConvertElementType) and is_zero(eqn.invars[0], zeros):
            zeros.add(eqn.outvars[0])
    return zeros


def is_zero(atom: Atom, zeros: Container[Atom]) -> bool:
    """Whether a scalar, a literal or one of ``zeros``, is positive zero."""
    return is_zero_value(atom.val) if isinstance(atom, Literal) else atom in zeros


def is_zero_value(value: Any) -> bool:
    """Whether a number is known to be positive zero; false for tracers and values on other processes."""
    array = known_values(value)
    if array is None:
        return False
    return array.ndim == 0 and array.dtype.kind in "biufV" and not array and not np.signbit(array.astype(np.float64))


def _padded(eqn: JaxprEqn, zeros: Container[Atom]) -> _Padded | None:
    """The padded array if an equation pads with zeros at the ends of one dimension."""
    x, value = eqn.invars
    changed = [d for d, config in enumerate(eqn.op.padding_config) if config != (0, 0, 0)]  # type: ignore[attr-defined]
    if len(changed) != 1 or not is_zero(value, zeros):
        return None
    low, high, inner = eqn.op.padding_config[changed[0]]  # type: ignore[attr-defined]
    size = x.aval.shape[changed[0]]
    return _Padded(changed[0], _Rows(low, low + size, x)) if min(low, high) >= 0 and not inner and size else None
