"""Type errors that float64 hides: values of a per-device program whose types are not those of the program."""

from __future__ import annotations

from meshwright.core import dtypes
from meshwright.ir.jaxpr import JaxprEqn, all_eqns
from meshwright.spmd.partition.result import Partition

#: a conversion (from type, to type), or an op that rounds with its parameters
_Rounding = tuple[str, str]


def other_types(part: Partition) -> str | None:
    """Describe a value on a device that has another type than the program's, or an unexpected rounding; None if none.

    A rounding is unexpected if the unpartitioned program does not round to that type anywhere.
    """
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
    """How an equation rounds, if it does so beyond the precision of its operands' types; otherwise None."""
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
