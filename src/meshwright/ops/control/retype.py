"""Jaxprs for parameters that vary over more axes than those they were traced for (see :mod:`meshwright.ir.varying`).

Loops need it, whose carry may vary after a step where it did not before, and branches, whose results must be alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from meshwright.core import source
from meshwright.core.avals import Axes
from meshwright.core.weak import WeakKeys
from meshwright.errors import ShardingError
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, all_eqns
from meshwright.ir.rewrite import Interpreter
from meshwright.ir.state import STATE, scope
from meshwright.ir.tracing import trace_to_jaxpr
from meshwright.ir.varying import axes_of, cast, in_order
from meshwright.ops.collective.all_reduce import PVary
from meshwright.ops.collective.base import Collective

_retyped: WeakKeys[ClosedJaxpr, dict[Any, ClosedJaxpr]] = WeakKeys()


def in_axes(jaxpr: ClosedJaxpr) -> list[Axes]:
    """The axes over which each parameter varies."""
    return [a.vma for a in jaxpr.in_avals]


def out_axes(jaxpr: ClosedJaxpr) -> list[Axes]:
    """The axes over which each result varies."""
    return [a.vma for a in jaxpr.out_avals]


def joined(*sides: Iterable[Axes]) -> list[Axes]:
    """Of each value, the axes that any side names."""
    return [first.union(*rest) for first, *rest in zip(*sides, strict=True)]


def cast_each(values: Sequence[Any], axes: Sequence[Axes], literals: bool = False) -> list[Any]:
    """Values, each varying over axes of its own at least."""
    return [cast(x, a, literals) for x, a in zip(values, axes, strict=True)]


def retyped(jaxpr: ClosedJaxpr, ins: Sequence[Axes], outs: Sequence[Axes] = ()) -> ClosedJaxpr:
    """``jaxpr`` with parameters that vary over ``ins`` and results that vary over ``outs``, at least; itself if it is
    so already."""
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
            lambda *args: cast_each(_Retyping().run(jaxpr, args), outs, literals=True), avals, jaxpr.jaxpr.debug_name
        )
    return entries[key]


class _Retyping(Interpreter[Any]):
    """Applies a jaxpr's equations anew, so that casts are put in where types have changed."""

    def equation(self, eqn: JaxprEqn, args: list[Any]) -> Sequence[Any]:
        if isinstance(eqn.op, PVary):
            with source.at(eqn.source):
                return [cast(args[0], axes_of(args[0]).union(eqn.op.axes))]
        return super().equation(eqn, args)


def require_together(what: str, axes: Axes, jaxprs: Sequence[ClosedJaxpr]) -> None:
    """Raise if devices that go different ways, along ``axes``, would wait for each other on one of them.

    Raises:
      ShardingError: a collective over such an axis; says which and where.
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
