"""Windows over a split dimension: which rows each tile needs from its neighbours, and the exchange that fetches them.

One mechanism serves convolution, pooling, slice, pad, concatenate and reverse: "tile ``t`` needs the global rows
``[start(t), start(t) + length)``". The halo exchange of GSPMD (Xu et al. 2021, section 4.3) is the case where ``start``
grows by the tile size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from meshwright.core.records import dataclass


@dataclass(frozen=True)
class Piece:
    """Rows ``[low, high)`` of every source tile, sent by the pairs (source, target) ``perm``; if empty, not sent."""

    low: int
    high: int
    perm: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class WindowPlan:
    """How to assemble the rows that each tile needs.

    ``pieces`` are concatenated in order, with ``gaps[i]`` missing rows before piece ``i``. The window of tile ``t``
    starts at row ``starts[t]`` of the concatenation. ``gather`` means that gathering all tiles is cheaper than the
    exchange; there are no pieces then, and ``starts`` are rows of the whole (padded) dimension.

    ``complete`` means that every row of every window exists, so that nothing has to be filled in. ``apart`` means that
    missing rows are never among the rows that a tile receives: they are in gaps, in pieces that are not sent to it, or
    past either end of the concatenation. Otherwise they may be a tile's padding, with arbitrary content.
    """

    pieces: tuple[Piece, ...]
    gaps: tuple[int, ...]
    starts: tuple[int, ...]
    gather: bool
    complete: bool
    apart: bool

    @property
    def sent(self) -> int:
        """The number of rows that a device sends."""
        return sum(p.high - p.low for p in self.pieces if p.perm)


@dataclass(frozen=True)
class _Segment:
    """Rows ``[low, high)`` of tile ``source``, as a part of a window."""

    source: int
    low: int
    high: int


class Window(NamedTuple):
    """What tile ``t`` needs: ``length`` rows from ``start(t)`` on, except those from ``stop`` on."""

    start: Callable[[int], int]
    length: int
    stop: int | None = None


@dataclass(frozen=True)
class Shown:
    """Which of an operand's ``size`` rows appear in a result of ``rows`` rows.

    Row ``r`` of the result is row ``(r * stride - before) / step`` of the operand, if there is one.
    """

    size: int
    rows: int
    before: int = 0
    stride: int = 1
    step: int = 1

    def window(self, tiles: int) -> Window:
        """The rows that a tile of the result needs; ``stride`` or ``step`` must be 1."""
        n = -(-self.rows // tiles)
        length = max((n - 1) * self.stride + 1, 0) if self.step == 1 else -(-n // self.step)
        last = ((self.rows - 1) * self.stride - self.before) // self.step
        return Window(lambda tile: -((self.before - tile * n * self.stride) // self.step), length, last + 1)

    def picked(self, tiles: int) -> Shown | None:
        """The same map restricted to the rows that appear, which each tile picks from its own, starting at ``first``.

        None if tiles do not have equally many of them.
        """
        held, left = divmod(-(-self.size // tiles), self.stride)
        size = -(-(self.size - self.first) // self.stride)
        if left or self.stride == 1 or -(-size // tiles) != held:
            return None
        return Shown(size, self.rows, (self.before + self.first) // self.stride)

    @property
    def first(self) -> int:
        """The first row that appears; every ``stride``-th row after it appears too."""
        return -self.before % self.stride

    def sent(self, tiles: int) -> int:
        """The number of rows that a device sends so that all tiles of the result get theirs."""
        shown = self.picked(tiles) or self
        plan = plan_window(shown.size, tiles, *shown.window(tiles))
        return (tiles - 1) * -(-shown.size // tiles) if plan.gather else plan.sent


@dataclass(frozen=True)
class SentWindows:
    """The :data:`~meshwright.sharding.rule.Passes` of an op that fetches windows of its operands one by one.

    ``share`` is the fraction of a row that is sent, if other dimensions are cut first. ``beside`` is the number of rows
    of equal size in operands of which nothing is sent.
    """

    shown: tuple[Shown, ...]
    share: float = 1.0
    beside: int = 0

    def __call__(self, tiles: int) -> float:
        held = sum(-(-s.size // tiles) for s in self.shown) + -(-self.beside // tiles)
        return self.share * sum(s.sent(tiles) for s in self.shown) / held if held else 0.0


def plan_window(size: int, tiles: int, start: Callable[[int], int], length: int, stop: int | None = None) -> WindowPlan:
    """Plan for a dimension of ``size`` rows in ``tiles`` tiles; rows from ``stop`` on are not needed."""
    return _plan(size, tiles, tuple(start(t) for t in range(tiles)), length, stop)


@lru_cache(maxsize=4096)
def _plan(size: int, tiles: int, starts: tuple[int, ...], length: int, stop: int | None) -> WindowPlan:
    rows = -(-size // tiles)
    windows: list[list[_Segment]] = []
    complete = True
    for begin in starts:
        end = begin + length if stop is None else min(begin + length, stop)
        low, high = max(begin, 0), min(end, size)
        complete &= begin >= end or (low == begin and high == end)
        sources = range(low // rows, -(-high // rows)) if low < high else range(0)
        windows.append([_Segment(s, max(low - s * rows, 0), min(high - s * rows, rows)) for s in sources])
    if not any(windows):  # every window is outside of the dimension
        return WindowPlan((), (), (0,) * tiles, False, False, True)
    even = size % tiles == 0
    plans = [_by_distance(windows, starts, rows, complete, even)]
    in_turn = _in_turn(windows, starts, rows, complete, even)
    if in_turn is not None:
        plans.append(in_turn)
    best = min(plans, key=lambda plan: plan.sent)
    return WindowPlan((), (), starts, True, complete, even) if best.sent > (tiles - 1) * rows else best


def plan_ring(size: int, tiles: int, start: Callable[[int], int], length: int) -> WindowPlan:
    """Plan for a dimension without padding whose last tile is followed by its first."""
    rows = size // tiles
    # Go around the ring the shorter way.
    starts = [start(t) - (size if start(0) > size // 2 else 0) for t in range(tiles)]
    windows = [
        [
            _Segment(s, max(begin - s * rows, 0), min(begin + length - s * rows, rows))
            for s in range(begin // rows, -(-(begin + length) // rows))
        ]
        for begin in starts
    ]
    plan = _by_distance(windows, tuple(starts), rows, True, True)
    return replace(plan, pieces=tuple(replace(p, perm=_around(p.perm, tiles)) for p in plan.pieces))


def _around(perm: tuple[tuple[int, int], ...], tiles: int) -> tuple[tuple[int, int], ...]:
    """Pairs (source, target) with sources taken around the ring; none if every tile sends to itself."""
    pairs = tuple((source % tiles, target) for source, target in perm)
    return pairs if any(source != target for source, target in pairs) else ()


def _by_distance(
    windows: list[list[_Segment]], starts: tuple[int, ...], rows: int, complete: bool, even: bool
) -> WindowPlan:
    """A piece for each distance between source and target: halos, if all tiles reach equally far."""
    ranges: dict[int, list[int]] = {}
    pairs: dict[int, list[tuple[int, int]]] = {}
    for t, window in enumerate(windows):
        for part in window:
            offset = part.source - t
            known = ranges.setdefault(offset, [part.low, part.high])
            known[0], known[1] = min(known[0], part.low), max(known[1], part.high)
            pairs.setdefault(offset, []).append((part.source, t))
    offsets = sorted(ranges)
    pieces = tuple(Piece(ranges[o][0], ranges[o][1], tuple(pairs[o]) if o else ()) for o in offsets)
    # Rows are counted from the first row of the first piece, relative to the tile's own first row.
    base = offsets[0] * rows + pieces[0].low
    gaps, end = [], base
    for offset, piece in zip(offsets, pieces):
        begin = offset * rows + piece.low
        gaps.append(begin - end)
        end = begin + piece.high - piece.low
    begins = [s - t * rows - base for t, s in enumerate(starts)]
    # Windows that need nothing do not extend the range of the others.
    needed = [b for b, w in zip(begins, windows) if w]
    within = tuple(min(max(b, min(needed)), max(needed)) for b in begins) if complete else tuple(begins)
    return WindowPlan(pieces, tuple(gaps), within, False, complete, even)


def _in_turn(
    windows: list[list[_Segment]], starts: tuple[int, ...], rows: int, complete: bool, even: bool
) -> WindowPlan | None:
    """A piece for the first tile that each window covers, one for the second, …, as when tiles are permuted.

    None if a piece would have to go from one tile to several.
    """
    pieces = []
    most, apart = max(map(len, windows)), even
    for number in range(most):
        parts = {t: window[number] for t, window in enumerate(windows) if number < len(window)}
        if len({p.source for p in parts.values()}) < len(parts):
            return None
        low = min(p.low for p in parts.values())
        high = rows if number + 1 < most else max(p.high for p in parts.values())
        moves = tuple((p.source, t) for t, p in parts.items())
        pieces.append(Piece(low, high, moves if any(s != t for s, t in moves) else ()))
        apart &= bool(pieces[-1].perm) or len(parts) == len(windows)
    begins = tuple((w[0].low - pieces[0].low if w else 0) + min(s, 0) for w, s in zip(windows, starts))
    return WindowPlan(tuple(pieces), (0,) * most, begins, False, complete, apart)


def affine(table: Sequence[int]) -> tuple[int, int] | None:
    """``(first, step)`` if the table is an arithmetic sequence, otherwise None."""
    step = table[1] - table[0] if len(table) > 1 else 0
    return (table[0], step) if all(v == table[0] + i * step for i, v in enumerate(table)) else None
