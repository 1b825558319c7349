"""Combines small collectives of one kind: their operands are flattened, concatenated, sent as one, and split again.

Starting a collective takes microseconds whatever its size, so a hundred bias gradients are better sent together (the
gradient buckets of Li et al. 2020, "PyTorch Distributed"). All-reduces and all-gathers of one type over the same axes,
and the readers of their results, wait until up to ``limit`` bytes are collected.

This pays between separate devices. On a virtual mesh collectives are free but copies are not, so the pass is off by
default (``partition(combine_bytes=...)``).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Hashable, Sequence
from typing import Any

from meshwright.core import source
from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn, Var
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.ops.collective.all_reduce import AllReduce
from meshwright.ops.collective.base import Collective
from meshwright.ops.collective.tiles import AllGather
from meshwright.ops.shape.rearrange import move_dim, reshape
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim
from meshwright.spmd.passes.rewrite import merged_note


def combine_collectives(jaxpr: Jaxpr, limit: int) -> Jaxpr:
    """Combine all-reduces and all-gathers in buckets of at most ``limit`` bytes."""
    buckets = _buckets(jaxpr, limit)
    return jaxpr.replace(eqns=_in_order(jaxpr.eqns, buckets)) if buckets else jaxpr


def _buckets(jaxpr: Jaxpr, limit: int) -> list[list[int]]:
    """The indices of equations to combine: at least two of one kind, none of which depends on another."""
    open_: dict[Hashable, list[int]] = {}
    held: dict[Hashable, int] = {}
    buckets: list[list[int]] = []
    for number, (eqn, height) in enumerate(zip(jaxpr.eqns, _heights(jaxpr))):
        kind = _key(eqn)
        size = eqn.invars[0].aval.nbytes if eqn.invars else 0
        if kind is None or size > limit:
            continue
        key = kind, height
        if key not in open_ or held[key] + size > limit:
            open_[key], held[key] = [], 0
            buckets.append(open_[key])
        open_[key].append(number)
        held[key] += size
    return [bucket for bucket in buckets if len(bucket) > 1]


def _heights(jaxpr: Jaxpr) -> list[int]:
    """For each equation, the largest number of collectives on a path from it to the end, including itself.

    Two collectives of equal height cannot depend on each other. All gradient reductions that only the optimizer follows
    have the same height.
    """
    below: dict[Var, int] = {}
    heights = []
    for eqn in reversed(jaxpr.eqns):
        height = max((below.get(v, 0) for v in eqn.outvars), default=0) + (_key(eqn) is not None)
        heights.append(height)
        for atom in eqn.invars:
            if isinstance(atom, Var):
                below[atom] = max(below.get(atom, 0), height)
    return heights[::-1]


def _in_order(eqns: Sequence[JaxprEqn], buckets: Sequence[Sequence[int]]) -> list[JaxprEqn]:
    """The equations in order of dependence, with each bucket at the earliest at the place of its last member."""
    place = {number: bucket[-1] for bucket in buckets for number in bucket}
    members = {bucket[-1]: [eqns[n] for n in bucket] for bucket in buckets}
    maker = {v: place.get(n, n) for n, eqn in enumerate(eqns) for v in eqn.outvars}
    needs: dict[int, set[int]] = {place.get(n, n): set() for n in range(len(eqns))}
    last_effect = None
    for number, eqn in enumerate(eqns):
        node = place.get(number, number)
        needs[node].update(maker[a] for a in eqn.invars if isinstance(a, Var) and a in maker)
        if eqn.op.has_effects:
            needs[node].update(() if last_effect is None else (last_effect,))
            last_effect = node
    users: dict[int, list[int]] = {}
    for node, needed in needs.items():
        for other in needed:
            users.setdefault(other, []).append(node)
    ready = [node for node, needed in needs.items() if not needed]
    heapq.heapify(ready)
    ordered: list[JaxprEqn] = []
    while ready:
        node = heapq.heappop(ready)
        ordered += _together(members[node]) if node in members else [eqns[node]]
        for user in users.get(node, ()):
            needs[user].discard(node)
            if not needs[user]:
                heapq.heappush(ready, user)
    return ordered


def _key(eqn: JaxprEqn) -> Hashable:
    """What collectives must have in common to be combined; None for equations that are not."""
    op = eqn.op
    if isinstance(op, (AllReduce, AllGather)):
        return type(op), op.axes, eqn.invars[0].aval.dtype
    return None


def _together(bucket: Sequence[JaxprEqn]) -> list[JaxprEqn]:
    """Equations that compute the results of a bucket with one collective."""
    ops: list[Any] = [e.op for e in bucket]
    carry = _reduced if isinstance(ops[0], AllReduce) else _gathered
    with source.at(bucket[0].source):
        merged = trace_to_jaxpr(lambda *xs: carry(ops, xs), [e.invars[0].aval for e in bucket])
    note = merged_note(bucket)
    names: dict[Var, Atom] = dict(zip(merged.jaxpr.invars, (e.invars[0] for e in bucket)))
    names.update((inner, e.outvars[0]) for inner, e in zip(merged.jaxpr.outvars, bucket))  # type: ignore[misc]
    return [
        e.replace(
            invars=[names.get(a, a) if isinstance(a, Var) else a for a in e.invars],
            outvars=[names.get(v, v) for v in e.outvars],
            note=note if isinstance(e.op, Collective) else None,
        )
        for e in merged.eqns
    ]


def _flat(xs: Sequence[Any]) -> Any:
    return concatenate([reshape(x, (typeof(x).size,)) for x in xs], 0)


def _apart(x: Any, sizes: Sequence[int], dim: int) -> list[Any]:
    return [slice_in_dim(x, end - size, end, axis=dim) for end, size in zip(itertools.accumulate(sizes), sizes)]


def _reduced(ops: Sequence[AllReduce], xs: Sequence[Any]) -> list[Any]:
    avals: list[ShapedArray] = [typeof(x) for x in xs]
    parts = _apart(ops[0].bind(_flat(xs)), [a.size for a in avals], 0)
    return [reshape(part, a.shape) for part, a in zip(parts, avals)]


def _gathered(ops: Sequence[AllGather], xs: Sequence[Any]) -> list[Any]:
    avals: list[ShapedArray] = [typeof(x) for x in xs]
    group = math.prod(ops[0].sizes)
    joined = AllGather(ops[0].axes, ops[0].sizes, 0).bind(_flat(xs))
    parts = _apart(reshape(joined, (group, sum(a.size for a in avals))), [a.size for a in avals], 1)
    results = []
    for op, part, a in zip(ops, parts, avals):
        d = op.dimension
        tiles = move_dim(reshape(part, (group, *a.shape)), 0, d)
        results.append(reshape(tiles, (*a.shape[:d], group * a.shape[d], *a.shape[d + 1 :])))
    return results
