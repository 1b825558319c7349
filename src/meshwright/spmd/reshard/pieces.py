"""Pieces: boxes of elements that a device lacks, with the devices that hold them; and cutting pieces to equal sizes.

A permute costs as much as its largest piece. If one device receives a piece of 12 rows, and another receives 12 rows as
pieces of 11 and 1, two permutes would send 13 rows. If the first piece is cut into 11 and 1 too, they send 12.
``shared_cuts`` finds such *slots*, one of each for every tile of a dimension. A slot is as large as the largest pieces
of all tiles allow, provided that no tile is then left with more rows than the largest tile is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

Box = tuple[int, ...]
Span = tuple[int, int]  # the first row, and the one after the last
SPARE = 10  # up to this fraction (1 / SPARE) of a tile may be wasted to have fewer slots


class Piece(NamedTuple):
    """A box of elements that ``target`` lacks, of a tile that all ``holders`` hold."""

    target: int
    holders: tuple[int, ...]
    low: Box
    high: Box

    @property
    def shape(self) -> Box:
        return tuple(b - a for a, b in zip(self.low, self.high))

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Sent(NamedTuple):
    """A piece and the device that sends it."""

    source: int
    piece: Piece


class Slotted(NamedTuple):
    """A piece that is sent in a chunk of the shape ``slot``."""

    piece: Piece
    slot: Box


Side = Callable[[Piece], Hashable]
#: the tile that a piece is a part of: that of the receiver, or that of the holders
SIDES: tuple[Side, ...] = (lambda piece: piece.target, lambda piece: piece.holders)


def bound(pieces: Sequence[Piece], relays: bool = False) -> float:
    """A lower bound of the elements that the busiest device receives or sends.

    The holders of a tile share its sends equally. With ``relays``, they send each piece only once, and others relay it.
    """
    received: dict[int, int] = {}
    sent: dict[tuple[int, ...], int] = {}
    seen = set()
    for piece in pieces:
        received[piece.target] = received.get(piece.target, 0) + piece.size
        if not (relays and (piece.low, piece.high) in seen):
            sent[piece.holders] = sent.get(piece.holders, 0) + piece.size
        seen.add((piece.low, piece.high))
    return max([*received.values(), *(size / len(holders) for holders, size in sent.items())], default=0)


def as_they_are(pieces: Sequence[Piece]) -> list[Slotted]:
    return [Slotted(piece, piece.shape) for piece in pieces]


def as_the_largest(pieces: Sequence[Piece]) -> list[Slotted]:
    """The pieces, all with a slot that fits the largest in each dimension."""
    largest = tuple(map(max, zip(*(piece.shape for piece in pieces))))
    return [Slotted(piece, largest) for piece in pieces]


def cut_to_slots(pieces: Sequence[Piece], sides: Sequence[Side], spare: int) -> list[Slotted]:
    """The pieces, cut so that all tiles have equal slots; ``sides`` selects received or sent tiles per dimension."""
    return list(_cut(pieces, sides, spare))


def _cut(pieces: Sequence[Piece], sides: Sequence[Side], spare: int) -> Iterator[Slotted]:
    slots = []
    for dim, side in enumerate(sides):
        spans: dict[Hashable, set[Span]] = {}
        for piece in pieces:
            spans.setdefault(side(piece), set()).add((piece.low[dim], piece.high[dim]))
        tiles = {owner: tuple(sorted(mine)) for owner, mine in spans.items()}
        cut = shared_cuts(sorted(set(tiles.values())), spare)
        slots.append({owner: cut[mine] for owner, mine in tiles.items()})
    for piece in pieces:
        mine = (cut[side(piece)][low, high] for cut, side, low, high in zip(slots, sides, piece.low, piece.high))
        for parts in itertools.product(*mine):
            low, high, slot = zip(*parts)
            yield Slotted(piece._replace(low=low, high=high), slot)


def shared_cuts(
    tiles: Sequence[tuple[Span, ...]], spare: int = 0
) -> dict[tuple[Span, ...], dict[Span, list[tuple[int, int, int]]]]:
    """For each tile, given as its spans, the parts into which each span is cut, as (low, high, slot)."""
    left = [list(spans) for spans in tiles]
    cuts: list[list[tuple[int, int, int]]] = [[] for _ in tiles]
    may_waste = max(sum(high - low for low, high in spans) for spans in tiles) // spare if spare else 0
    last = 0
    while any(left):
        slot, waste = _slot(left, may_waste)
        if last - slot <= may_waste - waste:
            slot, waste = max(slot, last), waste + max(0, last - slot)
        last = slot if spare else 0
        may_waste -= waste
        for spans, done in zip(left, cuts):
            if spans:
                low, high = min(spans, key=lambda span: _misfit(span[1] - span[0], slot))
                spans.remove((low, high))
                done.append((low, min(high, low + slot), slot))
                if high > low + slot:
                    spans.append((low + slot, high))
    return {
        spans: {(low, high): sorted(c for c in mine if low <= c[0] and c[1] <= high) for low, high in spans}
        for spans, mine in zip(tiles, cuts)
    }


def _misfit(rows: int, slot: int) -> tuple[bool, int]:
    """A sort key: first the smallest span that is at least the slot, else the largest span."""
    return rows < slot, abs(rows - slot)


def _slot(left: Sequence[Sequence[Span]], may_waste: int) -> tuple[int, int]:
    """The largest slot that wastes at most ``may_waste`` rows, and the number that it wastes."""
    ends = {(sum(rows), max(rows)) for spans in left if (rows := [high - low for low, high in spans])}
    most, longest = max(whole for whole, _ in ends), max(span for _, span in ends)
    sizes = {high - low for spans in left for low, high in spans} | {most - whole + span for whole, span in ends}
    for slot in sorted((size for size in sizes if 0 < size <= longest), reverse=True):
        waste = max(whole - min(slot, span) for whole, span in ends) - (most - slot)
        if waste <= may_waste:
            return slot, waste
    return 1, 0
