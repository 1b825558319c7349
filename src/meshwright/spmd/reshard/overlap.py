"""Overlaps: every device gets what its new tile lacks from those that have it, whatever the tiles are.

Where tiles are uneven, those before and after do not nest: a new tile begins and ends within old ones. Each cell of
the old tiling that a new tile overlaps is a *piece*, a box of elements. Pieces go in rounds; in each a device sends at
most one and receives at most one, cut out of its buffer in one shape for all (the *chunk*), so that a round is one
permute. Pieces are cut so that chunks are as full as can be (see ``pieces``, ``rounds``, ``filled``).

A chunk keeps the global position of its elements, and lies within the receiver's new tile. It may hold more of the
sender's tile than was asked for: put where it belongs, that is right as well, so nothing has to be masked. Only where
it also reaches beyond the sender's tile the receiver leaves out what is not of that. What lies past the end of the
array is padding on both sides.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from meshwright.core.records import dataclass
from meshwright.sharding import AbstractMesh
from meshwright.spmd.reshard.pieces import Box, Piece, Sent, bound
from meshwright.spmd.reshard.rounds import MAX_ROUNDS, chunk_of, in_rounds

MAX_DEVICES = 256  # in a group that exchanges pieces

Table = tuple[int, ...]  # a number for each device of a group


class Tiling(NamedTuple):
    """An array padded to ``shape``, of which ``dims`` split each dimension."""

    shape: tuple[int, ...]
    dims: tuple[tuple[str, ...], ...]

    def rows(self, mesh: AbstractMesh) -> Box:
        """The shape of a device's buffer."""
        return tuple(-(-size // mesh.sizes(axes)) for size, axes in zip(self.shape, self.dims))


@dataclass(frozen=True)
class Round:
    """One chunk of each sender: of its buffer from ``takes[dim][device]`` on, put into the receiver's at
    ``puts[dim][device]``. ``perm`` holds pairs (sender, receiver); without any, devices keep what they have.

    ``valid`` says for some dimensions between which rows of the chunk that each device receives it holds something;
    ``receives``, which devices receive one.
    """

    chunk: Box
    perm: tuple[tuple[int, int], ...]
    takes: tuple[Table, ...]
    puts: tuple[Table, ...]
    valid: tuple[tuple[int, Table, Table], ...]
    receives: tuple[bool, ...]


@dataclass(frozen=True)
class Overlaps:
    """``rounds`` between the devices of groups over ``axes``, each of which ends with a buffer of ``rows``. Before they
    cut chunks out of theirs it is padded by ``margin``."""

    axes: tuple[str, ...]
    rows: Box
    margin: tuple[tuple[int, int], ...]
    rounds: tuple[Round, ...]

    @property
    def sent(self) -> tuple[int, ...]:
        """The elements that a device sends in each permute."""
        return tuple(math.prod(r.chunk) for r in self.rounds if r.perm)


def moving_axes(before: Tiling, after: Tiling, mesh: AbstractMesh) -> tuple[str, ...]:
    """The atoms of the dimensions whose tiles change."""
    pairs = zip(zip(*before), zip(*after))
    return mesh.in_mesh_order({a for mine, theirs in pairs if mine != theirs for a in (*mine[1], *theirs[1])})


@lru_cache(maxsize=4096)
def plan_overlaps(
    size: tuple[int, ...], before: Tiling, after: Tiling, mesh: AbstractMesh, start: int
) -> Overlaps | None:
    """How an array of ``size`` goes from tiles to tiles; None if that takes too many devices or rounds. ``start``: the
    elements that starting a permute counts for."""
    pieces = _all_pieces(size, before, after, mesh)
    exchanged = in_rounds([p for p in pieces if p.target not in p.holders], start) if pieces else None
    if exchanged is None:
        return None
    axes = moving_axes(before, after, mesh)
    held, goal = _starts(before, axes, mesh), _starts(after, axes, mesh)
    kept = [Sent(p.target, p) for p in pieces if p.target in p.holders]
    groups = [(kept, False)] * bool(kept) + [(group, True) for group in exchanged]
    have, want = before.rows(mesh), after.rows(mesh)
    cuts = [_cut(group, held, goal, have, want) for group, _ in groups]
    margin = tuple(
        (max([0, *(h[d] - b[d] for c in cuts for h, b in c.edges(held))]),
         max([0, *(b[d] + c.chunk[d] - h[d] - have[d] for c in cuts for h, b in c.edges(held))]))
        for d in range(len(size))
    )  # fmt: skip
    rounds = (_round(group, sent, c, margin, held, goal, have) for (group, sent), c in zip(groups, cuts))
    return Overlaps(axes, want, margin, tuple(rounds))


@lru_cache(maxsize=4096)
def least_overlaps(size: tuple[int, ...], before: Tiling, after: Tiling, mesh: AbstractMesh) -> float:
    """The elements that a device sends or receives at least; infinite if there are too many devices or pieces."""
    pieces = _all_pieces(size, before, after, mesh)
    return bound([p for p in pieces if p.target not in p.holders]) if pieces else math.inf


# --- pieces -------------------------------------------------------------------------------------------------
@lru_cache(maxsize=256)
def _all_pieces(size: tuple[int, ...], before: Tiling, after: Tiling, mesh: AbstractMesh) -> tuple[Piece, ...]:
    """What each device of a group has of each old tile in its new one; nothing if these are too many."""
    axes = moving_axes(before, after, mesh)
    if mesh.sizes(axes) > MAX_DEVICES or 0 in size:
        return ()
    held, goal = _starts(before, axes, mesh), _starts(after, axes, mesh)
    pieces: list[Piece] = []
    for of_target in _pieces(size, held, goal, before.rows(mesh), after.rows(mesh)):
        if len(of_target) > MAX_ROUNDS + 1:
            return ()
        pieces += of_target
    return tuple(pieces)


def _starts(tiling: Tiling, axes: tuple[str, ...], mesh: AbstractMesh) -> list[Box]:
    """Where the tile of each device of a group begins, in dimensions that ``axes`` split; else 0."""
    sizes = [mesh.axis_size(axis) for axis in axes]
    where = dict(zip(axes, np.indices(sizes).reshape(len(sizes), math.prod(sizes))))
    columns = []
    for mine, rows in zip(tiling.dims, tiling.rows(mesh)):
        number = np.zeros(math.prod(sizes), dtype=np.int64)
        for axis in mine if set(mine) <= set(axes) else ():
            number = number * mesh.axis_size(axis) + where[axis]
        columns.append((number * rows).tolist())
    return list(zip(*columns))


def _pieces(
    size: tuple[int, ...], held: Sequence[Box], goal: Sequence[Box], have: Box, want: Box
) -> Iterator[list[Piece]]:
    """For each device what its new tile has of each old one, and who holds that."""
    holders: dict[Box, list[int]] = defaultdict(list)
    for device, start in enumerate(held):
        holders[start].append(device)
    last = [max(starts) + rows for starts, rows in zip(zip(*held), have)]
    for target, start in enumerate(goal):
        spans = [
            [(tile, max(low, tile), min(low + rows, end, tile + mine))
             for tile in range(low // mine * mine, min(low + rows, end), mine) if low < end]
            for low, rows, mine, end in zip(start, want, have, map(min, size, last))
        ]  # fmt: skip
        cells = (tuple(zip(*cell)) for cell in itertools.product(*spans))
        yield [Piece(target, tuple(holders[tiles]), low, high) for tiles, low, high in cells]


# --- rounds -------------------------------------------------------------------------------------------------
class _Cut(NamedTuple):
    """A round's chunk, and where in the array that of each sender begins."""

    chunk: Box
    begins: Mapping[int, Box]

    def edges(self, held: Sequence[Box]) -> Iterator[tuple[Box, Box]]:
        """Where each sender's tile begins, and its chunk."""
        return ((held[source], begin) for source, begin in self.begins.items())


def _cut(group: Sequence[Sent], held: Sequence[Box], goal: Sequence[Box], have: Box, want: Box) -> _Cut:
    chunk = chunk_of(group)
    begins = {
        source: tuple(
            _begin(*args) for args in zip(piece.low, piece.high, chunk, held[source], have, goal[piece.target], want)
        )
        for source, piece in group
    }
    return _Cut(chunk, begins)


def _begin(low: int, high: int, chunk: int, held: int, have: int, goal: int, want: int) -> int:
    """Where a chunk begins that holds rows ``[low, high)`` and lies in the receiver's tile; in the sender's, too, if it
    can."""
    first, last = max(goal, high - chunk), min(low, goal + want - chunk)
    return min(max(first, min(max(first, held), held + have - chunk)), last)


def _round(
    group: Sequence[Sent],
    sent: bool,
    cut: _Cut,
    margin: Sequence[tuple[int, int]],
    held: Sequence[Box],
    goal: Sequence[Box],
    have: Box,
) -> Round:
    number, count = range(len(cut.chunk)), len(held)
    takes, puts, lows, highs = ([[0] * count for _ in number] for _ in range(4))
    for source, piece in group:
        for d, begin in enumerate(cut.begins[source]):
            mine = held[source][d]
            takes[d][source] = begin - mine + margin[d][0]
            puts[d][piece.target] = begin - goal[piece.target][d]
            lows[d][piece.target] = max(0, mine - begin)
            highs[d][piece.target] = min(cut.chunk[d], mine + have[d] - begin)
    receivers = {piece.target for _, piece in group}
    partly = [d for d in number if any(highs[d][t] - lows[d][t] < cut.chunk[d] for t in receivers)]
    return Round(
        cut.chunk,
        tuple(sorted((source, piece.target) for source, piece in group)) if sent else (),
        tuple(map(tuple, takes)),
        tuple(map(tuple, puts)),
        tuple((d, tuple(lows[d]), tuple(highs[d])) for d in partly),
        tuple(device in receivers for device in range(count)),
    )
