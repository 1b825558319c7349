"""Partitioning of control flow: bodies become per-device programs with fixed layouts of their inputs and outputs.

A carry has the same layout as input and output of the body, namely the one that propagation through the body found.
If a body only accumulates into a carry (a gradient over microbatches, a loss), the accumulation is removed from the
body before partitioning. Its terms may then stay partial sums, the carry is partial too, and one reduction after the
loop completes it. This also holds for sums scaled in every step, running means, and updates that a predicate may skip.
Stacked outputs may stay partial as well. The scanned dimension itself is never split, and predicates are replicated.
Branches are partitioned before the layouts of their results are chosen, because the cost depends on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var
from meshwright.ir.rewrite import Interpreter, in_jaxprs, replaced, uses_of
from meshwright.ir.tracing import JaxprTrace
from meshwright.ops.control.bodies import Operands
from meshwright.ops.control.callback import Callback
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.control.regions import pick, split
from meshwright.ops.sharding.manual import ShardMap
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.rule import PARALLEL
from meshwright.spmd.custom import custom_region
from meshwright.spmd.flatten import eqn_rule
from meshwright.spmd.masked import masked_groups, number_of
from meshwright.spmd.partition.keep_partial import KeepPartial
from meshwright.spmd.partition.record import Replicated
from meshwright.spmd.prices import prices
from meshwright.spmd.reshard.plan import reshard_cost

if TYPE_CHECKING:
    from meshwright.spmd.partition.partitioner import Partitioner, Value

#: results on a device, and their layouts
Results = tuple[Sequence[Any], Sequence[Layout]]


def partition_regions(p: Partitioner, eqn: JaxprEqn) -> Results:
    """The equation on local values, recorded in ``p``'s trace."""
    op = eqn.op
    if isinstance(op, ControlOp):
        return _choice(p, op, eqn) if op.chooses else _loop(p, op, eqn)
    if op.kept_whole:
        return _shard_map(p, _region(p, eqn), eqn)
    # A manual region needs the partitioner on the mesh of the remaining axes, which op rules have no access to.
    assert isinstance(op, ShardMap), op.name
    return _shard_map(p, op, eqn)


def _layout(p: Partitioner, operand: Atom, parameter: Atom) -> Layout:
    """The layout in which a region takes an operand: the one propagation found for ``parameter``, else the present one.

    For a scanned operand, this is the layout of its slices.
    """
    layout = p.propagation.layout(parameter)
    if any(layout.dims):
        return layout
    present = p.value(operand).layouts[0].drop_partial()
    return Layout(present.dims[operand.aval.ndim - parameter.aval.ndim :])


def _bring(p: Partitioner, eqn: JaxprEqn, number: int, layout: Layout) -> Any:
    return p.bring(p.value(eqn.invars[number]), layout, eqn, number)


def _stacked(layout: Layout) -> Layout:
    return Layout(((), *layout.dims), layout.partial, layout.reduction)


# --- carries that a body only accumulates into --------------------------------------------------------------
@dataclass(frozen=True)
class _Sum:
    """An accumulation: ``eqns`` compute the new carry number ``place`` from the old one and ``term``.

    They are jointly linear in both, and the carry has no other use: a sum, a scaled sum, a running mean, or a sum that
    a predicate may skip. ``scalars`` are the other operands of the equations; they are replicated.
    """

    place: int
    eqns: tuple[JaxprEqn, ...]
    term: Var
    scalars: tuple[Var, ...]

    @property
    def reductions(self) -> tuple[str, ...]:
        """The reductions with which the term may stay partial."""
        return ("sum", "masked") if all(map(_keeps_masked, self.eqns)) else ("sum",)


def _sums(jaxpr: Jaxpr, first: int, count: int, used: Sequence[bool]) -> list[_Sum]:
    """The accumulations among the ``count`` carries from parameter ``first`` on; ``used``: carries used elsewhere."""
    uses = uses_of(jaxpr)
    sums = (_sum(jaxpr, first, place, uses) for place in range(count) if not used[place])
    return [s for s in sums if s is not None]


