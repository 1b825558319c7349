"""Computes sums of partial values from a completed form of these values, where another use has one.

If ``v`` holds partial sums, one use often completes it (``reduce_scatter(v)``, which leaves each device a tile, or
``all_reduce(v)``), while another computes with the partial sums and completes its own, smaller result, such as the
gradient of a layer's input and that of its bias. The second use then starts from the completed tile instead: its
arithmetic is on a tile, its all-reduce is over fewer axes, an all-gather of the result is added if it still has the
tiled dimension, and ``v`` is freed earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Jaxpr, JaxprEqn, Var
from meshwright.ir.op import Op
from meshwright.ir.rewrite import uses_of
from meshwright.ops.collective.all_reduce import ALL_REDUCE, AllReduce
from meshwright.ops.collective.base import Collective
from meshwright.ops.collective.tiles import AllGather
from meshwright.sharding import AbstractMesh
from meshwright.spmd.passes.gathers import on_tiles
from meshwright.spmd.passes.partial_sums import reduce_rule
from meshwright.spmd.passes.sink import Moved, is_simple
from meshwright.spmd.report import wire_bytes
from meshwright.spmd.varying import Variance

#: kinds of collectives that complete partial values
_COMPLETE = ("all_reduce", "reduce_scatter")


@dataclass(frozen=True)
class _Way:
    """A chain ``eqns`` from a partial value, which ``complete`` completes elsewhere, to the all-reduce ``last``."""

    complete: JaxprEqn
    eqns: tuple[JaxprEqn, ...]
    last: JaxprEqn


def sum_tiles(jaxpr: Jaxpr, variance: Variance, mesh: AbstractMesh) -> Jaxpr:
    """Replace partial sums by sums of completed values wherever these exist and no more bytes are sent."""
    if sum(_completes(e) for e in jaxpr.eqns) < 2:
        return jaxpr
    gone: set[int] = set()
    instead: dict[int, list[JaxprEqn]] = {}
    for way in _ways(jaxpr):
        new = None if id(way.last) in instead else _from_complete(way, variance, mesh)
        if new is not None and _sent(new) <= _sent([way.last]):
            gone.update(map(id, way.eqns))
            instead[id(way.last)] = new
    if not instead:
        return jaxpr
    return jaxpr.replace(eqns=[new for e in jaxpr.eqns if id(e) not in gone for new in instead.get(id(e), [e])])


def _completes(eqn: JaxprEqn) -> bool:
    return isinstance(eqn.op, Collective) and eqn.op.kind in _COMPLETE


def _sent(eqns: Sequence[JaxprEqn]) -> int:
    made = [(e.op, e.invars[0].aval, e.outvars[0].aval) for e in eqns if isinstance(e.op, Collective)]
    return sum(wire_bytes(op.kind, op.group_size, operand, result) for op, operand, result in made)


def _ways(jaxpr: Jaxpr) -> Iterator[_Way]:
    uses = uses_of(jaxpr)
    place = {id(eqn): n for n, eqn in enumerate(jaxpr.eqns)}
    for complete in jaxpr.eqns:
        partial = complete.invars[0] if _completes(complete) else None
        for user in uses[partial] if isinstance(partial, Var) else ():
            eqns: list[JaxprEqn] = []
            while user is not None and is_simple(user) and not isinstance(user.op, Collective):
                eqns.append(user)
                after = uses.get(user.outvars[0], [])
                user = after[0] if len(after) == 1 else None
            if eqns and user is not None and isinstance(user.op, AllReduce) and place[id(user)] > place[id(complete)]:
                yield _Way(complete, tuple(eqns), user)


def _from_complete(way: _Way, variance: Variance, mesh: AbstractMesh) -> list[JaxprEqn] | None:
    """The equations that replace a chain and its all-reduce; None if some op does not commute with the sum."""
    done: Any = way.complete.op
    ends = _without(way.last.op, done, mesh)
    if ends is None:
        return None
    old, new = way.complete.invars[0], way.complete.outvars[0]
    partial = Moved(None, (), old.aval, ALL_REDUCE["sum"](done.axes, done.sizes))
    tile = AllGather(done.axes, done.sizes, done.dimension) if done.kind == "reduce_scatter" else None
    eqns: list[JaxprEqn] = []
    for eqn in way.eqns:
        i = eqn.invars.index(old)
        alike = reduce_rule(eqn, {i: partial}, variance) if eqn.invars.count(old) == 1 else None
        step = alike
        if alike is not None and tile is not None:
            step = on_tiles(eqn, {i: Moved(None, (), new.aval, tile)}, variance, mesh)
        if alike is None or step is None or step.local is None:
            return None
        if tile is not None and step.collective.kind == "all_reduce":
            tile, ends = None, [way.last.op]  # the tiles have been summed over
        elif tile is not None:
            tile = cast(AllGather, step.collective)
        invars = [new if n == i else a for n, a in enumerate(step.local.invars)]
        old, new, partial = eqn.outvars[0], Var(step.value), alike
        eqns += [*step.before, step.local.replace(invars=invars, outvars=[new])]
    return _ended(eqns, [*ends, *([tile] if tile else [])], way.last)


def _without(last: Any, done: Any, mesh: AbstractMesh) -> list[Op] | None:
    """The all-reduce over the remaining axes, or no op; None if ``last`` does not reduce the same sum."""
    own, over = mesh.expand(done.axes), mesh.expand(last.axes)
    if not set(own) <= set(over) or (last.reduction, done.reduction) != ("sum", "sum"):
        return None
    axes = mesh.coalesce(mesh.in_mesh_order([a for a in over if a not in own]))
    return [last.over(axes, [mesh.axis_size(a) for a in axes])] if axes else []


def _ended(eqns: list[JaxprEqn], ops: Sequence[Op], last: JaxprEqn) -> list[JaxprEqn]:
    """Append ``ops`` in order; they keep the notes of ``last``, and the final one has its result."""
    for op in ops:
        (value,) = eqns[-1].outvars
        eqns = [*eqns, last.replace(op=op, invars=[value], outvars=[Var(op.infer(value.aval))])]
    return [*eqns[:-1], eqns[-1].replace(outvars=last.outvars)]
