"""Windows over a split dimension: which rows each tile needs from its neighbours, and the exchange that brings them.

One mechanism serves convolution, pooling, slice, pad, concatenate and reverse: "tile ``t`` needs the global rows
``[start(t), start(t) + length)``". The halo exchange of GSPMD (Xu et al. 2021, section 4.3) is the case where ``start``
grows by the tile size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Piece:
    """Rows ``[low, high)`` of every source tile, sent to the tile ``offset`` before it by the pairs ``perm``."""

    offset: int
    low: int
    high: int
    perm: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class WindowPlan:
    """How to assemble the rows that each tile needs.

    ``pieces``, in order of offset, are joined; ``gaps[i]`` rows of nothing stand before piece ``i``. Tile ``t``'s
    window begins at row ``starts[t]`` of what was joined. ``gather`` says that joining all tiles is cheaper than the
    exchange; then there are no pieces and ``starts`` count rows of the whole (padded) dimension. ``complete`` means
    that every row of every window exists, so that nothing has to be filled in.
    """

    pieces: tuple[Piece, ...]
    gaps: tuple[int, ...]
    starts: tuple[int, ...]
    gather: bool
    complete: bool


def plan_window(size: int, tiles: int, start: Callable[[int], int], length: int) -> WindowPlan:
    """Plan for a dimension of ``size`` rows in ``tiles`` tiles."""
    return _plan(size, tiles, tuple(start(t) for t in range(tiles)), length)


@lru_cache(maxsize=4096)
def _plan(size: int, tiles: int, starts: tuple[int, ...], length: int) -> WindowPlan:
    rows = -(-size // tiles)
    ranges: dict[int, list[int]] = {}
    pairs: dict[int, list[tuple[int, int]]] = {}
    complete = True
    for t, begin in enumerate(starts):
        low, high = max(begin, 0), min(begin + length, size)
        complete &= low == begin and high == begin + length
        for source in range(low // rows, -(-high // rows)) if low < high else ():
            a, b = max(low - source * rows, 0), min(high - source * rows, rows)
            offset = source - t
            known = ranges.setdefault(offset, [a, b])
            known[0], known[1] = min(known[0], a), max(known[1], b)
            pairs.setdefault(offset, []).append((source, t))
    pieces = tuple(Piece(o, ranges[o][0], ranges[o][1], tuple(pairs[o])) for o in sorted(ranges))
    sent = sum(p.high - p.low for p in pieces if p.offset)
    if sent > (tiles - 1) * rows:
        return WindowPlan((), (), starts, True, complete)
    if not pieces:  # every window lies outside
        return WindowPlan((), (), (0,) * tiles, False, False)
    # Rows are counted from the first row of the first piece, relative to the tile's own first row.
    base = pieces[0].offset * rows + pieces[0].low
    gaps, end = [], base
    for piece in pieces:
        begin = piece.offset * rows + piece.low
        gaps.append(begin - end)
        end = begin + piece.high - piece.low
    return WindowPlan(pieces, tuple(gaps), tuple(s - t * rows - base for t, s in enumerate(starts)), False, complete)


def affine(table: Sequence[int]) -> tuple[int, int] | None:
    """``(first, step)`` if the table is an arithmetic sequence."""
    step = table[1] - table[0] if len(table) > 1 else 0
    return (table[0], step) if all(v == table[0] + i * step for i, v in enumerate(table)) else None
