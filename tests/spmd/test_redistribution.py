"""Rows that move along a split dimension move in one plan: what is sent, and what a device holds meanwhile."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import nn
from meshwright.sharding.row_map import ZEROS, RowMap, Span, coloured

MESH = mw.AbstractMesh((8,), ("d",))
COLUMNS = P(None, "d")


# --- plans --------------------------------------------------------------------------------------------------
def random_maps(count: int) -> Iterator[tuple[RowMap, int]]:
    rng = random.Random(7)
    for _ in range(count):
        sources = tuple(rng.randint(2, 40) for _ in range(rng.randint(1, 3)))
        targets = []
        for _ in range(rng.randint(1, 3)):
            spans = []
            for _ in range(rng.randint(1, 4)):
                source = rng.randint(ZEROS, len(sources) - 1)
                size = sources[source] if source != ZEROS else 9
                low = rng.randint(0, size - 1) if source != ZEROS else 0
                spans.append(Span(source, low, rng.randint(low + 1, size)))
            targets.append(tuple(spans))
        yield RowMap(sources, tuple(targets)), rng.choice([2, 3, 4, 5, 8])


def tile(x: np.ndarray, rows: int, number: int) -> np.ndarray:
    """A tile whose padding is rubbish."""
    found = np.full(rows, -7)
    mine = x[number * rows : (number + 1) * rows]
    found[: len(mine)] = mine
    return found


def buffers(m: RowMap, tiles: int, sources: list[np.ndarray]) -> list[np.ndarray]:
    """What each device has after the rounds of a plan, rubbish behind it."""
    plan = m.plan(tiles)
    held = [-(-n // tiles) for n in m.sources]
    mine = [np.concatenate([tile(x, rows, t) for x, rows in zip(sources, held)]) for t in range(tiles)]
    came = [[np.full(r.length, -9) for r in plan.rounds] for _ in range(tiles)]
    for number, r in enumerate(plan.rounds):
        assert len({a for a, _ in r.perm}) == len({b for _, b in r.perm}) == len(r.perm)
        for sender, receiver in r.perm:
            start = r.starts[sender]
            assert start + r.length <= len(mine[sender])
            came[receiver][number] = mine[sender][start : start + r.length]
    ups = sum(r.goes_up for r in plan.rounds)
    whole = [np.concatenate([tile(x, rows, t) for t in range(tiles)]) for x, rows in zip(sources, held)]
    rest = [np.zeros(plan.zeros, int), np.full(100, -5)]
    return [
        np.concatenate([*(whole if plan.gather else [*came[t][:ups], mine[t], *came[t][ups:]]), *rest])
        for t in range(tiles)
    ]


def busiest(m: RowMap, tiles: int) -> int:
    """The most rows that a device must send or receive: no plan of permutes sends less."""
    held = [-(-n // tiles) for n in m.sources]
    lacking: list[set[tuple[int, int]]] = [set() for _ in range(tiles)]
    for spans, size in zip(m.targets, m.sizes):
        rows = [(s.source, r) for s in spans for r in range(s.low, s.high)]
        for at, (source, r) in enumerate(rows):
            if source != ZEROS and r // held[source] != at // -(-size // tiles):
                lacking[at // -(-size // tiles)].add((source, r))
    sends = [0] * tiles
    for found in lacking:
        for source, r in found:
            sends[r // held[source]] += 1
    return max(*sends, *map(len, lacking))


def test_every_plan_brings_every_row_to_its_place() -> None:
    sent = []
    for m, tiles in random_maps(500):
        sources = [np.arange(n) + 1000 * (i + 1) for i, n in enumerate(m.sources)]
        there, plan = buffers(m, tiles, sources), m.plan(tiles)
        for spans, size, slots in zip(m.targets, m.sizes, plan.targets):
            parts = [np.zeros(s.rows, int) if s.source == ZEROS else sources[s.source][s.low : s.high] for s in spans]
            wanted, rows = np.concatenate(parts), -(-size // tiles)
            for t in range(tiles):
                found = np.full(rows, -3)
                for slot in slots:
                    if slot.at[t] < rows:
                        found[slot.at[t] :] = there[t][slot.starts[t] : slot.starts[t] + rows - slot.at[t]]
                mine = wanted[t * rows : (t + 1) * rows]
                np.testing.assert_array_equal(found[: len(mine)], mine)
        if least := busiest(m, tiles):
            sent.append(plan.sent / least)
    assert np.mean(sent) < 1.08
    assert np.max(sent) < 2


def test_a_graph_has_as_few_colours_as_its_largest_degree() -> None:
    rng = random.Random(1)
    for _ in range(200):
        edges = [(rng.randrange(6), rng.randrange(6)) for _ in range(rng.randint(1, 25))]
        colours = coloured(edges)
        for side in (0, 1):
            ends = [(e[side], c) for e, c in zip(edges, colours)]
            assert len(set(ends)) == len(ends)
        degrees = [sum(e[side] == n for e in edges) for side in (0, 1) for n in range(6)]
        assert len(set(colours)) == max(degrees)


# --- programs -----------------------------------------------------------------------------------------------
def partition(f: Any, shapes: list[tuple[int, ...]], specs: Any, out: Any) -> Any:
    def on(spec: Any) -> Any:
        return mw.tree.map(lambda s: mw.NamedSharding(MESH, s), spec, is_leaf=lambda s: isinstance(s, P))

    args = [mw.ShapeDtypeStruct(s, np.float32) for s in shapes]
    part = mw.jit(f, in_shardings=on(specs), out_shardings=on(out)).lower(*args).partition()
    part.verify()
    return part


def sent(part: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for c in part.collectives:
        found[c.kind] = found.get(c.kind, 0) + c.bytes_sent
    return found


ROWS, SIZE = 24, 96
#: of an array of that many columns
TILE = 4 * ROWS * SIZE // 8


def rotated(x: Any) -> Any:
    low, high = mnp.split(x, 2, -1)
    return mnp.concatenate([high, low], -1)


@pytest.mark.parametrize(
    ("f", "operands", "results", "bytes_sent"),
    [
        (lambda x: tuple(mnp.split(x, 2, -1)), 1, 2, TILE),
        (lambda x: tuple(mnp.split(x, 3, -1)), 1, 3, TILE),
        (lambda x: tuple(mnp.split(x, 4, -1)), 1, 4, TILE),
        (lambda x: x[:, : SIZE // 2], 1, 1, TILE),
        (lambda x, y: mnp.concatenate([x, y], -1), 2, 1, 2 * TILE),
        (lambda x: mnp.pad(x, ((0, 0), (0, SIZE))), 1, 1, 2 * TILE),
        (lambda x: mnp.pad(x[:, 36:], ((0, 0), (0, 36))), 1, 1, TILE),  # shifted at once, not cut and then padded
        (rotated, 1, 1, TILE),
        (lambda x: mnp.concatenate([x[:, :36], mnp.sort(x[:, 36:], 0)], -1), 1, 1, None),
        (lambda x: (x[:, 2:], x[:, 1:-1], x[:, :-2]), 1, 3, None),
        (lambda x: tuple(mnp.split(x[:, :90], 2, -1)), 1, 2, None),  # uneven
    ],
    ids=["halves", "thirds", "quarters", "half", "joined", "padded", "shifted", "rotated", "uneven parts", "stencil",
         "uneven halves"],
)  # fmt: skip
def test_what_moves_along_a_split_dimension(f: Any, operands: int, results: int, bytes_sent: int | None) -> None:
    out = COLUMNS if results == 1 else (COLUMNS,) * results
    part = partition(f, [(ROWS, SIZE)] * operands, (COLUMNS,) * operands, out)
    found = sent(part)
    assert set(found) == {"collective_permute"}
    assert bytes_sent is None or found["collective_permute"] == bytes_sent


def test_two_shifts_of_an_array_share_what_a_neighbour_sends() -> None:
    """Rows 1 and 2 from the right: two columns, and not one and two."""
    part = partition(lambda x: (x[:, 1:-1], x[:, 2:]), [(ROWS, SIZE)], (COLUMNS,), (COLUMNS,) * 2)
    assert sent(part) == {"collective_permute": 4 * ROWS * 2}


def test_a_split_and_its_derivative_hold_little() -> None:
    """Two messages of half a tile, and no array padded to the whole."""
    halves = partition(lambda x: tuple(mnp.split(x, 2, -1)), [(ROWS, SIZE)], (COLUMNS,), (COLUMNS,) * 2)
    assert halves.peak_bytes < 4.1 * TILE  # its own, two messages, two halves; and tables of positions

    def gradient(x: Any, y: Any) -> Any:
        return mw.vjp(lambda x: nn.silu(mnp.split(x, 2, -1)[0]) * mnp.split(x, 2, -1)[1], x)[1](y)[0]

    both = partition(gradient, [(ROWS, SIZE), (ROWS, SIZE // 2)], (COLUMNS, COLUMNS), COLUMNS)
    assert sent(both) == {"collective_permute": 2 * TILE}
    assert "pad" not in {e.op.name for e in both.jaxpr.jaxpr.eqns}


def test_sums_of_paddings_that_share_rows_stay_sums() -> None:
    def f(x: Any, y: Any) -> Any:
        return mnp.pad(x, ((0, 0), (0, 8))) + mnp.pad(y, ((0, 0), (8, 0)))

    part = partition(f, [(ROWS, SIZE)] * 2, (P("d"),) * 2, P("d"))
    assert sum(e.op.name == "pad" for e in part.jaxpr.jaxpr.eqns) == 2


# --- products in parts --------------------------------------------------------------------------------------
WIDTH, HIDDEN, TOKENS = 16, 48, 128
#: what a device sends of a fused weight that is rearranged: its tile
WEIGHT = 4 * WIDTH * 2 * HIDDEN // 8


def gated(w: Any, down: Any, x: Any) -> Any:
    gate, up = mnp.split(x @ w, 2, -1)
    return (nn.silu(gate) * up) @ down


def reduced(rows: int) -> int:
    return 2 * 4 * rows * WIDTH * 7 // 8


def test_of_a_fused_projection_the_weight_is_rearranged() -> None:
    shapes = [(WIDTH, 2 * HIDDEN), (HIDDEN, WIDTH), (TOKENS, WIDTH)]
    part = partition(gated, shapes, (COLUMNS, P("d"), P()), P())
    assert sent(part) == {"collective_permute": WEIGHT, "all_reduce": reduced(TOKENS)}
    assert part.work.redundancy < 1.01
    few = partition(gated, [*shapes[:2], (4, WIDTH)], (COLUMNS, P("d"), P()), P())
    assert sent(few) == {"collective_permute": 4 * 4 * 2 * HIDDEN // 8, "all_reduce": reduced(4)}


def test_its_gradient_is_rearranged_back() -> None:
    """One rearrangement of the weight, one of its gradient, and of products no more than there were."""

    def step(w: Any, down: Any, x: Any) -> Any:
        return mw.grad(lambda w, x: (gated(w, down, x) ** 2).sum(), (0, 1))(w, x)

    shapes = [(WIDTH, 2 * HIDDEN), (HIDDEN, WIDTH), (TOKENS // 2, WIDTH)]
    part = partition(step, shapes, (COLUMNS, P("d"), P()), (COLUMNS, P()))
    assert sent(part) == {"collective_permute": 2 * WEIGHT, "all_reduce": 2 * reduced(TOKENS // 2)}
    assert part.work.product_redundancy == 1
    # Of more tokens, each device takes its own, and gathers the weights.
    many = partition(step, [*shapes[:2], (TOKENS, WIDTH)], (COLUMNS, P("d"), P()), (COLUMNS, P()))
    assert many.bytes_sent < 2 * WEIGHT + 2 * reduced(TOKENS)
    assert many.work.product_redundancy == 1


def test_a_bias_between_product_and_parts_is_cut_too() -> None:
    def f(w: Any, b: Any, x: Any) -> Any:
        return tuple(mnp.split(mnp.tanh(x @ w + b), 3, -1))

    part = partition(f, [(WIDTH, SIZE), (SIZE,), (TOKENS, WIDTH)], (COLUMNS, P("d"), P()), (COLUMNS,) * 3)
    assert sent(part) == {"collective_permute": 4 * (WIDTH + 1) * SIZE // 8}


def test_a_product_that_others_use_stays_whole() -> None:
    def f(w: Any, x: Any) -> Any:
        y = x @ w
        return (*mnp.split(y, 2, -1), y)

    part = partition(f, [(WIDTH, SIZE), (TOKENS, WIDTH)], (COLUMNS, P()), (COLUMNS,) * 3)
    assert sent(part) == {"collective_permute": 4 * TOKENS * SIZE // 8}
    assert sum(e.op.name == "dot_general" for e in part.jaxpr.jaxpr.eqns) == 1


@pytest.mark.parametrize("f", [mnp.sum, mnp.max, lambda x: x @ x, lambda x: mw.grad(mnp.sum)(x * x).sum()])
def test_a_joined_array_becomes_a_number(f: Any) -> None:
    partition(lambda x, y: f(mnp.concatenate([x, y])), [(16,), (48,)], (P("d"), P("d")), P())


def test_a_sum_of_what_is_joined_is_one_of_its_parts() -> None:
    part = partition(lambda x, y: mnp.concatenate([x, y]).sum(), [(16,), (48,)], (P("d"), P("d")), P())
    assert set(sent(part)) == {"all_reduce"}


def test_what_is_done_in_parts_names_the_line_it_is_for():
    """The weight of a fused gate and up projection is rearranged, by permutes, where its product is cut."""

    def gated(x, w, v):
        gate, up = mnp.split(x @ w, 2, -1)
        return (mw.nn.silu(gate) * up) @ v

    mesh = mw.AbstractMesh((4,), ("m",))
    shardings = tuple(mw.NamedSharding(mesh, P(*axes)) for axes in ((), (None, "m"), ("m",)))
    shapes = (mw.ShapeDtypeStruct(shape, "float32") for shape in ((64, 64), (64, 256), (128, 64)))
    part = mw.jit(gated, in_shardings=shardings).lower(*shapes).partition(mesh)
    assert any("permute" in str(c) for c in part.collectives)
    assert all(c.source.file == __file__ for c in part.collectives)
