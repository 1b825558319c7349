"""The layouts in which transforms of several dimensions are done one after another, each while it is whole.

The axes of a dimension move to another one when it is transformed, and need not return, as in pencil decompositions
(S. Foster and D. Worley, "Parallel algorithms for the spectral transform method", 1997).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from meshwright.core.avals import ShapedArray
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.rule import EXCHANGED, REPLICATED, ShardingRule
from meshwright.spmd.factors import Axes
from meshwright.spmd.reshard.plan import reshard_cost

Dims = tuple[Axes, ...]


class Step(NamedTuple):
    """The dimension to transform, and its size afterwards."""

    dim: int
    size: int


def cheapest(
    start: Dims, end: Dims, steps: Sequence[Step], shape: Sequence[int], itemsize: int, mesh: AbstractMesh
) -> Sequence[Dims]:
    """For each transform, the axes that split the array while it is done: those with which least is sent from ``start``
    to ``end``. Axes that ``end`` does not use may be wherever they are then.

    The axes of the dimension to transform move to another one, or all axes to where they end.
    """
    sizes = [*shape]

    def cost(old: Dims, new: Dims) -> float:
        return reshard_cost(tuple(sizes), itemsize, Layout.tiled(old), Layout.tiled(new), mesh)

    paths: dict[Dims, tuple[float, list[Dims]]] = {start: (0.0, [])}
    for dim, size in steps:
        found: dict[Dims, tuple[float, list[Dims]]] = {}
        for old, (sent, path) in paths.items():
            for new in _whole(old, end, dim, sizes, mesh):
                total = sent + cost(old, new)
                if new not in found or total < found[new][0]:
                    found[new] = total, [*path, new]
        paths, sizes[dim] = found, size
    ends = ((sent + cost(old, _ended(old, end, sizes, mesh)), path) for old, (sent, path) in paths.items())
    return min(ends, key=itemgetter(0))[1]


def left_split(dims: Dims, rule: ShardingRule, x: ShapedArray, result: ShapedArray, mesh: AbstractMesh) -> Dims:
    """How the result of an op is split that exchanges the tiles of dimensions for parts of others, if nothing is sent
    back; ``dims`` split its operand ``x``. A dimension that gets smaller is transformed first, one that grows last."""
    one_at_a_time = {
        n for n, factor in enumerate(rule.factors) if factor.passes == EXCHANGED or factor.kind == REPLICATED
    }
    transformed = [d for d, factors in enumerate(rule.operands[0]) if one_at_a_time & set(factors)]
    transformed.sort(key=lambda d: (result.shape[d] - x.shape[d], bool(dims[d])))
    steps = [Step(d, result.shape[d]) for d in transformed]
    return cheapest(dims, ((),) * len(dims), steps, x.shape, max(x.dtype.itemsize, result.dtype.itemsize), mesh)[-1]


def _whole(old: Dims, end: Dims, dim: int, shape: Sequence[int], mesh: AbstractMesh) -> Iterator[Dims]:
    """Layouts with a dimension whole: its axes on each other one, or all axes as in the end."""
    ended = _ended(old, end, shape, mesh)
    if not ended[dim]:
        yield ended
    if not old[dim]:
        yield old
        return
    rest = (*old[:dim], (), *old[dim + 1 :])
    fits = [d for d in range(len(old)) if d != dim and mesh.sizes((*rest[d], *old[dim])) <= shape[d]]
    for d in fits:
        yield (*rest[:d], (*rest[d], *old[dim]), *rest[d + 1 :])
    if not fits:
        yield rest


def _ended(old: Dims, end: Dims, shape: Sequence[int], mesh: AbstractMesh) -> Dims:
    """``end``, with the axes of ``old`` that it does not use where they are: to gather what they split is not known to
    be necessary, and devices would repeat the transforms after it."""
    used = {axis for axes in end for axis in axes}
    both = [(*there, *(axis for axis in here if axis not in used)) for here, there in zip(old, end)]
    return tuple(axes if not there or mesh.sizes(axes) <= n else there for axes, there, n in zip(both, end, shape))
