"""Partitioning of manual regions: over the axes that are not manual, and inlined.

A function with a user-defined partition becomes a manual region here, because only now the layouts are known that it
depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.rewrite import Interpreter, in_jaxprs, replaced
from meshwright.ir.tracing import JaxprTrace
from meshwright.ops.control.callback import Callback
from meshwright.ops.sharding.manual import ShardMap
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.custom import custom_region
from meshwright.spmd.partition.regions import KeepPartial, Results, Scope, layout_inside, operands_in
from meshwright.spmd.partition.result import Replicated, gathered_dims


def partition_manual(scope: Scope, eqn: JaxprEqn) -> Results:
    """A manual region, or a function with a user-defined partition, on local values."""
    op = _custom(scope, eqn) if eqn.op.kept_whole else eqn.op
    # A manual region needs the partitioner on the mesh of the remaining axes, which op rules have no access to.
    assert isinstance(op, ShardMap), op.name
    avals = [a.aval for a in eqn.invars], [v.aval for v in eqn.outvars]
    ins, outs = (op.layouts(specs, side) for specs, side in zip((op.in_specs, op.out_specs), avals))
    rest = scope.mesh.restricted(a for a in scope.mesh.axis_names if a not in op.manual)
    body = _called_by_each(op.jaxpr, tuple(op.manual))
    params = body.jaxpr.invars
    inner = [_automatic(scope.propagation.layout(v), cut, v.aval, rest) for v, cut in zip(params, ins)]
    part = scope.region(body, inner, [KeepPartial()] * len(outs), rest).finished()
    fitting = [_automatic(lo, cut, a, rest) for lo, cut, a in zip(part.out_layouts, outs, body.out_avals)]
    if fitting != part.out_layouts:
        part = scope.region(body, inner, fitting, rest).finished()
    operands = operands_in(scope, eqn, [*map(_joined, ins, inner)])
    trace = scope.local.trace
    results = _Again(trace).run(part.jaxpr, operands)
    trace.note = None
    return results, [*map(_joined, outs, part.out_layouts)]


def _custom(scope: Scope, eqn: JaxprEqn) -> ShardMap:
    """The manual region for a function with a user-defined partition, given the layouts that propagation found."""
    mesh = scope.mesh
    present = [layout_inside(scope, a, a) for a in eqn.invars]
    region = custom_region(eqn, present, [scope.propagation.layout(v) for v in eqn.outvars], mesh)
    layouts = region.layouts(region.in_specs, [a.aval for a in eqn.invars])
    for n, (before, after) in enumerate(zip(present, layouts)):
        for dim, axes in gathered_dims(before, after):
            found = Replicated(eqn.op.name, eqn.source, n, dim, mesh.coalesce(axes), "so says its partition")
            scope.diagnostics.replicated.append(found)
    return region


def _called_by_each(jaxpr: ClosedJaxpr, axes: tuple[str, ...]) -> ClosedJaxpr:
    """The body of a region, with its Python callbacks marked as called by each device along the manual ``axes``."""

    def rule(eqn: JaxprEqn) -> JaxprEqn:
        if isinstance(eqn.op, Callback):
            return eqn.replace(op=replace(eqn.op, each=(*(eqn.op.each or ()), *axes)))
        return in_jaxprs(eqn, lambda inner: _called_by_each(inner, axes))

    return replaced(jaxpr, rule)


class _Again(Interpreter[Any]):
    """Records the equations of a finished trace again, with their notes."""

    def __init__(self, trace: JaxprTrace) -> None:
        self.trace = trace

    def equation(self, eqn: JaxprEqn, args: list[Any]) -> Sequence[Any]:
        self.trace.note = eqn.note
        return super().equation(eqn, args)


def _automatic(layout: Layout, cut: Layout, aval: ShapedArray, mesh: AbstractMesh) -> Layout:
    """``layout`` without axes that do not divide the local size of a dimension that manual axes split.

    Tiles of such a dimension would not be tiles of the global dimension.
    """
    dims = zip(layout.dims, cut.dims, aval.shape)
    return Layout(
        tuple(() if manual and size % mesh.sizes(axes) else axes for axes, manual, size in dims),
        layout.partial,
        layout.reduction,
    )


def _joined(cut: Layout, layout: Layout) -> Layout:
    """The layout of a value split by the manual axes of ``cut``, whose tiles are laid out as ``layout``."""
    dims = tuple(manual + axes for manual, axes in zip(cut.dims, layout.dims))
    return Layout(dims, layout.partial, layout.reduction)
