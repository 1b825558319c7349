"""Rounds that are filled: chunks chosen so that the busiest devices never wait, and pieces cut to them.

Each round takes the chunk after which what the busiest device still has to do has shrunk most nearly by that chunk, and
gives every device the largest part of a piece that goes into it: an assignment problem, in which the pairs that keep
the busiest devices busy count most. (Preemptive open-shop scheduling, Gonzalez and Sahni 1976, where parts are boxes
of one shape a round.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.core.late import LateModule
from meshwright.spmd.reshard.pieces import Piece, Sent

_optimize = LateModule("scipy.optimize")
MOST_SHAPES = 16  # of the largest pieces, that are tried as chunks
MOST_PAIRED = 8  # of those, of which what two have in common is tried
TRIED = 3  # chunks for which devices are assigned


class _Left(NamedTuple):
    """The pieces that are left, by target and then by tile; ``low`` and ``high`` with a row for each."""

    low: np.ndarray
    high: np.ndarray
    target: np.ndarray
    tile: np.ndarray

    def ordered(self) -> _Left:
        order = np.lexsort((self.tile, self.target))
        return _Left(*(column[order] for column in self))


class _Holders(NamedTuple):
    """Devices that hold anything, the tile of each, and how many hold each tile."""

    device: np.ndarray
    tile: np.ndarray
    number: np.ndarray


class _Pairs:
    """The pairs of a target and a tile with pieces left, and what every device still has to do."""

    def __init__(self, left: _Left, devices: int, holders: _Holders) -> None:
        self.left, self.devices, self.holders = left, devices, holders
        self.shape = left.high - left.low
        size = self.shape.prod(axis=1)
        self.receive = np.bincount(left.target, size, devices)
        self.send = np.bincount(left.tile, size, len(holders.number)) / holders.number
        self.most = max(self.receive.max(), self.send.max())
        self.first = _changes(left.target, left.tile)
        self.target, self.tile = left.target[self.first], left.tile[self.first]
        self.target_first = _changes(self.target)
        self.by_tile = np.argsort(self.tile, kind="stable")
        self.tile_first = _changes(self.tile[self.by_tile])

    def useful(self, chunks: np.ndarray) -> np.ndarray:
        """For each chunk how much of each piece goes into it."""
        amounts: np.ndarray = np.minimum(self.shape[None], chunks[:, None]).prod(axis=2)
        return amounts

    def per_pair(self, useful: np.ndarray) -> np.ndarray:
        return np.maximum.reduceat(useful, self.first, axis=1)

    def goals(self, pairs: np.ndarray) -> np.ndarray:
        """For each chunk the least that the busiest device has to do after it."""
        received = np.maximum.reduceat(pairs, self.target_first, axis=1)
        sent = np.maximum.reduceat(pairs[:, self.by_tile], self.tile_first, axis=1)
        after_receiving = self.receive[self.target[self.target_first]] - received
        after_sending = self.send[self.tile[self.by_tile][self.tile_first]] - sent
        goals: np.ndarray = np.maximum(after_receiving.max(axis=1), after_sending.max(axis=1))
        return goals


class _Round(NamedTuple):
    """A chunk, and who gets some of which tile from whom; ``price``: what it costs besides what it gets done."""

    price: float
    chunk: np.ndarray
    useful: np.ndarray
    targets: np.ndarray
    holders: np.ndarray


def filled(pieces: Sequence[Piece], start: float, most: int) -> list[list[Sent]] | None:
    """The pieces, cut, in rounds; None if these are more than ``most``. ``start``: what a round counts for."""
    tiles = {holders: number for number, holders in enumerate(dict.fromkeys(piece.holders for piece in pieces))}
    counts = np.array([len(holders) for holders in tiles])
    held = _Holders(
        np.array([d for holders in tiles for d in holders]), np.repeat(np.arange(len(tiles)), counts), counts
    )
    devices = 1 + max(*(piece.target for piece in pieces), held.device.max())
    left = _Left(
        np.array([piece.low for piece in pieces]),
        np.array([piece.high for piece in pieces]),
        np.array([piece.target for piece in pieces]),
        np.array([tiles[piece.holders] for piece in pieces]),
    )
    owners = list(tiles)
    rounds: list[list[Sent]] = []
    while len(left.target):
        if len(rounds) == most:
            return None
        pairs = _Pairs(left.ordered(), devices, held)
        taken, left = _take(_best(pairs, start), pairs)
        rounds.append(
            [Sent(source, Piece(target, owners[tile], low, high)) for source, target, tile, low, high in taken]
        )
    return rounds


def _changes(*columns: np.ndarray) -> np.ndarray:
    """Where a run of equal entries begins."""
    new = np.ones(len(columns[0]), dtype=bool)
    new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return np.flatnonzero(new)


# --- chunks -------------------------------------------------------------------------------------------------
def _best(pairs: _Pairs, start: float) -> _Round:
    chunks = _chunks(pairs)
    useful = pairs.useful(chunks)
    of_pairs = pairs.per_pair(useful)
    goals, sizes = pairs.goals(of_pairs), chunks.prod(axis=1)
    order = np.argsort((sizes + goals + start) / sizes - pairs.most / sizes, kind="stable")[:TRIED]
    assigned = (_assigned(pairs, chunks[i], useful[i], of_pairs[i], goals[i], start) for i in order)
    return min(assigned, key=lambda turn: turn.price)


def _chunks(pairs: _Pairs) -> np.ndarray:
    """The shapes of pieces, what two of them have in common, and those with fewer rows by what they would waste."""
    shapes = np.unique(pairs.shape, axis=0)
    shapes = shapes[np.argsort(-shapes.prod(axis=1), kind="stable")][:MOST_SHAPES]
    top = shapes[:MOST_PAIRED]
    common = np.minimum(top[:, None], top[None]).reshape(-1, shapes.shape[1])
    chunks = np.unique(np.concatenate([shapes, common]), axis=0)
    sizes = chunks.prod(axis=1)
    waste = np.maximum(0, sizes + pairs.goals(pairs.per_pair(pairs.useful(chunks))) - pairs.most)
    fewer = np.ceil(waste[:, None] / (sizes[:, None] / chunks)).astype(chunks.dtype)
    cut = [chunks - np.where(np.arange(chunks.shape[1]) == dim, fewer, 0) for dim in range(chunks.shape[1])]
    every = np.concatenate([chunks, *cut])
    return np.unique(every[(every > 0).all(axis=1)], axis=0)


def _assigned(
    pairs: _Pairs, chunk: np.ndarray, useful: np.ndarray, of_pairs: np.ndarray, goal: float, start: float
) -> _Round:
    """Who gets something in a round: first those that must, to be down to ``goal`` after it."""
    size, held = float(chunk.prod()), pairs.holders
    worth = of_pairs + 0.5 * size * (pairs.receive[pairs.target] + pairs.send[pairs.tile]) / pairs.most
    for todo in (pairs.receive[pairs.target], pairs.send[pairs.tile]):
        worth += 4 * size * (pairs.devices + 1) * ((todo > goal) & (of_pairs >= todo - goal))
    table, amounts = np.zeros((2, pairs.devices, len(held.number)))
    table[pairs.target, pairs.tile], amounts[pairs.target, pairs.tile] = worth, of_pairs
    targets, holders = _optimize.linear_sum_assignment(table[:, held.tile], maximize=True)
    tiles = held.tile[holders]
    done = amounts[targets, tiles]
    receive, send = pairs.receive.copy(), pairs.send.copy()
    np.subtract.at(receive, targets, done)
    np.subtract.at(send, tiles, done / held.number[tiles])
    price = (size + max(receive.max(), send.max()) - pairs.most + start) / size
    return _Round(price, chunk, useful, targets[done > 0], holders[done > 0])


# --- taking -------------------------------------------------------------------------------------------------
def _take(turn: _Round, pairs: _Pairs) -> tuple[list[tuple[int, int, int, tuple[int, ...], tuple[int, ...]]], _Left]:
    """What a round moves (source, target, tile, box), and what is left then."""
    left, held = pairs.left, pairs.holders
    end = np.append(pairs.first[1:], len(left.target))
    where = {pair: span for pair, *span in zip(zip(pairs.target.tolist(), pairs.tile.tolist()), pairs.first, end)}
    taken, rest, gone = [], [], []
    for target, holder in zip(turn.targets.tolist(), turn.holders.tolist()):
        tile = int(held.tile[holder])
        first, last = where[target, tile]
        number = first + int(np.argmax(turn.useful[first:last]))
        low, high = left.low[number].tolist(), left.high[number].tolist()
        stop = [min(b, a + rows) for a, b, rows in zip(low, high, turn.chunk.tolist())]
        taken.append((int(held.device[holder]), target, tile, tuple(low), tuple(stop)))
        gone.append(number)
        rest += [(*box, target, tile) for box in _beyond(low, stop, high)]
    kept = _Left(*(np.delete(column, gone, axis=0) for column in left))
    if rest:
        kept = _Left(*(np.concatenate([old, new]) for old, new in zip(kept, map(np.array, zip(*rest)))))
    return taken, kept


def _beyond(low: Sequence[int], stop: Sequence[int], high: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The boxes that are left of a box of which the corner up to ``stop`` is taken."""
    corner = list(high)
    dims = [dim for dim in range(len(low)) if stop[dim] < high[dim]]
    for dim in sorted(dims, key=lambda dim: (stop[dim] - low[dim]) / (high[dim] - low[dim])):
        yield [*low[:dim], stop[dim], *low[dim + 1 :]], list(corner)
        corner[dim] = stop[dim]
