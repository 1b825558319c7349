"""Sorting along a split dimension by a sorting network whose lines are tiles.

A network that sorts single values also sorts sorted blocks of equal size, if each comparator becomes a *merge-split*:
both devices get both blocks; the first keeps the lower half of their merge and the second the upper half (Knuth, The
Art of Computer Programming 3, 5.3.4, exercise 38). The network is Batcher's merge exchange (ibid. 5.2.2, algorithm M),
for any number of tiles: ``t (t + 1) / 2`` rounds for ``2**t`` of them. In each round, a device sends at most its tile,
and sorts one. No device ever holds more than two tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.ir.contract import Localizer
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import eq, ne, select
from meshwright.ops.shape.broadcast_reduce import match_shape
from meshwright.ops.shape.rearrange import rev

#: the number of elements of a row that a kernel of XLA for GPUs sorts on chip
_TILE = 4096
#: the tiles compared in one round: pairs (low, high) with low < high, each tile at most once
Round = tuple[tuple[int, int], ...]
#: sorts local arrays together along the dimension
Sorter = Callable[[Sequence[Any]], list[Any]]
#: whether elements of some arrays that are sorted together come before those of others, elementwise
Before = Callable[[Sequence[Any], Sequence[Any]], Any]


@lru_cache(maxsize=256)
def merge_exchange(tiles: int) -> tuple[Round, ...]:
    """The rounds of Batcher's network for any number of tiles."""
    rounds: list[Round] = []
    top = 1 << max(0, (tiles - 1).bit_length() - 1)
    p = top
    while p and tiles > 1:
        q, r, d = top, 0, p
        while True:
            rounds.append(tuple((i, i + d) for i in range(tiles - d) if i & p == r))
            if q == p:
                break
            q, r, d = q // 2, p, q - p
        p //= 2
    return tuple(r for r in rounds if r)


def merges(rows: int) -> int:
    """The number of passes over a row until it is sorted, merging runs of doubling length (Knuth, The Art of Computer
    Programming 3, 5.2.4)."""
    return max(1, (rows - 1).bit_length())


def bitonic(rows: int) -> tuple[int, int]:
    """The kernels of a sort on a GPU by K. Batcher's bitonic network ("Sorting networks and their applications", 1968),
    and the number of steps done on chip. Consecutive steps within a tile are one kernel; the others are one kernel
    each."""
    levels, within = merges(rows), merges(min(rows, _TILE))
    above = levels - within
    return 1 + above + above * (above + 1) // 2, within * (within + 1) // 2 + above * within


def sort_by_merging(ctx: Localizer, dim: int, arrays: Sequence[Any], sort: Sorter, before: Before) -> list[Any]:
    """Sort tiles of ``arrays`` into the global order along the dimension.

    For the arguments, see :func:`meshwright.ops.sort.tiles.sort_tiles`.
    """
    axes, tiles = ctx.axes(0, dim), ctx.num_tiles(0, dim)
    mine = sort(arrays)
    for comparators in merge_exchange(tiles):
        role = np.zeros(tiles, np.int32)
        for low, high in comparators:
            role[low], role[high] = 1, 2
        swaps = tuple(sorted(pair for low, high in comparators for pair in ((low, high), (high, low))))
        theirs = [ctx.permute(x, axes, swaps) for x in mine]
        mine = sort(halves(mine, theirs, ctx.lookup(role.tolist(), axes), dim, before, bool((role == 0).any())))
    return mine


def halves(mine: Sequence[Any], theirs: Sequence[Any], role: Any, dim: int, before: Before, idle: bool) -> list[Any]:
    """For role 1, the elements of two sorted blocks that belong into the first; for role 2, those for the second, in
    any order. For role 0, this device's own block; there are some if ``idle``.

    The elements of one block are compared with those of the other in reverse: then no smaller one is after any larger
    one (Batcher's bitonic merge, ibid. 5.3.4).
    """
    first = eq(role, np.int32(1))
    # Both devices compare the same pairs, so that equal elements are not lost.
    low = [select(first, x, y) for x, y in zip(mine, theirs)]
    high = [rev(select(first, y, x), (dim,)) for x, y in zip(mine, theirs)]
    swapped = before(high, low)
    # The second gets those that the first does not take.
    taken = eq(swapped, match_shape(first, typeof(swapped)))
    halves = [select(taken, y, x) for x, y in zip(low, high)]
    return [select(ne(role, np.int32(0)), new, old) for new, old in zip(halves, mine)] if idle else halves