def _sum(jaxpr: Jaxpr, first: int, place: int, uses: dict[Var, list[JaxprEqn | None]]) -> _Sum | None:
    carry, out = jaxpr.invars[first + place], jaxpr.outvars[place]
    reached: dict[Var, None] = {carry: None}
    eqns: list[JaxprEqn] = []
    terms: dict[Var, None] = {}
    scalars: dict[Var, None] = {}
    for eqn in jaxpr.eqns:
        mine = [i for i, a in enumerate(eqn.invars) if isinstance(a, Var) and a in reached]
        if not mine:
            continue
        group = _pointwise_group(eqn, mine)
        if group is None:
            return None
        for i, atom in enumerate(eqn.invars):
            if isinstance(atom, Var) and i not in mine:
                (terms if i in group else scalars)[atom] = None
        reached[eqn.outvars[0]] = None
        eqns.append(eqn)
    inside = {id(eqn) for eqn in eqns}
    escapes = any(u is None or id(u) not in inside for v in reached if v is not out for u in uses.get(v, []))
    if len(terms) != 1 or out not in reached or out is carry or escapes or uses[out] != [None]:
        return None
    (term,) = terms
    fits = term.aval.shape == carry.aval.shape and all(v.aval.ndim == 0 for v in scalars)
    return _Sum(place, tuple(eqns), term, tuple(scalars)) if fits and term not in scalars else None


def _keeps_masked(eqn: JaxprEqn) -> bool:
    """Whether masked sums pass through an equation through which sums pass."""
    avals = [a.aval for a in eqn.invars]
    return bool(masked_groups(eqn.op, avals, [number_of(a) for a in eqn.invars]))


def _pointwise_group(eqn: JaxprEqn, operands: Sequence[int]) -> tuple[int, ...] | None:
    """The group of operands, including ``operands``, in which an elementwise equation is jointly linear, or None."""
    if len(eqn.outvars) != 1 or eqn.op.holds_jaxprs:
        return None
    groups = eqn.op.linear_groups(*(a.aval for a in eqn.invars))
    group = next((g for g in groups if set(operands) <= set(g)), None)
    shape = eqn.outvars[0].aval.shape
    # A literal in the group would be added by every device.
    summed = [eqn.invars[i] for i in group or ()]
    fits = all(isinstance(atom, Var) and atom.aval.shape == shape for atom in summed)
    return group if fits and all(f.kind == PARALLEL for f in eqn_rule(eqn).factors) else None


@dataclass(frozen=True)
class _Local:
    """A partitioned loop body: the per-device jaxpr and the layouts of all its carries and outputs."""

    jaxpr: ClosedJaxpr
    carry: list[Layout]
    outs: list[Layout]


def _loop_body(
    p: Partitioner,
    body: ClosedJaxpr,
    consts: Sequence[Layout],
    carry: Sequence[Layout],
    xs: Sequence[Layout],
    used: Sequence[bool],
    trips: int | None,
) -> _Local:
    """Partition a body with the parameters constants, carry and slices, which runs ``trips`` times (None: unknown).

    ``used`` marks carries that are also used outside the body, as in a loop condition.
    """
    inner = body.jaxpr
    c, k = len(consts), len(carry)
    sums = {s.place: s for s in _sums(inner, c, k, used)}
    outside = {id(eqn) for s in sums.values() for eqn in s.eqns}
    kept = [i for i in range(k) if i not in sums]
    const_vars, carry_vars, xs_vars = split(inner.invars, c, k)
    outvars: list[Atom] = [sums[i].term if i in sums else inner.outvars[i] for i in range(k)]
    scalars = list(dict.fromkeys(v for s in sums.values() for v in s.scalars))
    without = inner.replace(
        invars=[*const_vars, *(carry_vars[i] for i in kept), *xs_vars],
        outvars=[*outvars, *inner.outvars[k:], *scalars],
        eqns=[e for e in inner.eqns if id(e) not in outside],
    )
    keep = KeepPartial(max(1, trips or 1))
    added = {i: replace(keep, reductions=s.reductions) for i, s in sums.items()}
    targets = [added[i] if i in sums else carry[i] for i in range(k)] + [keep] * (len(inner.outvars) - k)
    whole = [Layout.replicated(0)] * len(scalars)
    part = p.nested(ClosedJaxpr(without, body.consts), [*consts, *(carry[i] for i in kept), *xs], [*targets, *whole])
    local = part.jaxpr.jaxpr
    local_consts, local_carry, local_xs = split(local.invars, c, len(kept))
    outs, eqns = list(local.outvars[: len(inner.outvars)]), list(local.eqns)
    shared: dict[Atom, Atom] = dict(zip(scalars, local.outvars[len(inner.outvars) :]))
    given = iter(local_carry)
    params = [Var(_tile(carry_vars[i], outs[i])) if i in sums else next(given) for i in range(k)]
    for i, s in sums.items():
        again, outs[i] = _on_parts(s, carry_vars[i], params[i], outs[i], shared, inner.outvars[i])
        eqns += again
    jaxpr = local.replace(invars=[*local_consts, *params, *local_xs], outvars=outs, eqns=eqns)
    count = len(inner.outvars)
    return _Local(ClosedJaxpr(jaxpr, part.jaxpr.consts), part.out_layouts[:k], part.out_layouts[k:count])


