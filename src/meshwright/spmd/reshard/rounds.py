"""Rounds: assigns pieces to permutes, in each of which a device sends and receives at most one piece.

This is edge coloring of the bipartite graph of senders and receivers. If all pieces have the same size, the number of
colors needed is the number of pieces of the busiest device (Kőnig). If no round has both the sender and the receiver of
a piece free, the piece goes into a round in which the receiver is free, after swapping the pieces on the alternating
path between that round and one in which the sender is free. Pieces of different sizes are assigned largest first, to
rounds in which they fit. If the holders have more to send than any device has to receive, receivers relay pieces (see
``turns`` and ``relayed``).
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from functools import partial

from meshwright.core.records import dataclass
from meshwright.spmd.reshard.filled import filled
from meshwright.spmd.reshard.pieces import (
    SIDES,
    SPARE,
    Box,
    Piece,
    Sent,
    Side,
    Slotted,
    as_the_largest,
    as_they_are,
    bound,
    cut_to_slots,
)
from meshwright.spmd.reshard.relayed import relayed, slots_of
from meshwright.spmd.reshard.turns import in_turns

MAX_ROUNDS = 64
MAX_PATHS = 40  # the maximum number of paths that are tried for a piece
MAX_HOLDERS = 4  # the maximum number of holders of a piece that are tried as its sender
GOOD = 1.01  # a multiple of the bound; at this cost, no further schedules are tried
FILLING = (0.003, 0.01, 0.03)  # costs of a round besides its chunk, as fractions of the bound, that ``filled`` tries
POOR, FINER = 1.1, 0.001  # if the best cost is above this multiple of the bound, smaller rounds are tried

Rounds = list[list[Sent]]
#: a function that returns rounds below the given cost; None if there are none, or too many
Schedule = Callable[[float], Rounds | None]


def in_rounds(pieces: Sequence[Piece], start: int) -> Rounds | None:
    """Cut the pieces and assign them to the cheapest rounds; None if there are too many rounds.

    The cost of a round is the size of its chunk plus ``start``.
    """
    if not pieces:
        return []
    least, direct = bound(pieces, relays=True), bound(pieces)
    best = None
    if GOOD * least < direct:
        best = _cheapest(_passing_on(pieces, start), start, GOOD * least)
    if best is None or cost(best, 0) > direct:
        best = _cheapest(_schedules(pieces, start), start, GOOD * least, best)
        if best is not None and cost(best, 0) > POOR * direct:
            finer = partial(filled, pieces, start, max(start, FINER * direct), MAX_ROUNDS)
            best = _cheapest([finer, *_mixed(pieces, start)], start, GOOD * least, best)
    return best


def _cheapest(schedules: Iterable[Schedule], start: int, enough: float, best: Rounds | None = None) -> Rounds | None:
    """The cheapest rounds of all schedules and ``best``; stops at the first whose chunks are at most ``enough``."""
    for schedule in schedules:
        rounds = schedule(cost(best, start) if best else math.inf)
        if rounds is not None and (best is None or cost(rounds, start) < cost(best, start)):
            best = rounds
            if cost(best, 0) <= enough:
                break
    return best


def cost(rounds: Rounds, start: int) -> int:
    return sum(math.prod(chunk_of(group)) + start for group in rounds)


def chunk_of(group: Sequence[Sent]) -> Box:
    return tuple(map(max, zip(*(sent.piece.shape for sent in group))))


def _passing_on(pieces: Sequence[Piece], start: int) -> Iterator[Schedule]:
    """Schedules in which devices relay what they have received."""
    for number, slotted in enumerate(slots_of(pieces, MAX_ROUNDS)):
        if not number:
            yield partial(_turned, slotted, start)
        yield partial(relayed, slotted, start, MAX_ROUNDS)


def _turned(slotted: Sequence[Slotted], start: int, below: float) -> Rounds | None:
    """The rounds of a two-phase schedule. In the second phase, pieces are sent from new tiles, so have no holders."""
    first, then = in_turns(slotted)
    more = _turn(as_they_are(then), start, MAX_ROUNDS - math.ceil(_fewest(first)), below)
    rounds = _turn(first, start, MAX_ROUNDS - len(more), below - cost(more, start)) if more is not None else None
    if rounds is None or more is None:
        return None
    return rounds + [[Sent(source, piece._replace(holders=())) for source, piece in group] for group in more]


def _turn(slotted: Sequence[Slotted], start: int, most: int, below: float) -> Rounds | None:
    """The rounds of one phase, at most ``most``."""
    pieces = [item.piece for item in slotted]
    least, rounds = bound(pieces), _coloured(slotted, start, below)
    if rounds is not None and len(rounds) > most:
        rounds = None
    if rounds is None or cost(rounds, 0) > GOOD * least:
        fewer = below if rounds is None else cost(rounds, start)
        rounds = filled(pieces, start, max(start, FINER * least), most, fewer) or rounds
    return rounds


def _schedules(pieces: Sequence[Piece], start: int) -> Iterator[Schedule]:
    """Schedules without relays, the fastest to compute first."""
    yield partial(_coloured, as_they_are(pieces), start)
    if len({piece.shape for piece in pieces}) > 1:
        yield partial(_coloured, as_the_largest(pieces), start)
        for side, spare in itertools.product(SIDES, (0, SPARE)):
            yield partial(_coloured, cut_to_slots(pieces, [side] * len(pieces[0].low), spare), start)
        for part in FILLING if _fewest(as_they_are(pieces)) <= MAX_ROUNDS else ():
            yield partial(filled, pieces, start, max(start, part * bound(pieces)), MAX_ROUNDS)


def _mixed(pieces: Sequence[Piece], start: int) -> Iterator[Schedule]:
    """Schedules with pieces cut by the received tiles in some dimensions, and by the sent tiles in others.

    Dimensions in which all pieces have the same rows are not cut.
    """
    is_cut = [len(set(rows)) > 1 for rows in zip(*(zip(piece.low, piece.high) for piece in pieces))]
    for sides in itertools.product(*(SIDES if cut else SIDES[:1] for cut in is_cut)):
        if len(set(itertools.compress(sides, is_cut))) > 1:
            yield partial(_cut_and_coloured, pieces, sides, start)


def _cut_and_coloured(pieces: Sequence[Piece], sides: Sequence[Side], start: int, below: float) -> Rounds | None:
    return _coloured(cut_to_slots(pieces, sides, 0), start, below)


def _fewest(slotted: Sequence[Slotted]) -> float:
    """A lower bound of the number of rounds."""
    received = Counter(piece.target for piece, _ in slotted)
    sent = Counter(piece.holders for piece, _ in slotted)
    return max([*received.values(), *(number / len(holders) for holders, number in sent.items())], default=0)


def _coloured(slotted: Sequence[Slotted], start: int, below: float) -> Rounds | None:
    """Assign the pieces to rounds by edge coloring; each is sent by the holder that has sent least."""
    if _fewest(slotted) > MAX_ROUNDS:
        return None
    rounds = _Rounds()
    for item in sorted(slotted, key=lambda item: (-math.prod(item.slot), item.slot)):
        if not rounds.add(item) or rounds.total + start * len(rounds.chunks) >= below:
            return None
    return [[Sent(source, item.piece) for source, item in sends.items()] for sends in rounds.sends]


@dataclass(eq=False)
class _Rounds:
    """The rounds so far: their chunks, and what each device sends and receives in each."""

    chunks: list[Box] = field(default_factory=list)
    sends: list[dict[int, Slotted]] = field(default_factory=list)
    receives: list[dict[int, tuple[int, Slotted]]] = field(default_factory=list)
    load: Counter[int] = field(default_factory=Counter)
    total: int = 0  # the sum of the chunks' sizes

    def add(self, item: Slotted) -> bool:
        """Add a piece to a round; returns whether that is possible."""
        number, grown = -1, math.prod(item.slot)
        for at, chunk in enumerate(self.chunks):
            if item.piece.target not in self.receives[at] and any(h not in self.sends[at] for h in item.piece.holders):
                more = math.prod(map(max, chunk, item.slot)) - math.prod(chunk)
                if more < grown:
                    number, grown = at, more
                if not more:
                    break
        if grown and self._exchanged(item):
            return True
        if number < 0:
            if len(self.chunks) == MAX_ROUNDS:
                return False
            number = len(self.chunks)
            self.chunks.append(item.slot)
            self.total += math.prod(item.slot)
            self.sends.append({})
            self.receives.append({})
        source = min((h for h in item.piece.holders if h not in self.sends[number]), key=self.load.__getitem__)
        self._put(item, number, source)
        return True

    def _put(self, item: Slotted, number: int, source: int) -> None:
        self.total -= math.prod(self.chunks[number])
        self.chunks[number] = tuple(map(max, self.chunks[number], item.slot))
        self.total += math.prod(self.chunks[number])
        self._place(item, number, source)
        self.load[source] += item.piece.size

    def _place(self, item: Slotted, number: int, source: int) -> None:
        self.sends[number][source] = item
        self.receives[number][item.piece.target] = (source, item)

    def _fits(self, item: Slotted, number: int) -> bool:
        return all(map(operator.le, item.slot, self.chunks[number]))

    def _exchanged(self, item: Slotted) -> bool:
        """Add a piece to a round after swapping others with those of a second round; returns whether it succeeded."""
        order = sorted(range(len(self.chunks)), key=lambda number: math.prod(self.chunks[number]))
        fitting = [number for number in order if self._fits(item, number)]  # with equal slots, swaps always succeed
        free = (number for number in fitting if item.piece.target not in self.receives[number])
        holders = sorted(item.piece.holders, key=self.load.__getitem__)[:MAX_HOLDERS]
        paths = (
            (number, other, source)
            for number, other, source in itertools.product(free, fitting, holders)
            if source not in self.sends[other] and source in self.sends[number]
        )
        for number, other, source in itertools.islice(paths, MAX_PATHS):
            path = self._path(source, number, other)
            if path is not None:
                self._swap(path)
                self._put(item, number, source)
                return True
        return False

    def _path(self, source: int, number: int, other: int) -> list[tuple[int, Slotted, int, int]] | None:
        """The swaps after which ``source`` sends nothing in round ``number``; None if a piece does not fit.

        Each is the sender, the piece, and the rounds from which and to which it moves.
        """
        path: list[tuple[int, Slotted, int, int]] = []
        here, there = number, other
        while source in self.sends[here]:
            item = self.sends[here][source]
            path.append((source, item, here, there))
            if not self._fits(item, there):
                return None
            if item.piece.target not in self.receives[there]:
                break
            source, item = self.receives[there][item.piece.target]
            path.append((source, item, there, here))
            if not self._fits(item, here):
                return None
        return path

    def _swap(self, path: Sequence[tuple[int, Slotted, int, int]]) -> None:
        for source, item, here, _ in path:
            del self.sends[here][source]
            del self.receives[here][item.piece.target]
        for source, item, _, there in path:
            self._place(item, there, source)
