"""Filled rounds: chunk shapes are chosen so that the busiest devices are never idle, and pieces are cut to fit.

Each round uses the chunk shape that wastes least for the busiest device: whose remaining work shrinks most nearly by
the size of the chunk. Each device gets the largest part of a piece that fits into the chunk. That is an assignment
problem, in which pairs that keep the busiest devices busy have the highest weight. (Preemptive open-shop scheduling,
Gonzalez and Sahni 1976, with parts that are boxes of one shape per round.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.core.late import LateModule
from meshwright.spmd.reshard.pieces import Piece, Sent

_optimize = LateModule("scipy.optimize")
MOST_SHAPES = 16  # the number of shapes of the largest pieces that are tried as chunks
MOST_PAIRED = 8  # the number of these shapes whose pairwise intersections are tried too
TRIED = 12  # the maximum number of chunks for which an assignment is computed


class _Left(NamedTuple):
    """The remaining pieces, sorted by target and then by tile; ``low`` and ``high`` have a row per piece."""

    low: np.ndarray
    high: np.ndarray
    target: np.ndarray
    tile: np.ndarray

    def ordered(self) -> _Left:
        order = np.lexsort((self.tile, self.target))
        return _Left(*(column[order] for column in self))


class _Holders(NamedTuple):
    """The devices that hold tiles, the tile of each, and the number of holders of each tile."""

    device: np.ndarray
    tile: np.ndarray
    number: np.ndarray


class _Pairs:
    """The pairs of a target and a tile with remaining pieces, and the remaining work of every device."""

    def __init__(self, left: _Left, devices: int, holders: _Holders, owners: Sequence[tuple[int, ...]]) -> None:
        self.left, self.devices, self.holders, self.owners = left, devices, holders, owners
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
        self.number = np.zeros((devices, len(owners)), dtype=np.int64)
        self.number[self.target, self.tile] = np.arange(len(self.first))

    def fewest(self) -> int:
        """A lower bound of the number of remaining rounds."""
        sent = np.bincount(self.left.tile) / self.holders.number[: self.left.tile.max() + 1]
        return int(np.ceil(max(np.bincount(self.left.target).max(), sent.max())))

    def largest(self, useful: np.ndarray) -> np.ndarray:
        """The most useful piece of each pair."""
        pair = np.repeat(np.arange(len(self.first)), np.diff(self.first, append=len(self.left.target)))
        largest: np.ndarray = np.lexsort((-useful, pair))[self.first]
        return largest

    def useful(self, chunks: np.ndarray) -> np.ndarray:
        """For each chunk, the number of elements of each piece that fit into it."""
        amounts: np.ndarray = np.minimum(self.shape[None], chunks[:, None]).prod(axis=2)
        return amounts

    def per_pair(self, useful: np.ndarray) -> np.ndarray:
        return np.maximum.reduceat(useful, self.first, axis=1)

    def goals(self, pairs: np.ndarray) -> np.ndarray:
        """For each chunk, a lower bound of the remaining work of the busiest device after it."""
        received = np.maximum.reduceat(pairs, self.target_first, axis=1)
        sent = np.maximum.reduceat(pairs[:, self.by_tile], self.tile_first, axis=1)
        after_receiving = self.receive[self.target[self.target_first]] - received
        after_sending = self.send[self.tile[self.by_tile][self.tile_first]] - sent
        goals: np.ndarray = np.maximum(after_receiving.max(axis=1), after_sending.max(axis=1))
        return goals


class _Round(NamedTuple):
    """A round: its chunk, its targets, and their senders. ``price`` is its cost beyond the work that it does."""

    price: float
    chunk: np.ndarray
    useful: np.ndarray
    targets: np.ndarray
    holders: np.ndarray


def filled(
    pieces: Sequence[Piece], start: int, weight: float, most: int, below: float = math.inf
) -> list[list[Sent]] | None:
    """Cut the pieces and assign them to rounds; None for more than ``most`` rounds, or if they cost ``below`` or more.

    ``start`` is the cost of a round besides its chunk, and ``weight`` its value for the choice of chunks.
    """
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
    spent = 0
    while len(left.target):
        pairs = _Pairs(left.ordered(), devices, held, owners)
        fewest = pairs.fewest()
        if len(rounds) + fewest > most or spent + pairs.most + start * fewest >= below:
            return None
        turn = _best(pairs, weight)
        spent += int(turn.chunk.prod()) + start
        sent, left = _take(turn, pairs)
        rounds.append(sent)
    return rounds


def _changes(*columns: np.ndarray) -> np.ndarray:
    """The indices at which runs of equal entries start."""
    new = np.ones(len(columns[0]), dtype=bool)
    new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return np.flatnonzero(new)


# --- chunks -------------------------------------------------------------------------------------------------
def _best(pairs: _Pairs, start: float) -> _Round:
    chunks = _chunks(pairs)
    useful = pairs.useful(chunks)
    of_pairs = pairs.per_pair(useful)
    goals, sizes = pairs.goals(of_pairs), chunks.prod(axis=1)
    least = (sizes + goals - pairs.most + start) / sizes
    best: _Round | None = None
    for i in np.argsort(least, kind="stable")[:TRIED]:
        if best is not None and best.price <= least[i]:
            break
        turn = _assigned(pairs, chunks[i], useful[i], of_pairs[i], goals[i], start)
        best = turn if best is None or turn.price < best.price else best
    assert best is not None, "there are pieces left"
    return best


def _chunks(pairs: _Pairs) -> np.ndarray:
    """Candidate chunks: shapes of pieces, intersections of two, and all of these with fewer rows, to waste less."""
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
    """Assign senders to targets in a round, first those whose remaining work must decrease to reach ``goal``."""
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
def _take(turn: _Round, pairs: _Pairs) -> tuple[list[Sent], _Left]:
    """The pieces sent in a round, and the remaining ones."""
    left, held = pairs.left, pairs.holders
    tiles = held.tile[turn.holders]
    taken = pairs.largest(turn.useful)[pairs.number[turn.targets, tiles]]
    low, high = left.low[taken], left.high[taken]
    stop = np.minimum(high, low + turn.chunk)
    boxes = zip(*(column.tolist() for column in (held.device[turn.holders], turn.targets, tiles, low, stop)))
    sent = [
        Sent(source, Piece(target, pairs.owners[tile], tuple(first), tuple(last)))
        for source, target, tile, first, last in boxes
    ]
    rest = [
        _Left(first[some], last[some], turn.targets[some], tiles[some])
        for first, last, some in _beyond(low, stop, high)
    ]
    kept = _Left(*(np.delete(column, taken, axis=0) for column in left))
    return sent, _Left(*map(np.concatenate, zip(kept, *rest)))


def _beyond(low: np.ndarray, stop: np.ndarray, high: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The boxes that remain of boxes without their corners up to ``stop``, and which of them are not empty."""
    corner, number = high.copy(), np.arange(len(low))
    for dim in np.argsort((stop - low) / (high - low), axis=1, kind="stable").T:
        first = low.copy()
        first[number, dim] = stop[number, dim]
        yield first, corner.copy(), stop[number, dim] < high[number, dim]
        corner[number, dim] = stop[number, dim]