def _tile(whole: Atom, like: Atom) -> ShapedArray:
    """The type of ``whole`` with the shape of ``like``."""
    return whole.aval.update(shape=like.aval.shape)


def _on_parts(
    s: _Sum, carry: Var, local_carry: Var, local_term: Atom, shared: dict[Atom, Atom], out: Atom
) -> tuple[list[JaxprEqn], Atom]:
    """The equations of an accumulation on the per-device (partial) carry and term, and the new carry."""
    local: dict[Atom, Atom] = {**shared, carry: local_carry, s.term: local_term}
    eqns = []
    for eqn in s.eqns:
        (var,) = eqn.outvars
        local[var] = Var(_tile(var, local_term))
        operands = [local.get(a, a) if isinstance(a, Var) else a for a in eqn.invars]
        eqns.append(eqn.replace(invars=operands, outvars=[local[var]]))
    return eqns, local[out]


# --- the ops ------------------------------------------------------------------------------------------------
def _loop(p: Partitioner, op: ControlOp, eqn: JaxprEqn) -> Results:
    numbers, bodies = op.numbers(), op.bodies()
    ((number, step),) = op.working()
    _, carried, rows = step.split(step.jaxpr.jaxpr.invars)
    consts = [
        [_layout(p, eqn.invars[n], v) for n, v in zip(places, body.jaxpr.jaxpr.invars)]
        for places, body in zip(numbers.consts, bodies)
    ]
    xs = [_layout(p, eqn.invars[n], v) for n, v in zip(numbers.xs, rows)]
    carry = [p.propagation.layout(v) for v in carried]
    read = {n for i, b in enumerate(bodies) if b.tests for n in pick(numbers.of(i), b.used())}
    used = [n in read for n in numbers.carry]
    local = _loop_body(p, step.jaxpr, consts[number], carry, xs, used, op.trips(eqn.invars))
    layouts = Operands([], consts, local.carry, [_stacked(x) for x in xs]).flat()
    for n in numbers.xs:
        _report_gathered(p, eqn, n, layouts[n])
    whole = [Layout.replicated(0)]
    regions = [
        p.nested(b.jaxpr, [*c, *local.carry], whole).jaxpr if b.tests else local.jaxpr for b, c in zip(bodies, consts)
    ]
    operands = [_bring(p, eqn, i, layout) for i, layout in enumerate(layouts)]
    return op.with_regions(regions).bind(*operands), [*local.carry, *map(_stacked, local.outs)]


def _report_gathered(p: Partitioner, eqn: JaxprEqn, number: int, after: Layout) -> None:
    """Record an input that is gathered along the scanned dimension because the axes do not split its slices instead."""
    layouts = p.value(eqn.invars[number]).layouts
    if all(layout.dims[0] and not after.axes_used.issuperset(layout.dims[0]) for layout in layouts):
        axes = p.mesh.coalesce(layouts[0].dims[0])
        why = "its slices are used one after the other by all devices"
        p.replicated.append(Replicated(eqn.op.name, eqn.source, number, 0, axes, why))


def _choice(p: Partitioner, op: ControlOp, eqn: JaxprEqn) -> Results:
    numbers = op.numbers()
    params = op.regions()[0].jaxpr.invars
    layouts = [_uncut(p, eqn.invars[n], _layout(p, eqn.invars[n], v)) for n, v in zip(numbers.of(0), params)]
    added = [KeepPartial(p.summands.of(v)) for v in eqn.outvars]
    walked = [p.walked(branch, layouts, added) for branch in op.regions()]
    values = zip(*([w.put_out(atom) for atom in w.closed.jaxpr.outvars] for w in walked))
    outs = [_result_layout(p, var, ways) for var, ways in zip(eqn.outvars, values)]
    branches = [p.noted(w.finished(outs)).jaxpr for w in walked]
    operands = [_bring(p, eqn, i, lo) for i, lo in enumerate([Layout.replicated(0), *layouts])]
    return op.with_regions(branches).bind(*operands), outs


