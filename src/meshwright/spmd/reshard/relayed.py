"""Rounds with relays: a device passes pieces that it has received on to others that lack the same pieces.

If several devices will hold the same tile, and few hold parts of it now, these few would have to send everything
several times. So a linear program first balances the load: each piece leaves its holders at least once, and any device
that will hold it may relay it. Then each round is an assignment of senders to receivers, as in ``filled``, in which
devices with the most remaining work have priority; a device can send only what it already has.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.core.late import LateModule
from meshwright.spmd.reshard.pieces import SPARE, Piece, Sent, Slotted, cut_to_slots

_optimize, _sparse = LateModule("scipy.optimize"), LateModule("scipy.sparse")
TRIED = 6  # the maximum number of chunks that are tried, the largest first
PARTS = (1, 2, 4)  # the numbers of parts into which slots are cut, so that more devices are busy
POWER = 4  # the exponent of the priority of devices with more remaining work
OTHERS = 0.1  # the factor for the worth of a send by a device that should not send the piece

Groups = list[list[int]]  # numbers of equal pieces, which differ in their targets


def groups_of(pieces: Sequence[Piece]) -> Groups:
    groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for number, piece in enumerate(pieces):
        groups.setdefault((piece.low, piece.high), []).append(number)
    return list(groups.values())


def leaders_of(pieces: Sequence[Piece]) -> dict[int, int]:
    """For each target, the first of the devices that will hold the same tile."""
    leaders: dict[int, int] = {}
    for group in groups_of(pieces):
        targets = [pieces[number].target for number in group]
        for target in targets:
            leaders[target] = min(*targets, leaders.get(target, target))
    return leaders


def slots_of(pieces: Sequence[Piece], most: int) -> Iterator[list[Slotted]]:
    """The pieces, cut so that all new tiles have equal slots: as large as possible, and divided into several parts.

    Those that need more than ``most`` rounds are omitted.
    """
    leaders = leaders_of(pieces)
    sides = [lambda piece: leaders[piece.target]] * len(pieces[0].low)
    slotted = cut_to_slots(pieces, sides, SPARE)
    for number in PARTS:
        parts = [part for item in slotted for part in _parts(item, number)]
        if max(Counter(item.piece.target for item in parts).values()) <= most:
            yield parts


def _parts(item: Slotted, number: int) -> Iterator[Slotted]:
    """Cut a piece along the dimension in which its slot is longest."""
    piece, slot = item
    dim = max(range(len(slot)), key=slot.__getitem__)
    rows = -(-slot[dim] // number)
    for low in range(piece.low[dim], piece.high[dim], rows):
        high = min(low + rows, piece.high[dim])
        cut = piece._replace(low=_with(piece.low, dim, low), high=_with(piece.high, dim, high))
        yield Slotted(cut, _with(slot, dim, rows))


def _with(box: tuple[int, ...], dim: int, rows: int) -> tuple[int, ...]:
    return (*box[:dim], rows, *box[dim + 1 :])


# --- assignment of senders ----------------------------------------------------------------------------------
def least_relayed(pieces: Sequence[Piece]) -> float:
    """A lower bound of the elements that some device sends or receives, if devices only get what they will hold."""
    return _shared_out(pieces, groups_of(pieces), [piece.size for piece in pieces])[0]


def _shared_out(
    pieces: Sequence[Piece], groups: Groups, sizes: Sequence[float]
) -> tuple[float, list[dict[int, float]]]:
    """The work of the busiest device, and for each group the amount that each device sends of all copies."""
    pairs = [(g, device) for g, group in enumerate(groups) for device in _able(pieces, group)]
    of, sender = np.array(pairs).T
    devices = 1 + max(max(piece.target, *piece.holders) for piece in pieces)
    received = np.bincount([piece.target for piece in pieces], sizes)
    size = np.array([sizes[group[0]] for group in groups])
    holds = np.array([device in pieces[groups[g][0]].holders for g, device in pairs])
    number = np.arange(1, len(pairs) + 1)  # the first unknown is the most that a device has to do
    rows = np.concatenate([sender, devices + of[holds], np.arange(devices)])
    columns = np.concatenate([number, number[holds], np.zeros(devices, int)])
    signs = np.concatenate([np.ones(len(pairs)), -np.ones(holds.sum() + devices)])
    found = _optimize.linprog(
        np.eye(1, len(pairs) + 1)[0],
        A_ub=_sparse.csr_matrix((signs, (rows, columns)), (devices + len(groups), len(pairs) + 1)),
        b_ub=np.concatenate([np.zeros(devices), -size]),
        A_eq=_sparse.csr_matrix((np.ones(len(pairs)), (of, number)), (len(groups), len(pairs) + 1)),
        b_eq=size * [len(group) for group in groups],
        bounds=[(received.max(), None), *[(0, None)] * len(pairs)],
        method="highs-ds",
    ).x
    shares: list[dict[int, float]] = [{} for _ in groups]
    for (g, device), share in zip(pairs, found[1:].tolist()):
        shares[g][device] = share
    return float(found[0]), shares


def _able(pieces: Sequence[Piece], group: Sequence[int]) -> list[int]:
    """The devices that may send the piece of a group: its holders and its targets."""
    return sorted({*pieces[group[0]].holders, *(pieces[number].target for number in group)})


class _Sends(NamedTuple):
    """The remaining sends, a row each: number, size and slot of the piece, its target, and its preferred senders."""

    item: np.ndarray
    size: np.ndarray
    slot: np.ndarray
    target: np.ndarray
    senders: np.ndarray

    def only(self, chosen: np.ndarray) -> _Sends:
        return _Sends(*(column[chosen] for column in self))

    def without(self, done: np.ndarray) -> _Sends:
        return self.only(np.delete(np.arange(len(self.item)), done))

    def loads(self) -> tuple[np.ndarray, np.ndarray]:
        """The amounts that each device has to receive, and to send if the preferred senders share each piece."""
        shared = self.size / self.senders.sum(axis=1)
        return np.bincount(self.target, self.size, self.senders.shape[1]), shared @ self.senders

    def most(self) -> float:
        received, sent = self.loads()
        return float(max(received.max(), sent.max()))


def _settled(slotted: Sequence[Slotted]) -> tuple[_Sends, np.ndarray]:
    """All sends with preferred senders; and the holders of each piece, by the number of the first of its group."""
    pieces = [item.piece for item in slotted]
    groups, size = groups_of(pieces), np.array([float(math.prod(item.slot)) for item in slotted])
    devices = 1 + max(max(piece.target, *piece.holders) for piece in pieces)
    held, senders = np.zeros((2, len(pieces), devices), bool)
    item = np.zeros(len(pieces), np.int64)
    for group, share in zip(groups, _shared_out(pieces, groups, size.tolist())[1]):
        item[group] = group[0]
        held[group[0], list(pieces[group[0]].holders)] = True
        for number, chosen in _chosen(pieces, group, share, size[group[0]]):
            senders[number, list(chosen)] = True
    target = np.array([piece.target for piece in pieces])
    sends = _Sends(item, size, np.array([item.slot for item in slotted]), target, senders)
    return sends.only(np.lexsort((-size, target))), held


def _chosen(
    pieces: Sequence[Piece], group: Sequence[int], share: dict[int, float], size: float
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The senders of each piece of a group: holders send to the devices that relay most, and these to the others."""
    holders, left = pieces[group[0]].holders, dict(share)
    direct = max(1, round(sum(share[device] for device in holders) / size))
    order = sorted(group, key=lambda number: -share[pieces[number].target])
    for place, number in enumerate(order):
        if place < direct:
            yield number, holders
        else:
            source = max((pieces[before].target for before in order[:place]), key=left.__getitem__)
            left[source] -= size
            yield number, (source,)


