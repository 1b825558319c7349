"""Sorting along a split dimension: by columnsort where tiles are long enough, else by a network of merges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core.records import dataclass
from meshwright.ir.contract import Localizer
from meshwright.ir.tracing import typeof
from meshwright.ops.sort.columns import border, depth, fits, sort_by_columns
from meshwright.ops.sort.network import Before, Sorter, merge_exchange, merges, sort_by_merging


def by_columns(rows: int, tiles: int) -> bool:
    """Whether columnsort sorts tiles of ``rows``: it can, and sends less."""
    return fits(rows, tiles) and _sent_by_columns(rows, tiles) < len(merge_exchange(tiles))


def adds_padding(rows: int, tiles: int) -> bool:
    """Whether tiles of ``rows`` are padded for a while, so that elements must be told from padding."""
    return by_columns(rows, tiles) and depth(rows, tiles) > rows


def _sent_by_columns(rows: int, tiles: int) -> float:
    """The number of times that a device sends its tile."""
    full, added = depth(rows, tiles), depth(rows, tiles) - rows
    return (2 * full * (tiles - 1) / tiles + 2 * border(tiles) + (tiles - 1) * added) / rows


@dataclass(frozen=True)
class SortPasses:
    """The :data:`~meshwright.sharding.rule.Passes` of a sort of a row of ``size``, with operand bytes multiplied by
    ``growth``."""

    size: int
    growth: float = 1.0

    def __call__(self, tiles: int) -> float:
        rows = max(1, -(-self.size // tiles))
        return self.growth * (_sent_by_columns(rows, tiles) if by_columns(rows, tiles) else len(merge_exchange(tiles)))


@dataclass(frozen=True)
class LocalSorts:
    """How many times a device sorts its tile of a row of ``size``, each time weighted by the ratio of the merges of a
    tile to those of the row.

    A network also picks the halves of two tiles before each sort but the first, in two passes over the operands, whose
    bytes are multiplied by ``growth``.
    """

    size: int
    growth: float = 1.0

    def __call__(self, tiles: int) -> float:
        rows = -(-self.size // tiles)
        if by_columns(rows, tiles):
            passes = (3 + 2 * border(tiles) / rows) * merges(rows)
        else:
            rounds = len(merge_exchange(tiles))
            passes = self.growth * ((1 + rounds) * merges(rows) + 2 * rounds)
        return passes / merges(self.size)


def sort_tiles(
    ctx: Localizer, dim: int, arrays: Sequence[Any], sort: Sorter, before: Before, last: Callable[[np.dtype], Any]
) -> list[Any]:
    """Sort tiles of ``arrays`` into the global order along the dimension, given ``sort``, which sorts local arrays.

    ``sort`` must put padding last; ``before`` compares two lists of arrays elementwise by the same order. Rows of the
    values ``last`` of all dtypes must come after all others, padding included. Elements of which none comes before the
    other may end up in any order.
    """
    if by_columns(typeof(arrays[0]).shape[dim], ctx.num_tiles(0, dim)):
        return sort_by_columns(ctx, dim, arrays, sort, before, last)
    return sort_by_merging(ctx, dim, arrays, sort, before)
