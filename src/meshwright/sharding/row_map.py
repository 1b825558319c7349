"""Plans for moving rows between devices, when tiles of arrays are assembled from rows of other tiled arrays.

Slices, concatenations, paddings and rotations along one dimension are index maps from rows to rows. Siblings and chains
of them are combined into one map (:class:`RowMap`). If the dimension is split, a map is a set of messages between
devices, sent in rounds: in each, a device sends at most one message and receives at most one. The edges of a bipartite
graph can be coloured with as many colours as its largest degree (Kőnig 1916), so there are no more rounds than messages
at the busiest device. If gathering all tiles sends less, they are gathered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import count
from typing import NamedTuple

from meshwright.core.records import dataclass

#: the source of rows that are zero
ZEROS = -1


#: the most pieces into which all tiles are cut at the same rows; with more, slots are laid over each other
MOST_PIECES = 6
#: by node and colour: the edge
_Used = dict[int, dict[int, int]]


class Span(NamedTuple):
    """Rows ``[low, high)`` of a source; of :data:`ZEROS`, that many rows of zeros."""

    source: int
    low: int
    high: int

    @property
    def rows(self) -> int:
        return self.high - self.low


Spans = tuple[Span, ...]


@dataclass(frozen=True)
class RowMap:
    """Targets made of rows of sources. ``sources`` are their numbers of rows; a target concatenates its spans."""

    sources: tuple[int, ...]
    targets: tuple[Spans, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of rows of each target."""
        return tuple(sum(span.rows for span in spans) for spans in self.targets)

    def plan(self, tiles: int) -> RowPlan:
        """How the rows move if sources and targets are split into ``tiles`` tiles."""
        return _plan(self, tiles)

    def of(self, number: int, inner: RowMap, target: int) -> RowMap:
        """The composition in which source ``number`` is target ``target`` of ``inner``, whose sources come last."""
        rest = [i for i in range(len(self.sources)) if i != number]
        place = {old: new for new, old in enumerate(rest)} | {ZEROS: ZEROS}
        sources = (*(self.sources[i] for i in rest), *inner.sources)
        shifted = [Span(s if s == ZEROS else s + len(rest), a, b) for s, a, b in inner.targets[target]]

        def through(span: Span) -> Iterator[Span]:
            if span.source == number:
                yield from cut(shifted, span.low, span.high)
            else:
                yield span._replace(source=place[span.source])

        return RowMap(sources, tuple(tuple(s for span in spans for s in through(span)) for spans in self.targets))


def cut(spans: Sequence[Span], low: int, high: int) -> Iterator[Span]:
    """Rows ``[low, high)`` of the concatenation of spans."""
    at = 0
    for source, first, last in spans:
        a, b = max(low - at, 0), min(high - at, last - first)
        if a < b:
            yield Span(source, first + a, first + b)
        at += last - first


