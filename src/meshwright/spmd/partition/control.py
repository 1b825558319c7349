"""Partitioning of control flow: bodies become per-device programs with fixed layouts of their inputs and outputs.

A carry has the same layout as input and output of the body, namely the one that propagation through the body found; one
that a body only accumulates into may stay partial (:mod:`~meshwright.spmd.partition.accumulations`), and so may stacked
outputs. The scanned dimension itself is never split, and predicates are replicated. Branches are partitioned before the
layouts of their results are chosen, because the cost depends on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ops.control.bodies import Body, Operands
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.control.regions import pick
from meshwright.sharding import Layout
from meshwright.sharding.rule import REDUCTION
from meshwright.spmd.factors import factor_axes_of
from meshwright.spmd.partition.accumulations import AccumulatingBody, accumulating, added_in_place
from meshwright.spmd.partition.regions import KeepPartial, Results, Scope, layout_inside, operands_in
from meshwright.spmd.partition.result import Replicated, gathered_dims
from meshwright.spmd.partition.values import PartitionedValue
from meshwright.spmd.prices import prices
from meshwright.spmd.reshard.plan import reshard_cost
from meshwright.spmd.rules import eqn_rule


def partition_control(scope: Scope, eqn: JaxprEqn) -> Results:
    """A loop or conditional on local values, recorded in the scope's program."""
    assert isinstance(eqn.op, ControlOp)
    return _conditional(scope, eqn.op, eqn) if eqn.op.chooses else _loop(scope, eqn.op, eqn)


# --- loops --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _LocalBody:
    """A partitioned loop body: the per-device jaxpr and the layouts of all its carries and outputs."""

    jaxpr: ClosedJaxpr
    carry: list[Layout]
    outs: list[Layout]


def _loop(scope: Scope, op: ControlOp, eqn: JaxprEqn) -> Results:
    numbers, bodies = op.numbers(), op.bodies()
    ((number, step),) = op.working()
    _, carried, rows = step.split(step.jaxpr.jaxpr.invars)
    consts = [
        [layout_inside(scope, eqn.invars[n], v) for n, v in zip(places, body.jaxpr.jaxpr.invars)]
        for places, body in zip(numbers.consts, bodies)
    ]
    xs = [layout_inside(scope, eqn.invars[n], v) for n, v in zip(numbers.xs, rows)]
    inside = Operands([], consts, [scope.propagation.layout(v) for v in carried], xs)
    read = {n for i, b in enumerate(bodies) if b.tests for n in pick(numbers.of(i), b.used())}
    trips = max(1, op.trips(eqn.invars) or 1)  # None: unknown
    given = [scope.local.value(eqn.invars[n]) for n in numbers.consts[number]]
    local = _loop_body(scope, step, inside.of(number), [n in read for n in numbers.carry], trips, given)
    layouts = Operands([], consts, local.carry, [_stacked(x) for x in xs]).flat()
    for n in numbers.xs:
        _report_gathered(scope, eqn, n, layouts[n])
    whole = [Layout.replicated(0)]
    regions = [
        scope.region(b.jaxpr, [*c, *local.carry], whole).finished().jaxpr if b.tests else local.jaxpr
        for b, c in zip(bodies, consts)
    ]
    operands = operands_in(scope, eqn, layouts)
    return op.with_regions(regions).bind(*operands), [*local.carry, *map(_stacked, local.outs)]


def _loop_body(
    scope: Scope,
    body: Body,
    layouts: Sequence[Layout],
    used: Sequence[bool],
    trips: int,
    given: Sequence[PartitionedValue],
) -> _LocalBody:
    """Partition a body with parameters in these layouts, which runs ``trips`` times.

    ``used`` marks carries that are also used outside the body, as in a loop condition. ``given``: the body's constants,
    as values of the scope.
    """
    inner = body.jaxpr.jaxpr
    consts, carry, xs = body.split(layouts)
    k, count = len(carry), len(inner.outvars)
    found = accumulating(inner, body.num_consts, used)
    carry = [lo if i in found.sums or used[i] else _sum_of(scope, found, i, lo) for i, lo in enumerate(carry)]
    keep = KeepPartial(trips)
    carried = [replace(keep, reductions=found.sums[i].reductions) if i in found.sums else carry[i] for i in range(k)]
    targets = [*carried, *[replace(keep, stacked=True)] * (count - k), *[Layout.replicated(0)] * len(found.scalars)]
    ins = [*consts, *(carry[i] for i in found.kept), *xs]
    stay = [*(trips * v.runs for v in given), *[1] * (len(ins) - len(given))]
    closed = ClosedJaxpr(found.without(), body.jaxpr.consts)
    part = scope.region(closed, ins, targets, runs=stay, given=given).finished()
    jaxpr = ClosedJaxpr(found.restored(part.jaxpr.jaxpr), part.jaxpr.consts)
    return _LocalBody(jaxpr, part.out_layouts[:k], part.out_layouts[k:count])


