"""Between layouts and factors: which axes of a dimension split which of the factors it is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.rule import PARALLEL, REPLICATED, WINDOW, DimFactors, ShardingRule

Axes = tuple[str, ...]


@lru_cache(maxsize=65536)
def split_axes(axes: Axes, factors: DimFactors, sizes: tuple[int, ...], mesh: AbstractMesh) -> tuple[Axes, ...]:
    """Distribute a dimension's axes, major first, over its factors.

    A dimension of one factor, but for factors of one element, gives it all axes. With several, an axis goes to the
    first factor that is not yet fully split; it must divide what is left of it, since tiles have to be blocks of the
    merged dimension. Axes that do not fit are dropped, with all behind them.
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
    """Which factor a dimension is, where the others are of one element; None if there are several."""
    large = [i for i, size in enumerate(sizes) if size != 1] or [0]
    return large[0] if len(large) == 1 else None


def join_axes(
    factors: DimFactors, sizes: Sequence[int], assigned: Sequence[Axes], mesh: AbstractMesh
) -> tuple[Axes, bool]:
    """A dimension's axes from those of its factors; False if its tiles would not be blocks of it.

    ``sizes`` and ``assigned`` are those of the rule, indexed by factor.
    """
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
    """The axes that a value's dimensions give to each factor."""
    by_factor: dict[int, Axes] = {}
    for axes, factors in zip(dims, dim_factors):
        if axes and factors:
            sizes = tuple(rule.factors[f].size for f in factors)
            by_factor.update((f, part) for f, part in zip(factors, split_axes(axes, factors, sizes, mesh)) if part)
    return by_factor


def operand_layouts(result: Layout, rule: ShardingRule, mesh: AbstractMesh) -> tuple[Layout, ...] | None:
    """How the operands are cut where the first result is cut as ``result`` and nothing else is split; None if its tiles
    are not made of tiles of theirs alone."""
    axes = factor_axes_of(result.dims, rule.results[0], rule, mesh)
    if not all(_is_made_in_tiles(rule, f) for f in axes):
        return None
    made, *layouts = _cut((rule.results[0], *rule.operands), axes, rule, mesh)
    known = tuple(layout for layout in layouts if layout is not None)
    return known if made == result and len(known) == len(layouts) else None


def _is_made_in_tiles(rule: ShardingRule, factor: int) -> bool:
    """Whether a tile along a factor of the result is made of tiles of the operands, or of none."""
    kind = rule.factors[factor].kind
    return kind == PARALLEL or (kind == WINDOW and not rule.operand_dims(factor))


@lru_cache(maxsize=65536)
def carried_back(dims: tuple[Axes, ...], rule: ShardingRule, mesh: AbstractMesh) -> Sequence[Layout | None]:
    """How each operand is cut where the axes of a first result cut by ``dims`` split its factors; None where its tiles
    would be no blocks. Nothing, if an axis is on a factor that cannot be split."""
    axes = factor_axes_of(dims, rule.results[0], rule, mesh)
    return () if any(rule.factors[f].kind == REPLICATED for f in axes) else _cut(rule.operands, axes, rule, mesh)


def carried_on(dims: tuple[Axes, ...], operand: int, rule: ShardingRule, mesh: AbstractMesh) -> Layout | None:
    """How the first result is cut where the axes of an operand cut by ``dims`` split its factors; None where its tiles
    would be no blocks."""
    return _cut(rule.results[:1], factor_axes_of(dims, rule.operands[operand], rule, mesh), rule, mesh)[0]


def _cut(
    values: Sequence[tuple[DimFactors, ...]], axes: Mapping[int, Axes], rule: ShardingRule, mesh: AbstractMesh
) -> list[Layout | None]:
    """The layouts of values with such dimensions, by the axes of the factors; None where tiles would be no blocks."""
    assigned = [axes.get(f, ()) for f in range(len(rule.factors))]
    sizes = [f.size for f in rule.factors]
    joined = [[join_axes(fs, sizes, assigned, mesh) if fs else ((), True) for fs in dims] for dims in values]
    return [Layout.tiled(tuple(j for j, _ in dims)) if all(fits for _, fits in dims) else None for dims in joined]
