"""Conversion between the axes of dimensions and the axes of the factors that make up the dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.rule import PARALLEL, REPLICATED, WINDOW, DimFactors, ShardingRule

Axes = tuple[str, ...]


@lru_cache(maxsize=65536)
def split_axes(axes: Axes, factors: DimFactors, sizes: tuple[int, ...], mesh: AbstractMesh) -> tuple[Axes, ...]:
    """Distribute the axes of a dimension over its factors, major to minor.

    If at most one factor has more than one element, that factor gets all axes. Otherwise an axis goes to the first
    factor that is not fully split yet. It must divide what is left of that factor, because tiles must be blocks of the
    merged dimension. The first axis that does not fit and all axes after it are dropped.
    """
    alone = _alone(sizes)
    if alone is not None:
        return tuple(axes if i == alone else () for i in range(len(factors)))
    by_factor: list[list[str]] = [[] for _ in factors]
    at, left = 0, sizes[0] if sizes else 1
    for axis in axes:
        n = mesh.axis_size(axis)
        while left == 1 and at + 1 < len(factors):
            at += 1
            left = sizes[at]
        if left % n:
            break
        left //= n
        by_factor[at].append(axis)
    return tuple(map(tuple, by_factor))


def _alone(sizes: tuple[int, ...]) -> int | None:
    """The position of the only factor with more than one element; None if there are several."""
    large = [i for i, size in enumerate(sizes) if size != 1] or [0]
    return large[0] if len(large) == 1 else None


def join_axes(
    factors: DimFactors, sizes: Sequence[int], assigned: Sequence[Axes], mesh: AbstractMesh
) -> tuple[Axes, bool]:
    """The axes of a dimension, from those of its factors; False if its tiles would not be contiguous blocks.

    ``sizes`` and ``assigned`` are indexed by factor number of the rule.
    """
    if len(factors) == 1:  # as nearly all dimensions have it
        return assigned[factors[0]], True
    alone = _alone(tuple(sizes[f] for f in factors))
    if alone is not None and not any(assigned[f] for i, f in enumerate(factors) if i != alone):
        return assigned[factors[alone]], True
    joined: list[str] = []
    complete = True
    for f in factors:
        axes = assigned[f]
        if not axes:
            complete = complete and sizes[f] == 1
            continue
        n = mesh.sizes(axes)
        if not complete or sizes[f] % n:
            return (), False
        joined += axes
        complete = n == sizes[f]
    return tuple(joined), True


@lru_cache(maxsize=65536)
def factor_axes_of(
    dims: tuple[Axes, ...], dim_factors: tuple[DimFactors, ...], rule: ShardingRule, mesh: AbstractMesh
) -> Mapping[int, Axes]:
    """The axes that the dimensions of a value assign to each factor."""
    by_factor: dict[int, Axes] = {}
    for axes, factors in zip(dims, dim_factors):
        if axes and factors:
            sizes = tuple(rule.factors[f].size for f in factors)
            by_factor.update((f, part) for f, part in zip(factors, split_axes(axes, factors, sizes, mesh)) if part)
    return by_factor


@lru_cache(maxsize=8192)
def contested_axes(
    dims: tuple[tuple[Axes, ...], ...], rule: ShardingRule, mesh: AbstractMesh
) -> Mapping[str, Mapping[int, Sequence[int]]]:
    """The axes that values laid out as ``dims`` have on several factors: by factor, the positions of these values.

    Operands come first, then results.
    """
    places: dict[str, dict[int, list[int]]] = {}
    for i, (of, factors) in enumerate(zip(dims, (*rule.operands, *rule.results))):
        for f, axes in factor_axes_of(of, factors, rule, mesh).items():
            if rule.factors[f].kind != REPLICATED:
                for axis in axes:
                    places.setdefault(axis, {}).setdefault(f, []).append(i)
    return {axis: by_factor for axis, by_factor in places.items() if len(by_factor) > 1}


@lru_cache(maxsize=8192)
def clashing_axes(
    dims: tuple[tuple[Axes, ...], ...], rule: ShardingRule, mesh: AbstractMesh
) -> Mapping[int, Mapping[Axes, Sequence[int]]]:
    """The factors that values laid out as ``dims`` split by other axes, neither of which begin the others: by these
    axes, the positions of the values. Operands come first, then results."""
    places: dict[int, dict[Axes, list[int]]] = {}
    for i, (of, factors) in enumerate(zip(dims, (*rule.operands, *rule.results))):
        for f, axes in factor_axes_of(of, factors, rule, mesh).items():
            if rule.factors[f].kind != REPLICATED:
                places.setdefault(f, {}).setdefault(axes, []).append(i)
    return {f: by_axes for f, by_axes in places.items() if any(map(_clash, by_axes, [*by_axes][1:]))}


def _clash(a: Axes, b: Axes) -> bool:
    return any(x != y for x, y in zip(a, b))


def operand_layouts(result: Layout, rule: ShardingRule, mesh: AbstractMesh) -> tuple[Layout, ...] | None:
    """The operand layouts from which the first result can be computed in the tiles of ``result`` alone.

    None if some tile of the result is not computed from the corresponding tiles of the operands.
    """
    axes = factor_axes_of(result.dims, rule.results[0], rule, mesh)
    if not all(_is_made_in_tiles(rule, f) for f in axes):
        return None
    made, *layouts = layouts_of((rule.results[0], *rule.operands), axes, rule, mesh)
    known = tuple(layout for layout in layouts if layout is not None)
    return known if made == result and len(known) == len(layouts) else None


def _is_made_in_tiles(rule: ShardingRule, factor: int) -> bool:
    """Whether tiles along a factor depend only on the corresponding tiles of operands, or on no operand."""
    kind = rule.factors[factor].kind
    return kind == PARALLEL or (kind == WINDOW and not rule.operand_dims(factor))


@lru_cache(maxsize=65536)
def carried_back(dims: tuple[Axes, ...], rule: ShardingRule, mesh: AbstractMesh) -> Sequence[Layout | None]:
    """The layout of each operand if its factors are split as the first result's are when that is split by ``dims``.

    None for an operand whose tiles would not be contiguous blocks. Empty if an axis is on a factor that cannot be
    split or is a window, on a dimension that no factor describes, as that along which a loop stacks, or on several
    factors at once, as where a dimension is merged whose tiles are no tiles of its parts.
    """
    factors = rule.results[0]
    axes = factor_axes_of(dims, factors, rule, mesh)
    stays = sum(map(len, dims)) > sum(map(len, axes.values()))
    stays = stays or any(rule.factors[f].kind in (REPLICATED, WINDOW) for f in axes)
    return () if stays else layouts_of(rule.operands, axes, rule, mesh)


def carried_on(dims: tuple[Axes, ...], operand: int, rule: ShardingRule, mesh: AbstractMesh) -> Layout | None:
    """The layout of the first result if its factors are split as an operand's are when that is split by ``dims``.

    None if its tiles would not be contiguous blocks.
    """
    return layouts_of(rule.results[:1], factor_axes_of(dims, rule.operands[operand], rule, mesh), rule, mesh)[0]


def layouts_of(
    values: Sequence[tuple[DimFactors, ...]], axes: Mapping[int, Axes], rule: ShardingRule, mesh: AbstractMesh
) -> list[Layout | None]:
    """The layouts of values with these factors, given the axes of factors; None where tiles would not be contiguous
    blocks."""
    assigned = [axes.get(f, ()) for f in range(len(rule.factors))]
    sizes = [f.size for f in rule.factors]
    joined = [[join_axes(fs, sizes, assigned, mesh) if fs else ((), True) for fs in dims] for dims in values]
    return [Layout.tiled(tuple(j for j, _ in dims)) if all(fits for _, fits in dims) else None for dims in joined]
