"""Shared by the communication passes: applying a rewrite to regions, and merging the notes of collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshwright.core.avals import Axes
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn
from meshwright.ir.rewrite import in_regions, rebuilt
from meshwright.spmd.reason import Merged, Part, Reason
from meshwright.spmd.varying import Units, Variance, region_inputs

#: a rewrite of one jaxpr, without its regions, given where its values differ between devices
Rewrite = Callable[[Jaxpr, Variance], Jaxpr]


def with_regions(jaxpr: ClosedJaxpr, inputs: Sequence[Axes], units: Units, rewrite: Rewrite) -> ClosedJaxpr:
    """``rewrite`` applied to the jaxpr and, before that, to the regions of its equations."""
    inner = jaxpr.jaxpr
    variance = Variance(inner, inputs, units)
    inner = rebuilt(inner, [_in_regions(e, variance, rewrite) if e.op.holds_jaxprs else e for e in inner.eqns])
    variance = variance if inner is jaxpr.jaxpr else Variance(inner, inputs, units)
    return jaxpr.replace(jaxpr=rewrite(inner, variance))


def _in_regions(eqn: JaxprEqn, variance: Variance, rewrite: Rewrite) -> JaxprEqn:
    inputs = iter(region_inputs(eqn, variance.varying, variance.units) if eqn.op.regions() else ())
    return in_regions(eqn, lambda region: with_regions(region, next(inputs), variance.units, rewrite))


def merged_note(eqns: Sequence[JaxprEqn]) -> Reason | Merged | None:
    """The note for a collective that replaces those of several equations: all distinct reasons."""
    parts: dict[Part, None] = {}
    for eqn in eqns:
        for part in eqn.note.parts if isinstance(eqn.note, Merged) else ((eqn.note, eqn.source),):
            parts[part] = None
    distinct = tuple(parts)
    return distinct[0][0] if len(distinct) == 1 else Merged(distinct)
