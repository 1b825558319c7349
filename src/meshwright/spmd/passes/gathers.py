"""Moves all-gathers after ops that shrink their result: conversions to narrower types, slices, reductions.

The equation's sharding rule says what can be computed on tiles instead of the gathered value: the gathered dimension
must be a factor that can be split. If the factor is in the result, the result is gathered; if the op sums over it, the
partial sums are reduced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Jaxpr, JaxprEqn, Var
from meshwright.ir.op import Op
from meshwright.ir.tracing import trace_to_jaxpr
from meshwright.ops.collective.all_reduce import ALL_REDUCE, AllReduce
from meshwright.ops.collective.base import Collective
from meshwright.ops.collective.tiles import AllGather, AllSlice
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.rule import PARALLEL, REDUCTION, ShardingRule
from meshwright.spmd.localize.context import LocalContext
from meshwright.spmd.passes.partial_sums import meets, reduce_rule
from meshwright.spmd.passes.sink import Moved, Sinking
from meshwright.spmd.rules import rule_of
from meshwright.spmd.varying import Variance


def sink_gathers(jaxpr: Jaxpr, variance: Variance, mesh: AbstractMesh) -> Jaxpr:
    """Move all-gathers to where they send least."""

    def rule(eqn: JaxprEqn, pending: Mapping[int, Moved], variance: Variance) -> Moved | None:
        kinds = {type(m.collective) for m in pending.values()}
        if kinds == {AllGather}:
            return on_tiles(eqn, pending, variance, mesh)
        return reduce_rule(eqn, pending, variance) if all(issubclass(k, AllReduce) for k in kinds) else None

    return Sinking(jaxpr, variance, (AllGather,), rule).run()


def on_tiles(eqn: JaxprEqn, pending: Mapping[int, Moved], variance: Variance, mesh: AbstractMesh) -> Moved | None:
    """The equation on the tiles of its gathered operands; None if it cannot be computed on tiles."""
    gather: Any = next(iter(pending.values())).collective
    if any(m.collective.axes != gather.axes for m in pending.values()) or meets(eqn.op, gather, variance):
        return None
    tiles = tuple((i, m.collective.dimension, m.value) for i, m in pending.items())  # type: ignore[attr-defined]
    form = _form(eqn.op, tuple(a.aval for a in eqn.invars), tiles, gather.axes, gather.sizes, mesh)
    if form is None or not all(variance.same(a, gather.axes) for i, a in enumerate(eqn.invars) if i not in pending):
        return None
    before = tuple(JaxprEqn(cut, [eqn.invars[i]], [Var(value)]) for i, cut, value in form.slices)
    tile = {i: e.outvars[0] for (i, _, _), e in zip(form.slices, before)}
    local = eqn.replace(op=form.op, invars=[tile.get(i, a) for i, a in enumerate(eqn.invars)])
    return Moved(local, before, form.value, form.collective)


@dataclass(frozen=True)
class _Form:
    """An op on tiles: the slices of replicated operands (by number, with the tile's type), and what completes it."""

    op: Op
    slices: tuple[tuple[int, AllSlice, ShapedArray], ...]
    value: ShapedArray
    collective: Collective


@lru_cache(maxsize=65536)
def _form(
    op: Op,
    avals: tuple[ShapedArray, ...],
    tiles: tuple[tuple[int, int, ShapedArray], ...],
    axes: tuple[str, ...],
    sizes: tuple[int, ...],
    mesh: AbstractMesh,
) -> _Form | None:
    """How to compute an op from ``tiles`` of operands (number, dimension, type); cached, as layers repeat."""
    rule, outs = rule_of(op, avals), (op.infer(*avals),)
    factor = _factor(rule, {i: dim for i, dim, _ in tiles})
    if factor is None:
        return None
    atoms, given = mesh.expand(axes), {i: value for i, _, value in tiles}
    layouts = tuple(_layout(dims, factor, atoms) for dims in (*rule.operands, *rule.results))
    if any(lo is None for lo in layouts) or not all(any(layouts[i].dims) for i in given):  # type: ignore[union-attr]
        return None
    if not _even((*avals, *outs), layouts, math.prod(sizes)):  # type: ignore[arg-type]
        return None
    slices: list[tuple[int, AllSlice, ShapedArray]] = []
    for i, (aval, layout) in enumerate(zip(avals, layouts)):
        split = [d for d, by in enumerate(layout.dims) if by]  # type: ignore[union-attr]
        if i not in given and split:
            cut = AllSlice(axes, sizes, split[0])
            slices.append((i, cut, cut.infer(aval)))
    given |= {i: value for i, _, value in slices}
    local = [given.get(i, aval) for i, aval in enumerate(avals)]
    ctx = LocalContext(mesh, rule, avals, outs, layouts[: len(avals)], layouts[len(avals) :])  # type: ignore[arg-type]
    on_local = _local_op(op, ctx, local)
    if on_local is None:
        return None
    value = on_local.infer(*local)
    if rule.factors[factor].kind == REDUCTION:
        return _Form(on_local, tuple(slices), value, ALL_REDUCE[rule.reduction](axes, sizes))
    (dim,) = [d for d, factors in enumerate(rule.results[0]) if factor in factors]
    return _Form(on_local, tuple(slices), value, AllGather(axes, sizes, dim))


def _local_op(op: Op, ctx: LocalContext, avals: Sequence[ShapedArray]) -> Op | None:
    """The single op that computes ``op`` on tiles; None if it takes several (masks, offsets) or exchanges data."""
    if op.is_same_on_tiles:
        return op.localized(ctx)
    local = trace_to_jaxpr(lambda *xs: [op.localize(ctx, *xs)], avals).jaxpr
    if len(local.eqns) != 1 or list(local.eqns[0].invars) != local.invars or isinstance(local.eqns[0].op, Collective):
        return None
    return local.eqns[0].op if local.outvars == local.eqns[0].outvars else None


def _factor(rule: ShardingRule, gathered: Mapping[int, int]) -> int | None:
    """The factor of all gathered dimensions, if it is the same and can be split."""
    candidates = {rule.operands[i][d] for i, d in gathered.items()}
    factors = candidates.pop()
    if candidates or len(factors) != 1:
        return None
    kind = rule.factors[factors[0]].kind
    in_result = sum(factors[0] in fs for fs in rule.results[0])
    splits = (kind == PARALLEL and in_result == 1) or (kind == REDUCTION and not in_result)
    return factors[0] if splits else None


def _layout(dims: Sequence[Sequence[int]], factor: int, atoms: tuple[str, ...]) -> Layout | None:
    """The layout that splits the factor; None if it is one of several factors of a dimension, or in several."""
    where = [d for d, factors in enumerate(dims) if factor in factors]
    if len(where) > 1 or any(len(dims[d]) > 1 for d in where):
        return None
    return Layout(tuple(atoms if d in where else () for d in range(len(dims))))


def _even(values: Sequence[ShapedArray], layouts: Sequence[Layout], devices: int) -> bool:
    """Whether all split dimensions have one size, which the number of devices divides."""
    sizes = {n for v, lo in zip(values, layouts) for n, axes in zip(v.shape, lo.dims) if axes}
    return len(sizes) == 1 and sizes.pop() % devices == 0
