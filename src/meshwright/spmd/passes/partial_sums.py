"""Moves all-reduces past ops that they commute with: ``psum(a) + psum(b)`` becomes ``psum(a + b)``.

An all-reduce commutes with ops that are linear in its operand (if their other operands are the same on all devices),
that only move elements, or that combine as it does. It is done where fewer bytes are sent: after several reduced values
are combined, after a slice or a reduction, or before an ``all_slice``, with which it forms a reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import Jaxpr, JaxprEqn
from meshwright.ir.op import Op
from meshwright.ops.collective.all_reduce import ALL_REDUCE, AllReduce
from meshwright.ops.collective.base import Collective
from meshwright.ops.collective.tiles import AllSlice
from meshwright.ops.elementwise.table import add
from meshwright.ops.reduce.reductions import Reduction
from meshwright.sharding import joined_reduction
from meshwright.spmd.masked import masked_groups, number_of
from meshwright.spmd.passes.fan_out import sunk
from meshwright.spmd.passes.sink import Moved, Sinking, plain_price
from meshwright.spmd.report import wire_bytes
from meshwright.spmd.varying import Variance


def reassociate(jaxpr: Jaxpr, variance: Variance) -> Jaxpr:
    """Move all-reduces to where they send the fewest bytes."""
    return sunk(jaxpr, lambda j: Sinking(j, variance, (AllReduce,), reduce_rule, _price))


def reduce_rule(eqn: JaxprEqn, pending: Mapping[int, Moved], variance: Variance) -> Moved | None:
    """The equation on partial values, if all its pending operands have the same partial axes and the op commutes."""
    first = _joined([m.collective for m in pending.values()])
    if first is None:
        return None
    others = [a for i, a in enumerate(eqn.invars) if i not in pending]
    if meets(eqn.op, first, variance):
        return None
    if not commutes(eqn, frozenset(pending), first, variance.zeros(eqn)) or not all(
        variance.same(a, first.axes) for a in others
    ):
        return None
    avals = [pending[i].value if i in pending else a.aval for i, a in enumerate(eqn.invars)]
    if avals[next(iter(pending))].dtype != eqn.outvars[0].aval.dtype:
        return None  # rounding differs
    return Moved(eqn, (), eqn.op.infer(*avals), first)


def _joined(collectives: Sequence[Any]) -> AllReduce | None:
    """One all-reduce for several that differ at most in whether their sums are masked; None if they differ more."""
    first, *others = collectives
    if not isinstance(first, AllReduce):
        return None
    for other in others:
        kind = joined_reduction(first.reduction, other.reduction) if isinstance(other, AllReduce) else None
        if kind is None or first.axes != other.axes:
            return None
        first = ALL_REDUCE[kind](first.axes, first.sizes)
    return first


def meets(op: Op, collective: Collective, variance: Variance) -> bool:
    """Whether an op is a collective over some of the same axes as ``collective``."""
    return isinstance(op, Collective) and bool(set(variance.units(op.axes)) & set(variance.units(collective.axes)))


def commutes(
    eqn: JaxprEqn, pending: frozenset[int], collective: AllReduce, zeros: frozenset[int] = frozenset()
) -> bool:
    """Whether an all-reduce of the ``pending`` operands can be done on the result instead.

    ``zeros`` are operands known to be zero: reducing them changes nothing.
    """
    op = eqn.op
    if op.moves_only and pending == {0}:
        return True
    if collective.monoid.combine is add:  # known by the ops' own linearity
        avals, masked = [a.aval for a in eqn.invars], collective.reduction == "masked"
        groups = masked_groups(op, avals, [number_of(a) for a in eqn.invars]) if masked else op.linear_groups(*avals)
        terms = pending if masked else pending | zeros
        return any(pending <= set(group) <= terms for group in groups)
    if isinstance(op, Reduction):
        return op.monoid is collective.monoid
    return op.name == collective.monoid.name and len(pending) == len(eqn.invars)


def _price(collective: Collective, value: ShapedArray, user: JaxprEqn | None) -> int:
    """The bytes of an all-reduce, or of the reduce-scatter that it forms with a slice after it."""
    if user is not None and isinstance(user.op, AllSlice) and user.op.axes == collective.axes:
        return wire_bytes("reduce_scatter", collective.group_size, value, user.outvars[0].aval)
    return plain_price(collective, value, user)
