"""Retypes jaxprs whose parameters vary over more axes than when they were traced (see :mod:`meshwright.ir.varying`).

This is needed for loops, whose carry may start to vary after a step, and branches, whose results must have equal types.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from meshwright.core.avals import Axes
from meshwright.core.weak import WeakKeys
from meshwright.errors import ShardingError
from meshwright.ir.jaxpr import ClosedJaxpr, all_eqns
from meshwright.ir.state import STATE, scope
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr
from meshwright.ir.varying import cast, in_order
from meshwright.ops.collective.base import Collective

_retyped: WeakKeys[ClosedJaxpr, dict[Any, ClosedJaxpr]] = WeakKeys()


def in_axes(jaxpr: ClosedJaxpr) -> list[Axes]:
    """The axes over which each parameter varies."""
    return [a.vma for a in jaxpr.in_avals]


def out_axes(jaxpr: ClosedJaxpr) -> list[Axes]:
    """The axes over which each result varies."""
    return [a.vma for a in jaxpr.out_avals]


def joined(*sides: Iterable[Axes]) -> list[Axes]:
    """For each value, the union of the axes of all sides."""
    return [first.union(*rest) for first, *rest in zip(*sides, strict=True)]


def cast_each(values: Sequence[Any], axes: Sequence[Axes], literals: bool = False) -> list[Any]:
    """Cast each value to vary over at least the given axes."""
    return [cast(x, a, literals) for x, a in zip(values, axes, strict=True)]


def retyped(jaxpr: ClosedJaxpr, ins: Sequence[Axes], outs: Sequence[Axes] = ()) -> ClosedJaxpr:
    """``jaxpr`` with parameters that vary at least over ``ins`` and results that vary at least over ``outs``; unchanged
    if that is so already."""
    ins = joined(in_axes(jaxpr), ins)
    have = out_axes(jaxpr)
    outs = list(outs) or have
    if ins == in_axes(jaxpr) and all(want <= axes for want, axes in zip(outs, have)):
        return jaxpr
    entries = _retyped.setdefault(jaxpr, {})
    key = (tuple(ins), tuple(outs), scope())
    if key not in entries:
        avals = [a.update(vma=axes) for a, axes in zip(jaxpr.in_avals, ins)]
        entries[key] = trace_to_jaxpr(
            lambda *args: cast_each(eval_jaxpr(jaxpr, jaxpr.consts, *args), outs, literals=True),
            avals,
            jaxpr.jaxpr.debug_name,
        )
    return entries[key]


def require_together(what: str, axes: Axes, jaxprs: Sequence[ClosedJaxpr]) -> None:
    """Raise if devices that take different paths, along ``axes``, would deadlock in a collective.

    Raises:
      ShardingError: a collective over such an axis; names it and its line.
    """
    for jaxpr in jaxprs if axes else ():
        for eqn in all_eqns(jaxpr.jaxpr):
            met = axes & set(eqn.op.axes) if isinstance(eqn.op, Collective) and eqn.op.kind else None
            if met:
                names = ", ".join(in_order(met & STATE.checked))
                raise ShardingError(
                    f"{what} that differs between devices along {names} holds a collective over {names}: "
                    f"{eqn.op.name} at {eqn.source}. Devices that do not come to it would be waited for without end; "
                    "take it out, or make the predicate the same for all (psum, pmax)"
                )
