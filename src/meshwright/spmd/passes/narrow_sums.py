"""Reduces values in the type that they are computed in, before they are converted to a wider one.

Gradients of layers that compute in bfloat16 are converted for weights in float32, and reshaped to be stacked by a loop.
Where the sum over devices is completed after that, it sends twice as much as before. XLA completes it before, too.

Only sums that the partitioner left open are moved, of what the program itself computes in the narrow type. A ``psum``
of converted values that the user wrote is one in the wide type, and so is a sum over rows that the program converts.
"""

from __future__ import annotations

import ml_dtypes

from meshwright.core import dtypes
from meshwright.ir.jaxpr import Jaxpr, JaxprEqn, Var
from meshwright.ir.rewrite import producers_of, rebuilt, uses_of
from meshwright.ops.collective.all_reduce import AllReduce
from meshwright.ops.collective.base import Collective
from meshwright.ops.collective.tiles import ReduceScatter
from meshwright.ops.elementwise.table import ConvertElementType
from meshwright.spmd.reason import Reason
from meshwright.spmd.varying import Variance


def reduce_narrow(jaxpr: Jaxpr, _: Variance) -> Jaxpr:
    """Move reductions over devices before conversions to wider floats whose results nothing else uses."""
    if not any(map(_is_open, jaxpr.eqns)):
        return jaxpr
    eqns: list[JaxprEqn] = []
    makers, uses = producers_of(jaxpr), {v: len(users) for v, users in uses_of(jaxpr).items()}
    for eqn in jaxpr.eqns:
        chain = _chain(eqn, makers, uses) if _is_open(eqn) else []
        # the value that the partitioner completes is what the last move makes, and no sum that it makes of it
        is_moved = chain and eqn.note.made_by == chain[-1].op.name
        eqns += _narrowed(eqn, chain) if is_moved else [eqn]
    return rebuilt(jaxpr, eqns)


def _chain(eqn: JaxprEqn, makers: dict[Var, JaxprEqn], uses: dict[Var, int]) -> list[JaxprEqn]:
    """The conversion to a wider type, and what then only moves the elements that are reduced; empty without one."""
    found: list[JaxprEqn] = []
    (value,) = eqn.invars
    while isinstance(value, Var) and uses.get(value) == 1 and value in makers:
        maker = makers[value]
        if len(maker.invars) != 1 or len(maker.outvars) != 1 or isinstance(maker.op, Collective):
            break
        found.insert(0, maker)
        (value,) = maker.invars
        if isinstance(maker.op, ConvertElementType):
            return found if _widens(maker) else []
        if not maker.op.moves_only or maker.outvars[0].aval.size != value.aval.size:
            break
    return []


def _is_open(eqn: JaxprEqn) -> bool:
    """Whether an equation completes a sum that the partitioner has left open."""
    return isinstance(eqn.op, (AllReduce, ReduceScatter)) and isinstance(eqn.note, Reason)


def _widens(eqn: JaxprEqn) -> bool:
    """Whether an equation converts to a wider float of no greater range: float16 could overflow."""
    narrow, wide = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    if not (isinstance(eqn.invars[0], Var) and dtypes.is_float(narrow) and dtypes.is_float(wide)):
        return False
    exponents = [ml_dtypes.finfo(dtype).maxexp for dtype in (narrow, wide)]
    return narrow.itemsize < wide.itemsize and exponents[0] >= exponents[1]


def _narrowed(eqn: JaxprEqn, chain: list[JaxprEqn]) -> list[JaxprEqn]:
    """The moves and the reduction on the narrow value, and then the conversion. What they replace becomes dead."""
    convert, *moves = chain
    (value,) = convert.invars
    made = []
    if all(map(_keeps_order, moves)) and eqn.invars[0].aval.shape == value.aval.shape:
        moves = []
    for step in (*moves, eqn):
        (result,) = [Var(step.op.infer(value.aval))]
        made.append(step.replace(invars=[value], outvars=[result]))
        value = result
    return [*made, convert.replace(invars=[value], outvars=[*eqn.outvars])]


def _keeps_order(eqn: JaxprEqn) -> bool:
    """Whether a move leaves the elements in their order."""
    dims = getattr(eqn.op, "broadcast_dimensions", None)
    return eqn.op.name == "reshape" or (dims is not None and list(dims) == sorted(dims))
