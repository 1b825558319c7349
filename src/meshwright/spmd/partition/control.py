"""Partitioning of control flow: the bodies become per-device programs too, with layouts agreed at their borders.

A carry has one layout going in and coming out, the one that propagation found by going through the body. What a body
only adds to its carry (a gradient over microbatches, a loss) is taken out of it first: the terms may then stay partial
sums, the carry is partial with them, and the sum is completed once, after the loop. Outputs that are stacked may stay
partial likewise. The scanned dimension itself is never split, and a predicate is known to all devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var
from meshwright.ir.op import Op
from meshwright.ir.tracing import record_again
from meshwright.ops.control import split
from meshwright.ops.control_cond import Cond
from meshwright.ops.control_scan import Scan
from meshwright.ops.control_while import While
from meshwright.ops.manual import ShardMap
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.rule import PARALLEL
from meshwright.spmd.flatten import eqn_rule
from meshwright.spmd.partition.keep import KeepPartial

if TYPE_CHECKING:
    from meshwright.spmd.partition.partition import Partitioner

#: results on a device, and their layouts
Results = tuple[Sequence[Any], Sequence[Layout]]


def partition_regions(p: Partitioner, eqn: JaxprEqn) -> Results:
    """The equation on local values, recorded in ``p``'s trace."""
    return _HANDLERS[type(eqn.op)](p, eqn.op, eqn)


def _layout(p: Partitioner, atom: Atom, parameter: Var, stacked: bool = False) -> Layout:
    """How a region takes an operand: as propagation found it, else as it is (the scanned dimension whole)."""
    layout = p.propagation.layout(parameter)
    if not any(layout.dims):
        present = p.value(atom).layouts[0].drop_partial()
        layout = Layout(present.dims[1:]) if stacked else present
    return layout


def _bring(p: Partitioner, eqn: JaxprEqn, number: int, layout: Layout) -> Any:
    value = p.value(eqn.invars[number])
    return p.bring(value, p.cheapest(value, layout), layout, eqn.op.name, number, eqn)


def _stacked(layout: Layout) -> Layout:
    return Layout(((), *layout.dims), layout.partial, layout.reduction)


# --- what a body only adds to its carry ---------------------------------------------------------------------
@dataclass(frozen=True)
class _Sum:
    """Carry number ``place`` comes out as ``eqn`` of itself and of ``term``, and is used for nothing else."""

    place: int
    eqn: JaxprEqn
    term: Var


def _sums(jaxpr: Jaxpr, first: int, count: int, used: Sequence[bool]) -> list[_Sum]:
    """The sums among carries ``first .. first + count`` of the parameters; ``used`` marks those used elsewhere."""
    uses = Counter(a for e in jaxpr.eqns for a in e.invars if isinstance(a, Var))
    uses.update(a for a in jaxpr.outvars if isinstance(a, Var))
    made = {v: e for e in jaxpr.eqns for v in e.outvars}
    found = []
    for place in range(count):
        carry, out = jaxpr.invars[first + place], jaxpr.outvars[place]
        eqn = made.get(out) if isinstance(out, Var) else None
        if eqn is None or used[place] or uses[carry] != 1 or uses[out] != 1 or len(eqn.invars) != 2:  # type: ignore[index]
            continue
        term = next((a for a in eqn.invars if a is not carry), None)
        if carry in eqn.invars and isinstance(term, Var) and _adds(eqn):
            found.append(_Sum(place, eqn, term))
    return found


