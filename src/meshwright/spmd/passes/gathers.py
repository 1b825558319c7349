"""Moves all-gathers after ops that shrink their result: conversions to narrower types, slices, reductions.

The equation's sharding rule says what can be computed on tiles instead of the gathered value: the gathered dimension
must be a factor that can be split. If the factor is in the result, the result is gathered; if the op sums over it, the
partial sums are reduced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn, Var
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
from meshwright.spmd.rules import eqn_rule
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
    rule = eqn_rule(eqn)
    factor = _factor(rule, {i: m.collective.dimension for i, m in pending.items()})  # type: ignore[attr-defined]
    if factor is None or not all(variance.same(a, gather.axes) for i, a in enumerate(eqn.invars) if i not in pending):
        return None
    atoms = mesh.expand(gather.axes)
    ins = [_layout(dims, factor, atoms) for dims in rule.operands]
    outs = [_layout(dims, factor, atoms) for dims in rule.results]
    if any(lo is None for lo in (*ins, *outs)) or not _gathered_only_there(ins, pending):
        return None
    if not _even(eqn, (*ins, *outs), math.prod(gather.sizes)):  # type: ignore[arg-type]
        return None
    in_avals, out_avals = tuple(a.aval for a in eqn.invars), tuple(v.aval for v in eqn.outvars)
    ctx = LocalContext(mesh, rule, in_avals, out_avals, tuple(ins), tuple(outs))  # type: ignore[arg-type]
    invars, before = _sliced(eqn.invars, ins, pending, gather)  # type: ignore[arg-type]
    op = _local_op(eqn.op, ctx, [pending[i].value if i in pending else a.aval for i, a in enumerate(invars)])
    if op is None:
        return None
    local = eqn.replace(op=op, invars=invars)
    value = op.infer(*(pending[i].value if i in pending else a.aval for i, a in enumerate(invars)))
    if rule.factors[factor].kind == REDUCTION:
        return Moved(local, before, value, ALL_REDUCE[rule.reduction](gather.axes, gather.sizes))
    (dim,) = [d for d, factors in enumerate(rule.results[0]) if factor in factors]
    return Moved(local, before, value, AllGather(gather.axes, gather.sizes, dim))


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


def _gathered_only_there(layouts: Sequence[Layout | None], pending: Mapping[int, Moved]) -> bool:
    return all(lo is not None and any(lo.dims) for i, lo in enumerate(layouts) if i in pending)


def _even(eqn: JaxprEqn, layouts: Sequence[Layout], devices: int) -> bool:
    """Whether all split dimensions have one size, which the number of devices divides."""
    values = [*eqn.invars, *eqn.outvars]
    sizes = {n for v, lo in zip(values, layouts) for n, axes in zip(v.aval.shape, lo.dims) if axes}
    return len(sizes) == 1 and sizes.pop() % devices == 0


def _sliced(
    invars: Sequence[Atom], layouts: Sequence[Layout], pending: Mapping[int, Moved], gather: AllGather
) -> tuple[list[Atom], tuple[JaxprEqn, ...]]:
    """The operands, where replicated ones that must be split are sliced, and the equations that slice them."""
    operands: list[Atom] = []
    before: list[JaxprEqn] = []
    for i, (atom, layout) in enumerate(zip(invars, layouts)):
        dims = [d for d, axes in enumerate(layout.dims) if axes]
        if i not in pending and dims:
            op = AllSlice(gather.axes, gather.sizes, dims[0])
            before.append(JaxprEqn(op, [atom], [Var(op.infer(atom.aval))]))
            atom = before[-1].outvars[0]
        operands.append(atom)
    return operands, tuple(before)
