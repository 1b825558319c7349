"""Sorting along a split dimension: a sorting network whose lines are tiles.

A network that sorts single values sorts sorted blocks of one size too, if each comparator becomes a *merge-split*: both
devices see both blocks, the first keeps the lower half of their merge and the second the upper one (Knuth, The Art of
Computer Programming 3, 5.3.4, exercise 38). The network is Batcher's merge exchange (ibid. 5.2.2, algorithm M), which
takes any number of tiles: ``t (t + 1) / 2`` rounds for ``2**t`` of them, and in each a device sends at most its tile,
and sorts one. Nobody ever holds more than two tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.core.records import dataclass
from meshwright.ir.contract import Localizer
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import eq, ne, select
from meshwright.ops.shape.broadcast_reduce import match_shape
from meshwright.ops.shape.rearrange import rev

#: elements of a row that a kernel of XLA's for GPUs sorts on the chip
_TILE = 4096
#: the tiles that one round compares: pairs (low, high) with low < high, no tile twice
Round = tuple[tuple[int, int], ...]


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


@dataclass(frozen=True)
class NetworkPasses:
    """The :data:`~meshwright.sharding.rule.Passes` of the network, every operand byte growing by ``growth``."""

    growth: float = 1.0

    def __call__(self, tiles: int) -> float:
        return self.growth * len(merge_exchange(tiles))


def merges(rows: int) -> int:
    """Sweeps over a row until it is in order: ever longer runs are merged two by two (Knuth, The Art of Computer
    Programming 3, 5.2.4)."""
    return max(1, (rows - 1).bit_length())


def bitonic(rows: int) -> tuple[int, int]:
    """Kernels of a sort on a GPU by K. Batcher's bitonic network ("Sorting networks and their applications", 1968), and
    the steps that they do on the chip: those between elements of one tile, all that follow each other in one kernel.
    The others are a kernel each."""
    levels, within = merges(rows), merges(min(rows, _TILE))
    above = levels - within
    return 1 + above + above * (above + 1) // 2, within * (within + 1) // 2 + above * within


@dataclass(frozen=True)
class NetworkSorts:
    """How many times a device sorts its tile of a row of ``size``, each counted by the merges of a tile to those of the
    row."""

    size: int

    def __call__(self, tiles: int) -> float:
        return (1 + len(merge_exchange(tiles))) * merges(-(-self.size // tiles)) / merges(self.size)


def sort_tiles(
    ctx: Localizer,
    dim: int,
    arrays: Sequence[Any],
    sort: Callable[[Sequence[Any]], list[Any]],
    before: Callable[[Sequence[Any], Sequence[Any]], Any],
) -> list[Any]:
    """Tiles of ``arrays`` in the order that ``sort``, which sorts local arrays, gives the whole dimension.

    ``sort`` must put padding last; ``before`` says, for the elements of two lists of arrays, whether the first come
    before the others in its order.
    """
    axes, tiles = ctx.axes(0, dim), ctx.num_tiles(0, dim)
    mine = sort(arrays)
    for comparators in merge_exchange(tiles):
        role = np.zeros(tiles, np.int32)
        for low, high in comparators:
            role[low], role[high] = 1, 2
        swaps = tuple(sorted(pair for low, high in comparators for pair in ((low, high), (high, low))))
        theirs = [ctx.permute(x, axes, swaps) for x in mine]
        mine = sort(_halves(mine, theirs, ctx.lookup(role.tolist(), axes), dim, before, bool((role == 0).any())))
    return mine


def _halves(
    mine: Sequence[Any],
    theirs: Sequence[Any],
    role: Any,
    dim: int,
    before: Callable[[Sequence[Any], Sequence[Any]], Any],
    idle: bool,
) -> list[Any]:
    """What two blocks in order have that belongs into the first of them for role 1, into the second for role 2, in some
    order; this device's own block for 0.

    The elements of one, and those of the other from its end, are compared one by one: none of the smaller ones comes
    behind any of the larger ones (Batcher's bitonic merge, ibid. 5.3.4).
    """
    first = eq(role, np.int32(1))
    # Both devices compare the very same pairs, so that equal elements are not lost between them.
    low = [select(first, x, y) for x, y in zip(mine, theirs)]
    high = [rev(select(first, y, x), (dim,)) for x, y in zip(mine, theirs)]
    swapped = before(high, low)
    # The second is given those that the first does not take.
    taken = eq(swapped, match_shape(first, typeof(swapped)))
    halves = [select(taken, y, x) for x, y in zip(low, high)]
    return [select(ne(role, np.int32(0)), new, old) for new, old in zip(halves, mine)] if idle else halves