def _adds(eqn: JaxprEqn) -> bool:
    """Whether an equation is linear in its two operands together, point by point."""
    same = all(a.aval.shape == eqn.outvars[0].aval.shape for a in eqn.invars)
    groups = eqn.op.linear_groups(*(a.aval for a in eqn.invars))
    return same and (0, 1) in groups and all(f.kind == PARALLEL for f in eqn_rule(eqn).factors)


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
    """Partition a body of constants, carry and slices that runs ``trips`` times.

    ``used`` marks carries that are used outside of it."""
    inner = body.jaxpr
    c, k = len(consts), len(carry)
    sums = {s.place: s for s in _sums(inner, c, k, used)}
    outside = {id(s.eqn) for s in sums.values()}
    kept = [i for i in range(k) if i not in sums]
    const_vars, carry_vars, xs_vars = split(inner.invars, c, k)
    outvars: list[Atom] = [sums[i].term if i in sums else inner.outvars[i] for i in range(k)]
    without = inner.replace(
        invars=[*const_vars, *(carry_vars[i] for i in kept), *xs_vars],
        outvars=[*outvars, *inner.outvars[k:]],
        eqns=[e for e in inner.eqns if id(e) not in outside],
    )
    keep = KeepPartial(max(1, trips or 1))
    wanted = [keep if i in sums else carry[i] for i in range(k)] + [keep] * (len(inner.outvars) - k)
    part = p.nested(ClosedJaxpr(without, body.consts), [*consts, *(carry[i] for i in kept), *xs], wanted)
    local = part.jaxpr.jaxpr
    local_consts, local_carry, local_xs = split(local.invars, c, len(kept))
    given = iter(local_carry)
    params, outs, eqns = [], list(local.outvars), list(local.eqns)
    for i in range(k):
        if i not in sums:
            params.append(next(given))
            continue
        # The sum itself, on this device's (partial) terms.
        term = outs[i]
        params.append(Var(term.aval))
        outs[i] = Var(term.aval)
        operands = [params[i] if a is carry_vars[i] else term for a in sums[i].eqn.invars]
        eqns.append(sums[i].eqn.replace(invars=operands, outvars=[outs[i]]))
    jaxpr = local.replace(invars=[*local_consts, *params, *local_xs], outvars=outs, eqns=eqns)
    return _Local(ClosedJaxpr(jaxpr, part.jaxpr.consts), part.out_layouts[:k], part.out_layouts[k:])


# --- the ops ------------------------------------------------------------------------------------------------
def _scan(p: Partitioner, op: Scan, eqn: JaxprEqn) -> Results:
    c, k = op.num_consts, op.num_carry
    params = op.jaxpr.jaxpr.invars
    consts = [_layout(p, eqn.invars[i], params[i]) for i in range(c)]
    carry = [p.propagation.layout(v) for v in params[c : c + k]]
    xs = [_layout(p, eqn.invars[i], params[i], stacked=True) for i in range(c + k, len(params))]
    local = _loop_body(p, op.jaxpr, consts, carry, xs, [False] * k, op.length)
    layouts = [*consts, *local.carry, *map(_stacked, xs)]
    for i in range(c + k, len(layouts)):
        _report_gathered(p, eqn, i)
    operands = [_bring(p, eqn, i, layout) for i, layout in enumerate(layouts)]
    outs = op.with_regions([local.jaxpr]).bind(*operands)
    return outs, [*local.carry, *map(_stacked, local.outs)]


def _report_gathered(p: Partitioner, eqn: JaxprEqn, number: int) -> None:
    """Note an input that is split along the scanned dimension."""
    layouts = p.value(eqn.invars[number]).layouts
    if all(layout.dims[0] for layout in layouts):
        axes = ", ".join(p.mesh.coalesce(layouts[0].dims[0]))
        p.replicated.append(
            f"scan at {eqn.source}: operand {number} is gathered along dimension 0 (was split by {axes}); its slices "
            "are used one after the other by all devices"
        )


