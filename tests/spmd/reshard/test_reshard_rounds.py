"""Pieces in rounds: everything is sent once, each device sends and receives one piece a round, and rounds are full."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from meshwright.spmd.reshard.filled import filled
from meshwright.spmd.reshard.pieces import SIDES, SPARE, Piece, Slotted, bound, cut_to_slots, shared_cuts
from meshwright.spmd.reshard.relayed import least_relayed
from meshwright.spmd.reshard.rounds import MAX_ROUNDS, Rounds, _mixed, chunk_of, cost, in_rounds
from meshwright.spmd.reshard.turns import in_turns


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
    devices = 1 + max(max(piece.target, *piece.holders) for piece in pieces)
    holds, lacks, came = np.zeros((3, devices, *map(max, zip(*(piece.high for piece in pieces)))), np.int8)
    for piece in pieces:
        lacks[piece.target][box(piece)] += 1
        for holder in piece.holders:
            holds[holder][box(piece)] = 1
    for group in rounds:
        assert len({sent.source for sent in group}) == len({sent.piece.target for sent in group}) == len(group)
        for source, piece in group:
            assert piece.size
            assert source not in piece.holders or holds[source][box(piece)].all()
        had = [(holds[source][box(piece)] | came[source][box(piece)]).all() for source, piece in group]
        assert all(had)
        for _, piece in group:
            came[piece.target][box(piece)] += 1
    assert (came == lacks).all()


def box(piece):
    return tuple(map(slice, piece.low, piece.high))


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


def test_two_turns_send_nothing_that_is_held():
    """Six devices hold columns, eight in pairs will hold rows: each column leaves its holder once for each pair, but
    its own, within which parts go from one to the other."""
    heights, widths = (list(itertools.pairwise([*range(0, n, step), n])) for n, step in ((31, 8), (17, 3)))
    pieces = [
        Piece(target, (holder,), (top, left), (below, right))
        for holder, (left, right) in enumerate(widths)
        for target in range(8)
        for top, below in [heights[target // 2]]
        if target != holder
    ]
    first, then = in_turns([Slotted(piece, piece.shape) for piece in pieces])
    assert bound([item.piece for item in first]) == (31 - 8) * 3
    assert sum(piece.size for piece in then) < sum(8 * 17 for _ in range(8))
    assert all(len(piece.holders) == 1 and piece.holders[0] // 2 == piece.target // 2 for piece in then)
    rounds = in_rounds(pieces, 0)
    check(pieces, rounds)
    assert cost(rounds, 0) < 1.06 * least_relayed(pieces)


def test_rounds_of_two_sizes_are_as_few_as_if_each_were_alone():
    """Halves of 125 rows become tiles of 4, of which one has a row of the first and three of the second half: cut to 3
    and 1 rows, pieces of either size take as many rounds as the busiest device has."""
    halves = [(0, 125), (125, 250)]
    pieces = [
        Piece(2 * tile, (holder + 200,), (max(low, 4 * tile), left), (min(high, 4 * tile + 4, 250), left + 5))
        for holder, ((low, high), left) in enumerate(itertools.product(halves, range(0, 135, 5)))
        for tile in range(63)
        if low < 4 * tile + 4 and 4 * tile < high
    ]
    assert ratio(pieces) < 1.03


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
    for *sides, spare in itertools.product(SIDES, SIDES, (0, SPARE)):
        cut = cut_to_slots(pieces, sides, spare)
        assert sum(item.piece.size for item in cut) == sum(piece.size for piece in pieces)
        assert all(rows <= most for item in cut for rows, most in zip(item.piece.shape, item.slot))


def test_too_many_pieces_are_refused():
    assert in_rounds(transposed((160, 160), 80, 80), 0) is None
    assert in_rounds([], 0) == []
    assert chunk_of(in_rounds(transposed((4, 4), 2, 2), 0)[0]) == (2, 2)


def test_dimensions_that_nobody_cuts_add_no_schedules():
    """Pieces of a matrix are cut in the same ways if they are whole in three further dimensions."""
    flat = transposed((18, 10), 4, 8)
    deep = [p._replace(low=(0, *p.low, 0, 0), high=(2, *p.high, 3, 5)) for p in flat]
    assert [len([*_mixed(pieces, 0)]) for pieces in (flat, deep)] == [2, 2]