@dataclass(frozen=True)
class MovedRows:
    """The :data:`~meshwright.sharding.rule.Passes` of an op that moves rows."""

    map: RowMap

    def __call__(self, tiles: int) -> float:
        held = sum(-(-size // tiles) for size in self.map.sources)
        return self.map.plan(tiles).sent / held if held else 0.0


# --- plans --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Round:
    """A message of ``length`` rows from each sender to its receiver, by the pairs ``perm``.

    Tile ``t`` sends from row ``starts[t]`` of the concatenation of its source tiles.
    """

    length: int
    starts: tuple[int, ...]
    perm: tuple[tuple[int, int], ...]

    @property
    def goes_up(self) -> bool:
        """Whether every message goes to a later tile."""
        return all(source < target for source, target in self.perm)


@dataclass(frozen=True)
class Slot:
    """Some rows of a target's tile: those from row ``at[t]`` on are the buffer's from row ``starts[t]`` on.

    If ``at`` differs between tiles, each slot overwrites the ends of the slots before it.
    """

    at: tuple[int, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True)
class RowPlan:
    """How rows move.

    The buffer is the concatenation of the messages of rounds that go up, the tiles of the sources, the messages of the
    other rounds, and ``zeros`` rows of zeros; with ``gather``, of the whole sources and zeros. ``targets`` says where
    the rows of each target are in it. ``sent`` is the number of rows that a device sends.
    """

    rounds: tuple[Round, ...]
    targets: tuple[tuple[Slot, ...], ...]
    gather: bool
    zeros: int
    sent: int


class _Message(NamedTuple):
    source: int
    low: int
    high: int
    sender: int
    receiver: int


class _Segment(NamedTuple):
    """``rows`` rows of a target's tile from row ``at`` on, which are those of ``source`` from row ``low`` on."""

    at: int
    rows: int
    source: int
    low: int


@lru_cache(maxsize=4096)
def _plan(m: RowMap, tiles: int) -> RowPlan:
    held = [-(-size // tiles) for size in m.sources]
    segments = [[_segments(spans, size, tiles, t, held) for t in range(tiles)]
                for spans, size in zip(m.targets, m.sizes)]  # fmt: skip
    messages = _messages(segments, tiles, held)
    rounds = _rounds(messages, tiles, held)
    sent = sum(r.length for r, _ in rounds)
    zeros = max((s.rows for target in segments for tile in target for s in tile if s.source == ZEROS), default=0)
    whole = (tiles - 1) * sum(held)
    gather = sent > whole
    place = _whole_places(held, tiles) if gather else _Places(rounds, held)
    slots = tuple(
        _slots([[_Placed(s.at, s.rows, place(t, s)) for s in tile] for t, tile in enumerate(target)], -(-size // tiles))
        for target, size in zip(segments, m.sizes)
    )
    if gather:
        return RowPlan((), slots, True, zeros, whole)
    return RowPlan(tuple(r for r, _ in rounds), slots, False, zeros, sent)


def _segments(spans: Spans, size: int, tiles: int, tile: int, held: Sequence[int]) -> list[_Segment]:
    """The rows of a tile of a target, cut at the ends of the sources' tiles."""
    rows = -(-size // tiles)
    at, segments = 0, []
    for source, low, high in cut(spans, min(tile * rows, size), min((tile + 1) * rows, size)):
        while low < high:
            end = high if source == ZEROS else min(high, (low // held[source] + 1) * held[source])
            segments.append(_Segment(at, end - low, source, low))
            at += end - low
            low = end
    return segments


def _messages(segments: Sequence[Sequence[Sequence[_Segment]]], tiles: int, held: Sequence[int]) -> list[_Message]:
    """The rows that each tile lacks, with adjacent rows of one sender merged, longest first."""
    messages: list[_Message] = []
    for t in range(tiles):
        needed = {(s.source, s.low, s.low + s.rows) for target in segments for s in target[t] if s.source != ZEROS}
        lacking: list[_Message] = []
        for source, low, high in sorted(needed):
            sender, last = low // held[source], lacking[-1] if lacking else None
            if sender == t:
                continue
            if last and last.source == source and last.sender == sender and low <= last.high:
                lacking[-1] = last._replace(high=max(last.high, high))
            else:
                lacking.append(_Message(source, low, high, sender, t))
        messages += lacking
    return sorted(messages, key=lambda m: m.low - m.high)


def _rounds(messages: Sequence[_Message], tiles: int, held: Sequence[int]) -> list[tuple[Round, list[_Message]]]:
    """The messages by round. Offsets are in the concatenation of a device's source tiles."""
    colours = coloured([(m.sender, m.receiver) for m in messages])
    groups: dict[int, list[_Message]] = {}
    for message, colour in zip(messages, colours):
        groups.setdefault(colour, []).append(message)
    rounds = []
    for group in groups.values():
        length = max(m.high - m.low for m in group)
        starts = {m.sender: min(_own(m.source, m.low, held), sum(held) - length) for m in group}
        usual = next(iter(starts.values()))
        perm = tuple(sorted((m.sender, m.receiver) for m in group))
        rounds.append((Round(length, tuple(starts.get(t, usual) for t in range(tiles)), perm), group))
    return sorted(rounds, key=lambda r: not r[0].goes_up)


def _own(source: int, low: int, held: Sequence[int]) -> int:
    """The position of a row in the concatenation of a device's source tiles."""
    return sum(held[:source]) + low % held[source]


def coloured(edges: Sequence[tuple[int, int]]) -> list[int]:
    """A colour for each edge (left node, right node), different at each node, with as few as the largest degree."""
    left: _Used = {i: {} for i, _ in edges}
    right: _Used = {j: {} for _, j in edges}
    most = max((*Counter(i for i, _ in edges).values(), *Counter(j for _, j in edges).values()), default=0)
    colours = [0] * len(edges)
    for e, (i, j) in enumerate(edges):
        free = next(c for c in count() if c not in left[i] and c not in right[j])
        if free >= most:
            free = next(c for c in count() if c not in left[i])
            _swap(edges, colours, (right, left), j, free, next(c for c in count() if c not in right[j]))
        colours[e] = free
        left[i][free] = right[j][free] = e
    return colours


def _swap(
    edges: Sequence[tuple[int, int]],
    colours: list[int],
    sides: tuple[_Used, _Used],
    node: int,
    first: int,
    second: int,
) -> None:
    """Swap two colours along the alternating path that starts at a right node with an edge of colour ``first``."""
    path, side, colour = [], 0, first
    while colour in sides[side].get(node, {}):
        path.append(sides[side][node][colour])
        node = edges[path[-1]][side]
        side, colour = 1 - side, second if colour == first else first
    right, left = sides
    for e in path:
        i, j = edges[e]
        del left[i][colours[e]], right[j][colours[e]]
    for e in path:
        i, j = edges[e]
        colours[e] = second if colours[e] == first else first
        left[i][colours[e]] = right[j][colours[e]] = e


# --- positions of rows --------------------------------------------------------------------------------------
class _Placed(NamedTuple):
    """Rows of a tile from ``at`` on, with their position in the buffer."""

    at: int
    rows: int
    start: int


class _Places:
    """The positions of source rows in a device's buffer after the rounds."""

    def __init__(self, rounds: Sequence[tuple[Round, list[_Message]]], held: Sequence[int]) -> None:
        self.held = held
        self.came: dict[tuple[int, int], list[tuple[_Message, int]]] = {}
        end = sum(r.length for r, _ in rounds if r.goes_up)
        self.own, front, end = end, 0, end + sum(held)
        for r, group in rounds:
            begin = front if r.goes_up else end
            front, end = (front + r.length, end) if r.goes_up else (front, end + r.length)
            for m in group:
                first = begin + _own(m.source, m.low, held) - r.starts[m.sender]
                self.came.setdefault((m.receiver, m.source), []).append((m, first))
        self.zeros = end

    def __call__(self, tile: int, s: _Segment) -> int:
        if s.source == ZEROS:
            return self.zeros
        if s.low // self.held[s.source] == tile:
            return self.own + _own(s.source, s.low, self.held)
        return next(first + s.low - m.low for m, first in self.came[tile, s.source] if m.low <= s.low < m.high)


def _whole_places(held: Sequence[int], tiles: int) -> Callable[[int, _Segment], int]:
    """The positions of source rows in the concatenation of the whole sources."""
    begins = [tiles * sum(held[:source]) for source in range(len(held))]
    zeros = tiles * sum(held)
    return lambda _, s: zeros if s.source == ZEROS else begins[s.source] + s.low


def _slots(by_tile: Sequence[Sequence[_Placed]], rows: int) -> tuple[Slot, ...]:
    """The slots for the rows of all tiles, cut at the same rows in all of them if that makes few pieces."""
    tiles = [_contiguous(placed) for placed in by_tile]
    cuts = sorted({p.at for placed in tiles for p in placed} | {0})
    if len(cuts) <= MOST_PIECES:
        return tuple(_slot(tiles, at) for at in cuts)
    slots = []
    for n in range(max(map(len, tiles))):
        there = [placed[n] if n < len(placed) else _Placed(rows, 0, 0) for placed in tiles]
        slots.append(Slot(tuple(p.at for p in there), tuple(p.start for p in there)))
    return tuple(slots)


def _contiguous(placed: Sequence[_Placed]) -> list[_Placed]:
    joined: list[_Placed] = []
    for p in placed:
        last = joined[-1] if joined else None
        if last and last.start + last.rows == p.start:
            joined[-1] = last._replace(rows=last.rows + p.rows)
        else:
            joined.append(p)
    return joined


def _slot(tiles: Sequence[Sequence[_Placed]], at: int) -> Slot:
    """The slot from row ``at`` of every tile on. Tiles without this row, which is padding, take any start."""
    starts = [next((p.start + at - p.at for p in placed if p.at <= at < p.at + p.rows), None) for placed in tiles]
    usual = next((s for s in starts if s is not None), 0)
    return Slot((at,) * len(tiles), tuple(usual if s is None else s for s in starts))