def _while(p: Partitioner, op: While, eqn: JaxprEqn) -> Results:
    n, m = op.cond_nconsts, op.body_nconsts
    pred, params = op.cond_jaxpr.jaxpr, op.body_jaxpr.jaxpr.invars
    cond_consts = [_layout(p, eqn.invars[i], pred.invars[i]) for i in range(n)]
    body_consts = [_layout(p, eqn.invars[n + i], params[i]) for i in range(m)]
    carry = [p.propagation.layout(v) for v in params[m:]]
    read = {a for e in pred.eqns for a in e.invars if isinstance(a, Var)}.union(pred.outvars)
    local = _loop_body(
        p, op.body_jaxpr, body_consts, carry, [], [v in read for v in pred.invars[n:]], op.trips(eqn.invars)
    )
    cond = p.nested(op.cond_jaxpr, [*cond_consts, *local.carry], [Layout.replicated(0)])
    operands = [_bring(p, eqn, i, lo) for i, lo in enumerate([*cond_consts, *body_consts, *local.carry])]
    return op.with_regions([cond.jaxpr, local.jaxpr]).bind(*operands), local.carry


def _cond(p: Partitioner, op: Cond, eqn: JaxprEqn) -> Results:
    params = op.branches[0].jaxpr.invars
    layouts = [_layout(p, atom, v) for atom, v in zip(eqn.invars[1:], params)]
    outs: Sequence[Any] = [None] * len(eqn.outvars)
    branches = []
    for branch in op.branches:
        part = p.nested(branch, layouts, outs)
        outs = part.out_layouts  # the first branch decides where propagation does not
        branches.append(part.jaxpr)
    operands = [_bring(p, eqn, i, lo) for i, lo in enumerate([Layout.replicated(0), *layouts])]
    return op.with_regions(branches).bind(*operands), outs


def _shard_map(p: Partitioner, op: ShardMap, eqn: JaxprEqn) -> Results:
    """A region that is a per-device program along its manual axes: it is partitioned over the others and put in."""
    avals = [a.aval for a in eqn.invars], [v.aval for v in eqn.outvars]
    ins, outs = (op.layouts(specs, side) for specs, side in zip((op.in_specs, op.out_specs), avals))
    rest = AbstractMesh([p.mesh.shape[a] for a in p.mesh.axis_names if a not in op.manual],
                        [a for a in p.mesh.axis_names if a not in op.manual])  # fmt: skip
    params = op.jaxpr.jaxpr.invars
    inner = [_automatic(p.propagation.layout(v), cut, v.aval, rest) for v, cut in zip(params, ins)]
    part = p.nested(op.jaxpr, inner, [KeepPartial()] * len(outs), rest)
    fitting = [_automatic(lo, cut, a, rest) for lo, cut, a in zip(part.out_layouts, outs, op.jaxpr.out_avals)]
    if fitting != part.out_layouts:
        part = p.nested(op.jaxpr, inner, fitting, rest)
    operands = [_bring(p, eqn, i, _joined(cut, lo)) for i, (cut, lo) in enumerate(zip(ins, inner))]
    results = record_again(part.jaxpr, p.trace, operands)
    return results, [_joined(cut, lo) for cut, lo in zip(outs, part.out_layouts)]


def _automatic(layout: Layout, cut: Layout, aval: ShapedArray, mesh: AbstractMesh) -> Layout:
    """``layout`` without the axes whose tiles of a manual part would be no tiles of the whole dimension."""
    dims = zip(layout.dims, cut.dims, aval.shape)
    return Layout(
        tuple(() if manual and size % mesh.sizes(axes) else axes for axes, manual, size in dims),
        layout.partial,
        layout.reduction,
    )


def _joined(cut: Layout, layout: Layout) -> Layout:
    """The parts that manual axes cut, themselves laid out as ``layout``."""
    dims = tuple(manual + axes for manual, axes in zip(cut.dims, layout.dims))
    return Layout(dims, layout.partial, layout.reduction)


_HANDLERS: dict[type[Op], Callable[[Partitioner, Any, JaxprEqn], Results]] = {
    Scan: _scan,
    While: _while,
    Cond: _cond,
    ShardMap: _shard_map,
}