def _sum_of(scope: Scope, body: AccumulatingBody, number: int, layout: Layout) -> Layout:
    """The layout of a carry, partial if split updates are added to it in place and it is used for nothing else."""
    ways = set()
    for eqn in added_in_place(body, number):
        rule = eqn_rule(eqn)
        split: set[str] = set()
        for atom, factors in zip(eqn.invars, rule.operands):
            found = factor_axes_of(scope.propagation.layout(atom).dims, factors, rule, scope.mesh)
            split.update(a for f, axes in found.items() if rule.factors[f].kind == REDUCTION for a in axes)
        ways.add((frozenset(split - layout.axes_used), rule.reduction))
    axes, reduction = ways.pop() if len(ways) == 1 else (frozenset(), "")
    return layout.with_partial([*axes], reduction, scope.mesh) if axes else layout


def _stacked(layout: Layout) -> Layout:
    return Layout(((), *layout.dims), layout.partial, layout.reduction)


def _report_gathered(scope: Scope, eqn: JaxprEqn, number: int, after: Layout) -> None:
    """Record an input that is gathered along the scanned dimension because the axes do not split its slices instead."""
    layouts = scope.local.value(eqn.invars[number]).layouts
    gathered = [dict(gathered_dims(layout, after)) for layout in layouts]
    if all(0 in dims for dims in gathered):
        axes, why = scope.mesh.coalesce(gathered[0][0]), "its slices are used one after the other by all devices"
        scope.diagnostics.replicated.append(Replicated(eqn.op.name, eqn.source, number, 0, axes, why))


# --- conditionals -------------------------------------------------------------------------------------------
def _conditional(scope: Scope, op: ControlOp, eqn: JaxprEqn) -> Results:
    numbers = op.numbers()
    params = op.regions()[0].jaxpr.invars
    layouts = [
        _uncut(scope, eqn.invars[n], layout_inside(scope, eqn.invars[n], v)) for n, v in zip(numbers.of(0), params)
    ]
    added = [KeepPartial(scope.summands.of(v)) for v in eqn.outvars]
    given = [scope.local.value(eqn.invars[n]) for n in numbers.of(0)]
    branches = [scope.region(branch, layouts, added, given=given) for branch in op.regions()]
    ways = zip(*(branch.results() for branch in branches))
    outs = [_result_layout(scope, var, each) for var, each in zip(eqn.outvars, ways)]
    regions = [branch.finished(outs).jaxpr for branch in branches]
    operands = operands_in(scope, eqn, [Layout.replicated(0), *layouts])
    return op.with_regions(regions).bind(*operands), outs


def _uncut(scope: Scope, atom: Atom, layout: Layout) -> Layout:
    """A present layout of a value from which ``layout`` can be reached for free, or else ``layout``.

    Branches that need larger tiles then send nothing, and the others slice the value themselves.
    """
    value = scope.local.value(atom)
    known = [] if value.is_of_numbers else [lo for lo in value.layouts if not lo.partial]
    return next((lo for lo in known if not value.cost(lo, layout, scope.mesh)), layout)


def _result_layout(scope: Scope, var: Var, ways: Sequence[PartitionedValue]) -> Layout:
    """The cheapest layout for a result that is one of the values ``ways``, one per branch.

    The cost is the average cost of resharding the values to the layout (a run takes one branch), plus the cost of
    resharding from it to the target. A partial sum may be reduced after the branches, together with others.
    """
    mesh, target = scope.mesh, scope.propagation.target(var)
    shape, size = var.aval.shape, var.aval.dtype.itemsize
    made = [way for way in ways if not way.is_remade]
    together, memory = scope.summands.of(var), prices(mesh).memory

    def cost(layout: Layout) -> float:
        brought = sum(min(way.cost(lo, layout, mesh) for lo in way.layouts) for way in made)
        after = reshard_cost(shape, size, layout, target or layout.drop_partial(), mesh)
        shared = after / together if layout.partial else after
        return brought / len(ways) + shared + memory * size * math.prod(layout.local_shape(shape, mesh))

    hints = [scope.propagation.layout(w.atom) for w in ways]
    known = [layout for way in made for layout in way.layouts]
    found = [*filter(lambda lo: any(lo.dims), hints), *([] if target is None else [target])]
    found = [*(lo for lo in known if lo.partial), *found, *(lo.drop_partial() for lo in known)]
    return min(dict.fromkeys(found) or [Layout.replicated(var.aval.ndim)], key=cost)
