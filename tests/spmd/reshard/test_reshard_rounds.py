"""Pieces in rounds: everything is sent once, each device sends and receives one piece a round, and rounds are full."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from meshwright.spmd.reshard.filled import filled
from meshwright.spmd.reshard.pieces import SIDES, SPARE, Piece, bound, cut_to_slots, shared_cuts
from meshwright.spmd.reshard.relayed import least_relayed
from meshwright.spmd.reshard.rounds import MAX_ROUNDS, Rounds, chunk_of, cost, in_rounds


def transposed(size, rows, columns, copies=1):
    """Rows of a matrix become columns; ``copies`` devices hold each tile of rows, and of columns."""
    heights, widths = (list(itertools.pairwise([*range(0, n, -(-n // k)), n])) for n, k in zip(size, (rows, columns)))
    every = [
        Piece(target * copies + copy, tuple(range(tile * copies, tile * copies + copies)), (top, left), (below, right))
        for (tile, (top, below)), (target, (left, right)) in itertools.product(enumerate(heights), enumerate(widths))
        for copy in range(copies)
    ]
    return [piece for piece in every if piece.target not in piece.holders]


def scattered(seed):
    """Boxes between random devices, of each pair at most one."""
    rng = random.Random(seed)
    count = rng.randint(2, 9)
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b and rng.random() < 0.6]
    corner = [(rng.randint(1, 9), rng.randint(1, 9)) for _ in pairs]
    return [Piece(b, (a,), (100 * a, 100 * b), (100 * a + h, 100 * b + w)) for (a, b), (h, w) in zip(pairs, corner)]


def check(pieces: list[Piece], rounds: Rounds) -> None:
    """Every element that a device lacks comes once, from one that holds it, or has received it before."""
    wanted = {(piece.target, piece.holders): piece for piece in pieces}
    came = {key: np.zeros(piece.shape, int) for key, piece in wanted.items()}
    for group in rounds:
        before = {key: times.copy() for key, times in came.items()}
        assert len({sent.source for sent in group}) == len({sent.piece.target for sent in group}) == len(group)
        for source, piece in group:
            whole = wanted[piece.target, piece.holders]
            assert piece.size
            if source not in piece.holders:
                has = wanted[source, piece.holders]
                where = tuple(slice(a - low, b - low) for a, b, low in zip(piece.low, piece.high, has.low))
                assert before[source, piece.holders][where].all()
            assert all(0 <= a - low and b <= high for a, b, low, high in zip(*piece[2:], *whole[2:]))
            came[piece.target, piece.holders][
                tuple(slice(a - low, b - low) for a, b, low in zip(piece.low, piece.high, whole.low))
            ] += 1
    assert all((times == 1).all() for times in came.values())


def ratio(pieces):
    rounds = in_rounds(pieces, 0)
    check(pieces, rounds)
    assert len(rounds) <= MAX_ROUNDS
    return cost(rounds, 0) / bound(pieces)


def test_equal_pieces_take_as_many_rounds_as_the_busiest_device_has():
    for count in (2, 4, 8, 32):
        assert ratio(transposed((64, 64), count, count)) == 1
    assert ratio(transposed((64, 64), 8, 4)) == 1
    assert ratio(transposed((64, 64), 4, 4, copies=2)) == 1
    for seed in range(8):  # graphs that first fit colours with more
        rng = random.Random(seed)
        shuffles = [rng.sample(range(12), 12) for _ in range(6)]
        pairs = sorted(
            {(a, b) for order in shuffles for a, b in enumerate(order) if a != b}, key=lambda _: rng.random()
        )
        assert ratio([Piece(b, (a,), (20 * a, 20 * b), (20 * a + 3, 20 * b + 5)) for a, b in pairs]) == 1


def test_pieces_of_all_sizes_are_sent_once_and_rounds_are_nearly_full():
    ratios = [ratio(scattered(seed)) for seed in range(30) if scattered(seed)]
    assert math.exp(sum(map(math.log, ratios)) / len(ratios)) < 1.06 and max(ratios) < 1.3


@pytest.mark.parametrize("size", [(61, 45), (7, 5), (3, 2), (1, 9), (2, 1)], ids=str)
def test_uneven_and_few_rows(size):
    for rows, columns, copies in itertools.product((2, 4, 7), (2, 3, 8), (1, 2)):
        pieces = transposed(size, rows, columns, copies)
        if pieces:
            assert ratio(pieces) < 1.3
            for start in (1e-3, 1e3):
                full = filled(pieces, 0, start, MAX_ROUNDS)
                assert full is not None
                check(pieces, full)


def test_receivers_pass_on_what_few_hold():
    """Four devices hold the tiles of sixteen, and eight pairs will hold the same: nobody need send everything twice."""
    heights, widths = (list(itertools.pairwise(range(0, n + 1, step))) for n, step in ((64, 16), (64, 8)))
    pieces = [
        Piece(target, (holder,), (top, left), (below, right))
        for holder, (top, below) in enumerate(heights)
        for target, (left, right) in enumerate(widths * 2)
        if target != holder
    ]
    least = least_relayed(pieces)
    assert bound(pieces, relays=True) <= least < 0.7 * bound(pieces)
    rounds = in_rounds(pieces, 0)
    check(pieces, rounds)
    assert any(source not in piece.holders for group in rounds for source, piece in group)
    assert least <= cost(rounds, 0) < 1.2 * least


def test_what_a_program_of_relays_says_is_a_bound():
    for seed in range(20):
        pieces = scattered(seed)
        if pieces:  # no two want the same: nothing to pass on
            assert least_relayed(pieces) == pytest.approx(bound(pieces)) == bound(pieces, relays=True)
    pieces = transposed((61, 45), 4, 7, copies=2)
    assert bound(pieces, relays=True) <= least_relayed(pieces) + 1e-6 <= bound(pieces) + 1e-3


def test_fewer_rounds_where_they_cost():
    pieces = transposed((61, 45), 4, 4)
    assert len(in_rounds(pieces, 10_000)) == 3 < len(in_rounds(pieces, 0))


def test_tiles_are_cut_alike():
    cuts = shared_cuts([((0, 16), (16, 31)), ((31, 32), (32, 48), (48, 61))])
    slots = [sorted(slot for cut in spans.values() for _, _, slot in cut) for spans in cuts.values()]
    assert slots == [[1, 14, 16]] * 2
    for tile, spans in cuts.items():
        assert [(spans[span][0][0], spans[span][-1][1]) for span in tile] == list(tile)


def test_cut_pieces_are_the_pieces():
    pieces = transposed((61, 45), 4, 7)
    for side, spare in itertools.product(SIDES, (0, SPARE)):
        cut = cut_to_slots(pieces, side, spare)
        assert sum(item.piece.size for item in cut) == sum(piece.size for piece in pieces)
        assert all(rows <= most for item in cut for rows, most in zip(item.piece.shape, item.slot))


def test_too_many_pieces_are_refused():
    assert in_rounds(transposed((160, 160), 80, 80), 0) is None
    assert in_rounds([], 0) == []
    assert chunk_of(in_rounds(transposed((4, 4), 2, 2), 0)[0]) == (2, 2)
