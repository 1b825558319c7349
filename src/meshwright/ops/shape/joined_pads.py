"""Sums of arrays with zeros around them, each elsewhere: joined arrays.

Derivatives of slices are such sums: of a fused projection that is split into gate and up, or query, key and value, each
cotangent is padded to the whole, and all are added. Joined, nothing is added, and along a split dimension the rows move
in one redistribution. The sign of a zero may differ: ``-0 + 0`` is ``0``.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var, all_eqns
from meshwright.ir.rewrite import in_regions, replaced, use_counts
from meshwright.ir.tracing import Tracer
from meshwright.ops.elementwise.table import ConvertElementType, add
from meshwright.ops.shape.slice_pad import Concatenate, Pad


class _Rows(NamedTuple):
    """An array that stands in rows ``[low, high)``, among zeros."""

    low: int
    high: int
    array: Atom


#: a dimension, and what stands where along it
_Parts = tuple[int, tuple[_Rows, ...]]


def joined_pads(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with sums of padded arrays that fill a dimension together as joined arrays."""
    if sum(isinstance(e.op, Pad) for e in all_eqns(jaxpr.jaxpr)) < 2:
        return jaxpr
    uses = use_counts(jaxpr.jaxpr.eqns, jaxpr.jaxpr.outvars)
    zeros = zeros_of(jaxpr)
    known: dict[Atom, _Parts] = {}

    def joined(eqn: JaxprEqn) -> JaxprEqn:
        if eqn.op.holds_jaxprs:
            return in_regions(eqn, joined_pads)
        padded = _padded(eqn, zeros) if isinstance(eqn.op, Pad) else _sum(eqn, known, uses) if eqn.op == add else None
        if padded is None:
            return eqn
        dim, rows = padded
        known[eqn.outvars[0]] = padded
        if len(rows) < 2 or rows[0].low or rows[-1].high < eqn.outvars[0].aval.shape[dim]:
            return eqn
        if any(a.high < b.low for a, b in pairwise(rows)):
            return eqn
        return eqn.replace(op=Concatenate(dim), invars=[r.array for r in rows])

    return replaced(jaxpr, joined)


def zeros_of(jaxpr: ClosedJaxpr) -> set[Atom]:
    """The scalars of a program, constants and conversions of them, that are known to be zero."""
    zeros: set[Atom] = {v for v, c in zip(jaxpr.jaxpr.constvars, jaxpr.consts) if v.aval.ndim == 0 and is_zero_value(c)}
    for eqn in jaxpr.jaxpr.eqns:
        if isinstance(eqn.op, ConvertElementType) and is_zero(eqn.invars[0], zeros):
            zeros.add(eqn.outvars[0])
    return zeros


def is_zero(atom: Atom, zeros: Container[Atom]) -> bool:
    """Whether a scalar is zero, and not minus zero: a literal, or one of ``zeros``."""
    return is_zero_value(atom.val) if isinstance(atom, Literal) else atom in zeros


def is_zero_value(value: Any) -> bool:
    """Whether a number is zero, and not minus zero; no traced value is known to be."""
    if isinstance(value, Tracer):
        return False
    array = np.asarray(value)
    return array.ndim == 0 and array.dtype.kind in "biufV" and not array and not np.signbit(array.astype(np.float64))


def _padded(eqn: JaxprEqn, zeros: Container[Atom]) -> _Parts | None:
    """An array padded with zeros at the ends of one dimension."""
    x, value = eqn.invars
    changed = [d for d, config in enumerate(eqn.op.padding_config) if config != (0, 0, 0)]  # type: ignore[attr-defined]
    if len(changed) != 1 or not is_zero(value, zeros):
        return None
    low, high, inner = eqn.op.padding_config[changed[0]]  # type: ignore[attr-defined]
    size = x.aval.shape[changed[0]]
    return (changed[0], (_Rows(low, low + size, x),)) if min(low, high) >= 0 and not inner and size else None


def _sum(eqn: JaxprEqn, known: Mapping[Atom, _Parts], uses: Mapping[Var, int]) -> _Parts | None:
    """What stands where in a sum of padded arrays, if no two share a row."""
    terms = [known[a] for a in eqn.invars if a in known and uses[a] == 1]  # type: ignore[index]
    if len(terms) != 2 or terms[0][0] != terms[1][0] or eqn.invars[0] is eqn.invars[1]:
        return None
    rows = sorted((r for _, term in terms for r in term), key=lambda r: r.low)
    apart = all(a.high <= b.low for a, b in pairwise(rows))
    return (terms[0][0], tuple(rows)) if apart else None
