"""Overlaps: reshards between arbitrary tilings, in which every device receives the missing parts of its new tile.

Uneven tiles before and after a reshard do not nest: a new tile begins and ends within old ones. The intersection of a
new tile with an old one is a *piece*, a box of elements. Pieces are sent in rounds. In a round, each device sends at
most one chunk and receives at most one. All *chunks* of a round have the same shape, so that a round is one permute.
Pieces are cut so that chunks are as full as possible (see ``pieces``, ``rounds``, ``filled``).

The elements of a chunk keep their global positions, and a chunk lies within the receiver's new tile. It may contain
more elements of the sender's tile than the piece; these are also correct at their positions, so no masking is needed.
Only if a chunk extends beyond the sender's tile does the receiver mask the invalid elements. Elements past the end of
the array are padding on both sides. A device that relays sends a part of its new tile, which is also the receiver's;
of such a chunk, only the piece is used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from meshwright.core.records import dataclass
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.reshard.pieces import Box, Piece, Sent
from meshwright.spmd.reshard.rounds import MAX_ROUNDS, chunk_of, in_rounds

MAX_DEVICES = 256  # the maximum number of devices in a group that exchanges pieces
MAX_PIECES = 8192

Table = tuple[int, ...]  # a number for each device of a group


class Tiling(NamedTuple):
    """A tiling of an array padded to ``shape``: ``dims`` split its dimensions, and ``inner`` these tiles further."""

    shape: tuple[int, ...]
    dims: tuple[tuple[str, ...], ...]
    inner: tuple[tuple[str, ...], ...]

    @property
    def layout(self) -> Layout:
        return Layout(tuple(outer + inner for outer, inner in zip(self.dims, self.inner)))

    def rows(self, mesh: AbstractMesh) -> Box:
        """The shape of a device's buffer; a tile of a tile is as large as with a single split by all axes."""
        return self.layout.local_shape(self.shape, mesh)

    def spans(self, axes: tuple[str, ...], mesh: AbstractMesh) -> tuple[np.ndarray, np.ndarray]:
        """The start and end of the tile of each device of a group over ``axes``, in the dimensions that these split.

        In other dimensions, they are those of the first tile. A tile may start in the padding.
        """
        sizes = [mesh.axis_size(axis) for axis in axes]
        where = dict(zip(axes, np.indices(sizes).reshape(len(sizes), math.prod(sizes))))
        low, high = np.zeros((2, math.prod(sizes), len(self.shape)), dtype=np.int64)
        for dim, (rows, *splits) in enumerate(zip(self.shape, self.dims, self.inner)):
            moves = where.keys() >= {*itertools.chain(*splits)}
            high[:, dim] = rows if moves else self.rows(mesh)[dim]
            for split in splits if moves else ():
                rows = -(-rows // mesh.sizes(split))
                number = np.zeros(len(low), dtype=np.int64)
                for axis in split:
                    number = number * mesh.axis_size(axis) + where[axis]
                low[:, dim] += number * rows
                high[:, dim] = np.minimum(high[:, dim], low[:, dim] + rows)
        return low, high


def flat(shape: tuple[int, ...], dims: tuple[tuple[str, ...], ...]) -> Tiling:
    """The tiles of a layout."""
    return Tiling(shape, dims, ((),) * len(dims))


@dataclass(frozen=True)
class Round:
    """A round, in which each sender sends one chunk.

    The chunk starts at ``takes[dim][device]`` in the sender's buffer, and is written at ``puts[dim][device]`` in the
    receiver's. ``perm`` are pairs (sender, receiver); if it is empty, devices copy from their own buffers.

    ``valid`` has, for some dimensions, the range of valid rows in the chunk that each device receives. ``receives``
    tells which devices receive a chunk, and ``relays`` (if any) which devices send parts of their new buffer, which
    they have received before.
    """

    chunk: Box
    perm: tuple[tuple[int, int], ...]
    takes: tuple[Table, ...]
    puts: tuple[Table, ...]
    valid: tuple[tuple[int, Table, Table], ...]
    receives: tuple[bool, ...]
    relays: tuple[bool, ...]

    @property
    def sends_own(self) -> bool:
        """Whether a device sends from its old buffer. If not, no chunk is cut from that, as it may be too small."""
        return not self.relays or not all(self.relays[source] for source, _ in self.perm)


@dataclass(frozen=True)
class Overlaps:
    """The ``rounds`` between the devices of groups over ``axes``, whose new buffers have the shape ``rows``.

    The old buffers are padded by ``margin`` before chunks are cut from them.
    """

    axes: tuple[str, ...]
    rows: Box
    margin: tuple[tuple[int, int], ...]
    rounds: tuple[Round, ...]

    @property
    def sent(self) -> tuple[int, ...]:
        """The elements that a device sends in each permute."""
        return tuple(math.prod(r.chunk) for r in self.rounds if r.perm)


def moving_axes(before: Tiling, after: Tiling, mesh: AbstractMesh) -> tuple[str, ...]:
    """The atoms that shard the dimensions whose tiles change."""
    pairs = zip(zip(*before), zip(*after))
    return mesh.in_mesh_order({a for mine, theirs in pairs if mine != theirs for _, *splits in (mine, theirs)
                               for split in splits for a in split})  # fmt: skip


def pieces_between(size: tuple[int, ...], before: Tiling, after: Tiling, mesh: AbstractMesh) -> list[Piece] | None:
    """The pieces that devices lack of their new tiles; None if there are too many."""
    found = _shared(size, before, after, mesh)
    return list(found.lacked().pieces()) if found else None


@lru_cache(maxsize=4096)
def plan_overlaps(
    size: tuple[int, ...], before: Tiling, after: Tiling, mesh: AbstractMesh, start: int
) -> Overlaps | None:
    """The rounds that take an array of ``size`` from one tiling to another; None for too many devices or rounds.

    ``start``: the cost of starting a permute, in elements.
    """
    found, pieces = _shared(size, before, after, mesh), pieces_between(size, before, after, mesh)
    exchanged = in_rounds(pieces, start) if pieces is not None else None
    if found is None or exchanged is None:
        return None
    axes = moving_axes(before, after, mesh)
    held, goal = (list(map(tuple, tiling.spans(axes, mesh)[0].tolist())) for tiling in (before, after))
    ends = _Ends(held, goal, before.rows(mesh), after.rows(mesh))
    kept = [Sent(p.target, p) for p in found.kept().pieces()]
    groups = [(kept, False)] * bool(kept) + [(group, True) for group in exchanged]
    cuts = [_cut(group, ends) for group, _ in groups]
    margin = tuple(
        (max([0, *(h[d] - b[d] for c in cuts for h, b in c.edges(ends.held))]),
         max([0, *(b[d] + c.chunk[d] - h[d] - ends.have[d] for c in cuts for h, b in c.edges(ends.held))]))
        for d in range(len(size))
    )  # fmt: skip
    rounds = (_round(group, sent, c, margin, ends) for (group, sent), c in zip(groups, cuts))
    return Overlaps(axes, ends.want, margin, tuple(rounds))


@lru_cache(maxsize=4096)
def least_overlaps(size: tuple[int, ...], before: Tiling, after: Tiling, mesh: AbstractMesh) -> float:
    """A lower bound of the elements that some device sends or receives; infinite for too many devices or rounds."""
    found = _shared(size, before, after, mesh)
    if found is None or found.lacked().busiest(1) > MAX_ROUNDS:
        return math.inf
    return found.lacked().busiest(found.lacked().sizes)


# --- pieces -------------------------------------------------------------------------------------------------
class _Shared(NamedTuple):
    """The intersections of new tiles with old ones: the device of the new tile, the old tile, and the box of each.

    ``holders`` are the devices that hold each old tile.
    """

    target: np.ndarray
    tile: np.ndarray
    low: np.ndarray
    high: np.ndarray
    holders: tuple[tuple[int, ...], ...]
    own: np.ndarray  # whether the device holds the old tile itself

    def _where(self, chosen: np.ndarray) -> _Shared:
        return self._replace(
            target=self.target[chosen],
            tile=self.tile[chosen],
            low=self.low[chosen],
            high=self.high[chosen],
            own=self.own[chosen],
        )

    def lacked(self) -> _Shared:
        return self._where(~self.own)

    def kept(self) -> _Shared:
        return self._where(self.own)

    @property
    def sizes(self) -> np.ndarray:
        sizes: np.ndarray = (self.high - self.low).prod(axis=1)
        return sizes

    def busiest(self, each: np.ndarray | int) -> float:
        """The work of the busiest device, where each box counts ``each``.

        A device receives its boxes, and sends a share of those of its tile, each of which its holders send once.
        """
        weights = np.broadcast_to(each, self.target.shape)
        _, first = np.unique(np.column_stack([self.tile, self.low]), axis=0, return_index=True)
        sent = np.bincount(self.tile[first], weights[first], len(self.holders)) / [len(d) for d in self.holders]
        return float(max(np.bincount(self.target, weights, 1).max(), sent.max()))

    def pieces(self) -> Iterator[Piece]:
        for target, tile, low, high in zip(*(column.tolist() for column in self[:4])):
            yield Piece(target, self.holders[tile], tuple(low), tuple(high))


@lru_cache(maxsize=256)
def _shared(size: tuple[int, ...], before: Tiling, after: Tiling, mesh: AbstractMesh) -> _Shared | None:
    """The intersections for the devices of a group; None if there are too many devices or boxes."""
    axes = moving_axes(before, after, mesh)
    if mesh.sizes(axes) > MAX_DEVICES or 0 in size:
        return None
    (held, ends), goal = before.spans(axes, mesh), after.spans(axes, mesh)
    _, first, tile = np.unique(held, axis=0, return_index=True, return_inverse=True)
    tile = tile.reshape(-1)
    low = np.maximum(goal[0][:, None], held[first])
    high = np.minimum(np.minimum(goal[1], size)[:, None], ends[first])
    target, source = np.nonzero((low < high).all(axis=2))
    if len(target) > MAX_PIECES:
        return None
    holders = tuple(tuple(np.flatnonzero(tile == number).tolist()) for number in range(len(first)))
    return _Shared(target, source, low[target, source], high[target, source], holders, tile[target] == source)


# --- rounds -------------------------------------------------------------------------------------------------
class _Ends(NamedTuple):
    """Where the old and the new tile of each device begin, and the shapes of the buffers that devices have and want."""

    held: Sequence[Box]
    goal: Sequence[Box]
    have: Box
    want: Box


class _Cut(NamedTuple):
    """A round's chunk, the start of each sender's chunk in the array, and the senders that relay."""

    chunk: Box
    begins: Mapping[int, Box]
    relays: frozenset[int]

    def edges(self, held: Sequence[Box]) -> Iterator[tuple[Box, Box]]:
        """The starts of the tile and of the chunk, for each sender that does not relay."""
        return ((held[source], begin) for source, begin in self.begins.items() if source not in self.relays)


def _cut(group: Sequence[Sent], ends: _Ends) -> _Cut:
    held, goal, have, want = ends
    chunk = chunk_of(group)
    begins = {
        source: tuple(
            _begin(*args) for args in zip(piece.low, piece.high, chunk, held[source], have, goal[piece.target], want)
        )
        for source, piece in group
    }
    return _Cut(chunk, begins, frozenset(source for source, piece in group if source not in piece.holders))


def _begin(low: int, high: int, chunk: int, held: int, have: int, goal: int, want: int) -> int:
    """The start of a chunk that contains rows ``[low, high)`` and is inside the receiver's tile.

    If possible, it is inside the sender's tile too.
    """
    first, last = max(goal, high - chunk), min(low, goal + want - chunk)
    return min(max(first, min(max(first, held), held + have - chunk)), last)


def _round(group: Sequence[Sent], sent: bool, cut: _Cut, margin: Sequence[tuple[int, int]], ends: _Ends) -> Round:
    held, goal, have, _ = ends
    number, count = range(len(cut.chunk)), len(held)
    takes, puts, lows, highs = ([[0] * count for _ in number] for _ in range(4))
    for source, piece in group:
        relays = source in cut.relays
        for d, begin in enumerate(cut.begins[source]):
            mine = held[source][d]
            low, high = (piece.low[d], piece.high[d]) if relays else (mine, mine + have[d])
            takes[d][source] = begin - (goal[source][d] if relays else mine - margin[d][0])
            puts[d][piece.target] = begin - goal[piece.target][d]
            lows[d][piece.target] = max(0, low - begin)
            highs[d][piece.target] = min(cut.chunk[d], high - begin)
    receivers = {piece.target for _, piece in group}
    partly = [d for d in number if any(highs[d][t] - lows[d][t] < cut.chunk[d] for t in receivers)]
    return Round(
        cut.chunk,
        tuple(sorted((source, piece.target) for source, piece in group)) if sent else (),
        tuple(map(tuple, takes)),
        tuple(map(tuple, puts)),
        tuple((d, tuple(lows[d]), tuple(highs[d])) for d in partly),
        tuple(device in receivers for device in range(count)),
        tuple(device in cut.relays for device in range(count)) if cut.relays else (),
    )
