"""What loops carry is moved once where every step would send something for the dimension along which it is split."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P

MESH = mw.AbstractMesh((8,), ("d",))
COLUMNS = NamedSharding(MESH, P(None, "d"))
ROWS, FEATURES = 32, 16


def normalized(x, length):
    """Rows that are normalized in each step, split by their features."""

    def step(x, _):
        y = x + mnp.sin(x)
        return (y - y.mean(1, keepdims=True)) / (1 + y.std(1, keepdims=True)), None

    return mw.lax.scan(step, x, None, length=length)[0]


def shifted(x, length):
    """A stencil along the split dimension."""

    def step(i, x):
        return 0.5 * x + 0.25 * (mnp.roll(x, 1, 1) + mnp.roll(x, -1, 1))

    return mw.lax.fori_loop(0, length, step, x)


@pytest.mark.parametrize("program", [normalized, shifted])
@pytest.mark.parametrize("rows", [ROWS, ROWS - 1], ids=["even", "uneven"])
def test_a_long_loop_moves_it_once_and_back(program, rows):
    x = mw.ShapeDtypeStruct((rows, FEATURES), np.float32)
    run = mw.jit(lambda x: program(x, 64), in_shardings=COLUMNS, out_shardings=COLUMNS)
    part = run.lower(x).partition()
    if rows == ROWS:
        assert part.bytes_sent == 2 * 4 * ROWS * FEATURES // 8 * 7 // 8
        assert part.work.redundancy < 1.05
        assert any("splits dimension 0 of results" in note for note in part.notes)
    part.verify()


@pytest.mark.parametrize("program", [normalized, shifted])
def test_a_short_loop_leaves_it_where_it_is(program):
    x = mw.ShapeDtypeStruct((ROWS, 64 * FEATURES), np.float32)
    run = mw.jit(lambda x: program(x, 2), in_shardings=COLUMNS, out_shardings=COLUMNS)
    part = run.lower(x).partition()
    assert not any(c.kind == "all_to_all" for c in part.collectives)
    part.verify()


def test_a_constraint_in_the_loop_is_not_overruled():
    def step(x, _):
        x = mw.lax.with_sharding_constraint(x, COLUMNS)
        return x - x.mean(1, keepdims=True), None

    run = mw.jit(lambda x: mw.lax.scan(step, x, None, length=64)[0], in_shardings=COLUMNS, out_shardings=COLUMNS)
    part = run.lower(mw.ShapeDtypeStruct((ROWS, FEATURES), np.float32)).partition()
    assert {c.kind for c in part.collectives} <= {"all_reduce", "reduce_scatter", "all_gather"}
    part.verify()


@pytest.mark.parametrize(("machine", "moves"), [(None, False), ("h100:8", True), ("v5e:2x4", False)])
def test_where_collectives_take_their_time_it_may_send_more(machine, moves):
    """Sums of 8 KiB in each step take longer than moving the array once and back, which sends far more: on a switch,
    whose latencies are large beside its bandwidth."""

    def step(x, _):
        return x - 0.5 * x.mean(1, keepdims=True), None

    mesh = mw.AbstractMesh((8,), ("d",), machine=machine)
    columns = NamedSharding(mesh, P(None, "d"))
    run = mw.jit(lambda x: mw.lax.scan(step, x, None, length=16)[0], in_shardings=columns, out_shardings=columns)
    part = run.lower(mw.ShapeDtypeStruct((2048, 2048), np.float32)).partition()
    assert any(c.kind == "all_to_all" for c in part.collectives) == moves
