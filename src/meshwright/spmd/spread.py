"""Propagation across one equation: axes spread along the factors of its sharding rule. A pure, cached function.

An axis that several factors compete for goes to one of them, and to none of the others: which one, and with what other
results that might end, is for :mod:`~meshwright.spmd.partition.lookahead` to try.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import takewhile

from meshwright.sharding import AbstractMesh
from meshwright.sharding.rule import REPLICATED, ShardingRule
from meshwright.spmd.factors import Axes, factor_axes_of, join_axes

#: the axes of each dimension of a value
Dims = tuple[Axes, ...]


@lru_cache(maxsize=65536)
def spread(rule: ShardingRule, dims: tuple[Dims, ...], num_operands: int, mesh: AbstractMesh) -> tuple[Dims, ...]:
    """The dimensions of all operands and results after axes have spread along the factors of the rule."""
    if len(rule.parts) > 1:
        return _spread_parts(rule, dims, num_operands, mesh)
    values = [*rule.operands, *rule.results]
    known = [factor_axes_of(d, fs, rule, mesh) for d, fs in zip(dims, values)]
    factor_axes = _agree(rule, known, mesh)
    return tuple(_extend(d, fs, rule, factor_axes, mesh) for d, fs in zip(dims, values))


def _spread_parts(
    rule: ShardingRule, dims: tuple[Dims, ...], num_operands: int, mesh: AbstractMesh
) -> tuple[Dims, ...]:
    """Apply ``spread`` to each part of a rule: axes of one part do not affect the others."""
    merged = list(dims)
    for part in rule.parts:
        places = (*part.operands, *(num_operands + r for r in part.results))
        new = spread(part.rule, tuple(dims[i] for i in places), len(part.operands), mesh)
        for place, after in zip(places, new):
            merged[place] = after
    return tuple(merged)


def _agree(rule: ShardingRule, known: Sequence[Mapping[int, Axes]], mesh: AbstractMesh) -> list[Axes]:
    """The axes of each factor: the longest that any value has. An axis goes to one factor only, the first."""
    agreed: list[Axes] = [()] * len(rule.factors)
    taken: set[str] = set()
    # Factors of results come before factors that are summed over, so that batch dimensions stay split.
    kept = {f for dims in rule.results for fs in dims for f in fs}
    order = sorted(range(len(rule.factors)), key=lambda f: f not in kept)
    for f in order:
        factor = rule.factors[f]
        if factor.kind == REPLICATED or factor.size == 1:
            continue
        best: Axes = ()
        for axes in (k.get(f, ()) for k in known):
            if (len(axes) > len(best) and axes[: len(best)] == best) or not best:
                best = axes
        free = tuple(a for a in best if a not in taken)
        if free == best[: len(free)] and mesh.sizes(free) <= factor.size:
            agreed[f] = free
            taken.update(free)
    return agreed


def _extend(dims: Dims, factors: Sequence[tuple[int, ...]], rule: ShardingRule, agreed: Sequence[Axes],
            mesh: AbstractMesh) -> Dims:  # fmt: skip
    sizes = [f.size for f in rule.factors]
    used = {a for axes in dims for a in axes}
    result = list(dims)
    for d, (axes, fs) in enumerate(zip(dims, factors)):
        if not fs:
            continue
        joined, fits = join_axes(fs, sizes, agreed, mesh)
        if not fits:
            continue
        if joined[: len(axes)] == axes:
            more = tuple(takewhile(lambda a: a not in used, joined[len(axes) :]))
            result[d] = (*axes, *more)
            used.update(more)
    return tuple(result)
