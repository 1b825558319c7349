"""Type errors that float64 hides: values of a per-device program whose types are not those of the program."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np

from meshwright.core import dtypes
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, JaxprEqn, Var, all_eqns
from meshwright.ops.elementwise.monoid import SUM
from meshwright.spmd.partition.result import Partition


@dataclass(frozen=True)
class _Change:
    """How an equation changes the type of numbers: from, to (or the op that rounds, and its parameters)."""

    before: str
    after: str
    #: whether numbers are rounded, or wrap around
    loses: bool

    def __str__(self) -> str:
        return f"{'rounds' if self.loses else 'converts'} {self.before} to {self.after}"


def other_types(part: Partition) -> str | None:
    """Describe a value on a device that has another type than the program's, or an unexpected rounding; None if none.

    A change of type is expected where the value that results stands for one that the program makes by the same change.
    Of values that stand for none, only those changes are expected that the program makes somewhere; of numbers of the
    program, not of the positions that devices compute.
    """
    for number, (got, want) in enumerate(zip(part.jaxpr.out_avals, part.source.out_avals)):
        if got.dtype != want.dtype:
            return f"output {number} is {got} on a device, of a result that is {want}"
    makers = {v: e for e in all_eqns(part.source.jaxpr) for v in e.outvars}
    made = {_change(e) for e in makers.values()}
    for eqn in all_eqns(part.jaxpr.jaxpr):
        wrong = _other_type(part, eqn) or _other_change(part, eqn, makers, made)
        if wrong:
            return f"{eqn.op.name} at {eqn.source} {wrong}"
    return None


def _other_type(part: Partition, eqn: JaxprEqn) -> str | None:
    for var in eqn.outvars:
        if var in part.stands_for and var.aval.dtype != part.stands_for[var][0].aval.dtype:
            return f"makes {var.aval} of what is {part.stands_for[var][0].aval} in the program"
    return None


def _other_change(part: Partition, eqn: JaxprEqn, makers: dict[Var, JaxprEqn], made: set[_Change | None]) -> str | None:
    meant = [part.stands_for[v][0] for v in eqn.outvars if v in part.stands_for]
    maker = next((m for v in meant if (m := _maker(v, makers)) is not None), None)
    change, wanted = _change(eqn), maker and _change(maker)
    if change is None:
        sums = getattr(eqn.op, "monoid", None) is SUM
        return f"sums after what {wanted}, not before" if sums and wanted and wanted.loses else None
    if maker is not None and eqn.op.converts:
        return None if change == wanted else f"{change}, as {maker.op.name} of the program at {maker.source} does not"
    of_program = dtypes.is_inexact(eqn.invars[0].aval.dtype) or any(a in part.stands_for for a in eqn.invars)
    return f"{change}, as no op of the program does" if change.loses and of_program and change not in made else None


def _maker(atom: Atom, makers: dict[Var, JaxprEqn]) -> JaxprEqn | None:
    """The equation that makes a value of the program; for a result of a manual region, the one in it."""
    eqn = makers.get(atom) if isinstance(atom, Var) else None
    while eqn is not None and eqn.op.is_manual:
        (region,) = eqn.op.regions()
        atom = region.jaxpr.outvars[eqn.outvars.index(atom)]  # type: ignore[arg-type]
        eqn = makers.get(atom) if isinstance(atom, Var) else None
    return eqn


def _change(eqn: JaxprEqn) -> _Change | None:
    """How an equation changes the type of numbers; None if it does not, or only gives them more room."""
    if eqn.op.rounds:
        return _Change(eqn.op.name, str(dict(eqn.op.params)), loses=True)
    if eqn.op.converts:
        return _conversion(eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype)
    floats = [
        [dtypes.real_of(a.aval.dtype) for a in atoms if dtypes.is_inexact(a.aval.dtype)]
        for atoms in (eqn.invars, eqn.outvars)
    ]
    if not all(floats) or eqn.op.holds_jaxprs:
        return None
    widest, narrowest = max(floats[0], key=dtypes.bit_width), min(floats[1], key=dtypes.bit_width)
    change = _conversion(widest, narrowest)
    return change if change is not None and change.loses else None


def _conversion(before: np.dtype, after: np.dtype) -> _Change | None:
    if before == after or dtypes.is_bool(before):
        return None
    return _Change(str(before), str(after), loses=not _holds(after, before))


@cache
def _holds(wide: np.dtype, narrow: np.dtype) -> bool:
    """Whether every number of a type is one of another type."""
    if dtypes.is_inexact(narrow) or dtypes.is_bool(wide):
        return dtypes.holds_floats(wide, narrow)
    least, most = (int(getattr(ml_dtypes.iinfo(narrow), end)) for end in ("min", "max"))
    if dtypes.is_inexact(wide):
        return max(-least, most) <= 2 ** (ml_dtypes.finfo(dtypes.real_of(wide)).nmant + 1)
    info = ml_dtypes.iinfo(wide)
    return bool(info.min <= least and most <= info.max)
