"""Arrays of one number, moved: they stay arrays of this number.

Steps from an initial guess of zeros shift it, pad it, and cut it. Along a split dimension each of these would be
computed whole, or its rows fetched, for what every device can fill in.
"""

from __future__ import annotations

from collections.abc import Hashable

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, all_eqns
from meshwright.ir.rewrite import Replacement, in_regions, replaced
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim
from meshwright.ops.shape.joined_pads import is_zero, zeros_of
from meshwright.ops.shape.rearrange import Reshape, Rev, Transpose
from meshwright.ops.shape.slice_pad import Concatenate, Pad, Slice

#: what moves all of its operands' elements, and adds none
_MOVES = (BroadcastInDim, Concatenate, Pad, Reshape, Rev, Slice, Transpose)


def uniform(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with a broadcast number in place of each array that only moves one."""
    if not {Concatenate, Pad, Rev, Slice} & {type(e.op) for e in all_eqns(jaxpr.jaxpr)}:
        return jaxpr
    zeros, numbers = zeros_of(jaxpr), dict[Atom, Atom]()

    def number(atom: Atom) -> Atom | None:
        return numbers.get(atom) if atom.aval.ndim else atom

    def key(atom: Atom | None) -> Hashable:
        if atom is None or is_zero(atom, zeros):
            return None if atom is None else 0
        return repr(atom.val) if isinstance(atom, Literal) else atom

    def filled(eqn: JaxprEqn) -> Replacement:
        if eqn.op.holds_jaxprs:
            return in_regions(eqn, uniform)
        if not isinstance(eqn.op, _MOVES):
            return eqn
        (out,) = eqn.outvars
        found = [number(a) for a in eqn.invars]
        if found[0] is None or len(set(map(key, found))) > 1:
            return eqn
        fill = BroadcastInDim(out.aval.shape, ())
        if fill.infer(found[0].aval) != out.aval:
            return eqn
        numbers[out] = found[0]
        return eqn if fill == eqn.op else eqn.replace(op=fill, invars=[found[0]])

    return replaced(jaxpr, filled)