def _uncut(p: Partitioner, atom: Atom, layout: Layout) -> Layout:
    """A present layout of a value from which ``layout`` can be reached for free, or else ``layout``.

    Branches that need larger tiles then send nothing, and the others slice the value themselves.
    """
    value, shape, size = p.value(atom), atom.aval.shape, atom.aval.dtype.itemsize
    known = [] if value.is_remade else [lo for lo in value.layouts if not lo.partial]
    return next((lo for lo in known if not reshard_cost(shape, size, lo, layout, p.mesh)), layout)


def _result_layout(p: Partitioner, var: Var, ways: Sequence[Value]) -> Layout:
    """The cheapest layout for a result that is one of the values ``ways``, one per branch.

    The cost is the average cost of resharding the values to the layout (a run takes one branch), plus the cost of
    resharding from it to the target. A partial sum may be reduced after the branches, together with others.
    """
    target, unit = p.propagation.target(var), prices(p.mesh)
    shape, size = var.aval.shape, var.aval.dtype.itemsize
    made = [way for way in ways if not way.is_remade]
    together = p.summands.of(var)

    def cost(layout: Layout) -> float:
        brought = sum(min(reshard_cost(shape, size, lo, layout, p.mesh) for lo in way.layouts) for way in made)
        after = reshard_cost(shape, size, layout, target or layout.drop_partial(), p.mesh)
        shared = after / together if layout.partial else after
        return brought / len(ways) + shared + unit.memory * size * math.prod(layout.local_shape(shape, p.mesh))

    hints = [p.propagation.layout(w.atom) for w in ways]
    known = [layout for way in made for layout in way.layouts]
    found = [*filter(lambda lo: any(lo.dims), hints), *([] if target is None else [target])]
    found = [*(lo for lo in known if lo.partial), *found, *(lo.drop_partial() for lo in known)]
    return min(dict.fromkeys(found) or [Layout.replicated(var.aval.ndim)], key=cost)


def _region(p: Partitioner, eqn: JaxprEqn) -> ShardMap:
    """The manual region for a function with a user-defined partition, given the layouts that propagation found."""
    present = [_layout(p, a, a) for a in eqn.invars]
    region = custom_region(eqn, present, [p.propagation.layout(v) for v in eqn.outvars], p.mesh)
    layouts = region.layouts(region.in_specs, [a.aval for a in eqn.invars])
    for n, (before, after) in enumerate(zip(present, layouts)):
        for dim, (had, has) in enumerate(zip(before.dims, after.dims)):
            if had and not has and not after.axes_used.issuperset(had):
                why = "so says its partition"
                p.replicated.append(Replicated(eqn.op.name, eqn.source, n, dim, p.mesh.coalesce(had), why))
    return region


def _shard_map(p: Partitioner, op: ShardMap, eqn: JaxprEqn) -> Results:
    """Partition a manual region over its remaining axes, and inline the result."""
    avals = [a.aval for a in eqn.invars], [v.aval for v in eqn.outvars]
    ins, outs = (op.layouts(specs, side) for specs, side in zip((op.in_specs, op.out_specs), avals))
    rest = p.mesh.restricted(a for a in p.mesh.axis_names if a not in op.manual)
    op = op.with_regions([_called_by_each(op.jaxpr, tuple(op.manual))])
    params = op.jaxpr.jaxpr.invars
    inner = [_automatic(p.propagation.layout(v), cut, v.aval, rest) for v, cut in zip(params, ins)]
    part = p.nested(op.jaxpr, inner, [KeepPartial()] * len(outs), rest)
    fitting = [_automatic(lo, cut, a, rest) for lo, cut, a in zip(part.out_layouts, outs, op.jaxpr.out_avals)]
    if fitting != part.out_layouts:
        part = p.nested(op.jaxpr, inner, fitting, rest)
    operands = [_bring(p, eqn, i, _joined(cut, lo)) for i, (cut, lo) in enumerate(zip(ins, inner))]
    results = _Again(p.trace).run(part.jaxpr, operands)
    p.trace.note = None
    return results, [_joined(cut, lo) for cut, lo in zip(outs, part.out_layouts)]


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
