"""What float64 hides: types of a per-device program that are not those of the program it was made of."""

from __future__ import annotations

from meshwright.core import dtypes
from meshwright.ir.jaxpr import JaxprEqn, all_eqns
from meshwright.spmd.partition.record import Partition

#: from which type, or by which op, to which type
_Rounding = tuple[str, str]


def other_types(part: Partition) -> str | None:
    """Says where a value on a device has another type than what it stands for, or is rounded to a type that the program
    rounds nothing to; None if nowhere."""
    for number, (got, want) in enumerate(zip(part.jaxpr.out_avals, part.source.out_avals)):
        if got.dtype != want.dtype:
            return f"output {number} is {got} on a device, of a result that is {want}"
    meant, rounded = part.stands_for, {_rounding(e) for e in all_eqns(part.source.jaxpr)}
    for eqn in all_eqns(part.jaxpr.jaxpr):
        for var in eqn.outvars:
            if var in meant and var.aval.dtype != meant[var][0].aval.dtype:
                return f"{eqn.op.name} at {eqn.source} makes {var.aval} of what is {meant[var][0].aval} in the program"
        kind = _rounding(eqn)
        if kind is not None and kind not in rounded:
            return f"{eqn.op.name} at {eqn.source} rounds {kind[0]} to {kind[1]}, as no op of the program does"
    return None


def _rounding(eqn: JaxprEqn) -> _Rounding | None:
    """What an equation rounds its operands to, beyond the precision of its type."""
    if eqn.op.rounds:
        return eqn.op.name, str(dict(eqn.op.params))
    operands, results = (
        [dtypes.real_of(a.aval.dtype) for a in atoms if dtypes.is_inexact(a.aval.dtype)]
        for atoms in (eqn.invars, eqn.outvars)
    )
    if not operands or not results or eqn.op.holds_jaxprs:
        return None
    widest, narrowest = max(operands, key=dtypes.bit_width), min(results, key=dtypes.bit_width)
    return None if dtypes.holds_floats(narrowest, widest) else (str(widest), str(narrowest))