# --- rounds -------------------------------------------------------------------------------------------------
class _Turn(NamedTuple):
    """A round: its cost beyond the work that it does, its chunk, the sends that it does, and their sources."""

    price: float
    chunk: int
    done: np.ndarray
    sources: np.ndarray


def relayed(slotted: Sequence[Slotted], start: int, most: int, below: float = math.inf) -> list[list[Sent]] | None:
    """Assign the pieces to rounds; None for more than ``most`` rounds, or if they cost ``below`` or more.

    ``start`` is the cost of a round besides its chunk. A sender that is not a holder of a piece has received it in an
    earlier round.
    """
    sends, held = _settled(slotted)
    rounds: list[list[Sent]] = []
    spent = 0
    while len(sends.item):
        fewest = int(np.bincount(sends.target).max())
        if len(rounds) + fewest > most or spent + np.bincount(sends.target, sends.size).max() + start * fewest >= below:
            return None
        turn = _best(sends, held, start)
        spent += turn.chunk + start
        items, targets = sends.item[turn.done], sends.target[turn.done]
        held[items, targets] = True
        who = zip(items.tolist(), targets.tolist(), turn.sources.tolist())
        rounds.append([Sent(source, slotted[item].piece._replace(target=target)) for item, target, source in who])
        sends = sends.without(turn.done)
    return rounds


def _best(sends: _Sends, held: np.ndarray, start: float) -> _Turn:
    chunks = np.unique(sends.slot, axis=0)
    chunks = chunks[np.argsort(-chunks.prod(axis=1), kind="stable")][:TRIED]
    return min((_assigned(sends, held, chunk, start) for chunk in chunks), key=lambda turn: turn.price)


def _assigned(sends: _Sends, held: np.ndarray, chunk: np.ndarray, start: float) -> _Turn:
    """The sends of a round with this chunk; devices with the most remaining work have priority."""
    rows = np.flatnonzero((sends.slot <= chunk).all(axis=1))
    received, sent = sends.loads()
    most, size = sends.most(), int(chunk.prod())
    urgent = (received[sends.target[rows], None] / most) ** POWER + (sent / most) ** POWER
    able = held[sends.item[rows]] * np.where(sends.senders[rows], 1, OTHERS)
    worth = able * sends.size[rows, None] * (1 + urgent)
    first = np.flatnonzero(np.diff(sends.target[rows], prepend=-1))
    to, source = _optimize.linear_sum_assignment(np.maximum.reduceat(worth, first, axis=0), maximize=True)
    ends = itertools.pairwise([*first.tolist(), len(rows)])
    best = [low + worth[low:high].argmax(axis=0) for low, high in ends]
    chosen = np.array([best[row][device] for row, device in zip(to, source)])
    useful = worth[chosen, source] > 0
    done = rows[chosen[useful]]
    rest = sends.without(done)
    left = rest.most() if len(rest.item) else 0
    return _Turn((size + left - most + start) / size, size, done, source[useful])
