"""Two-phase schedules: pieces go to one of the devices that will hold them, which sends them on to the others.

Devices that will hold the same tile are a *class*. In the first phase, each piece leaves its holders once, to a device
of the class; each such device gets an equal share, of adjacent pieces. In the second phase, pieces go from there to the
rest of the class, as do pieces that a device of the class held from the start, in boxes as large as possible. (This is
an all-to-all followed by an all-gather, but with parts of different sizes, and without sending pieces to devices that
hold them.) If the holders are the bottleneck, this is better than a schedule built round by round (see ``relayed``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from meshwright.spmd.reshard.pieces import Piece, Slotted
from meshwright.spmd.reshard.relayed import groups_of, leaders_of


def in_turns(slotted: Sequence[Slotted]) -> tuple[list[Slotted], list[Piece]]:
    """The pieces sent in the first and in the second phase; the latter with their holders after the first phase."""
    first: list[Slotted] = []
    then: dict[tuple[tuple[int, ...], int], list[Piece]] = defaultdict(list)
    for members in _classes(slotted):
        for group, having in _entered(members):
            entry = [item for item in group if item.piece.target in having]
            first += entry
            for piece in (item.piece for item in group if item not in entry):
                then[having, piece.target].append(piece._replace(holders=having))
    return first, [piece for pieces in then.values() for piece in _joined(pieces)]


def _classes(slotted: Sequence[Slotted]) -> Iterable[list[list[Slotted]]]:
    """The copies of each piece, grouped by the class of their targets."""
    pieces = [item.piece for item in slotted]
    leaders = leaders_of(pieces)
    classes: dict[int, list[list[Slotted]]] = defaultdict(list)
    for group in groups_of(pieces):
        classes[leaders[pieces[group[0]].target]].append([slotted[number] for number in group])
    return classes.values()


def _entered(members: Sequence[list[Slotted]]) -> Iterator[tuple[list[Slotted], tuple[int, ...]]]:
    """The copies of each piece, with the devices of the class that hold it after the first phase."""
    devices = {item.piece.target for group in members for item in group}
    load: Counter[int] = Counter()
    incoming = []
    for group in sorted(members, key=lambda group: group[0].piece.low):
        piece = group[0].piece
        if inside := tuple(devices.intersection(piece.holders)):
            load.update(dict.fromkeys(inside, piece.size // len(inside)))
            yield group, inside
        else:
            incoming.append(group)
    equal = (load.total() + sum(group[0].piece.size for group in incoming)) / len(devices)
    for group in incoming:
        half = group[0].piece.size / 2
        entry = min((item.piece.target for item in group), key=lambda device: (load[device] + half > equal, device))
        load[entry] += group[0].piece.size
        yield group, (entry,)


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Join adjacent pieces, along one dimension after the other."""
    for dim in range(len(pieces[0].low)):
        joined: list[Piece] = []
        for piece in sorted(pieces, key=lambda piece: (*_across(piece, dim), piece.low[dim])):
            last = joined[-1] if joined else None
            if last and _across(last, dim) == _across(piece, dim) and last.high[dim] == piece.low[dim]:
                joined[-1] = last._replace(high=piece.high)
            else:
                joined.append(piece)
        pieces = joined
    return list(pieces)


def _across(piece: Piece, dim: int) -> tuple[int, ...]:
    """The bounds of a piece in the other dimensions."""
    return piece.low[:dim] + piece.low[dim + 1 :] + piece.high[:dim] + piece.high[dim + 1 :]
