"""Sums of which every device reads its own tile, however its place is computed, are reduce-scatters; no others are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from local_programs import MESH, array, kinds, same, trace

import meshwright.numpy as mnp
from meshwright import lax
from meshwright.spmd.passes.pipeline import with_reduce_scatters

TABLE = np.array([0, 4, 8, 0, 4, 8], np.int32)


def tile(x: Any, start: Any, size: int) -> Any:
    return lax.dynamic_slice(x, (np.int32(0), start), (2, size))


def by_position(x: Any) -> Any:
    return tile(lax.psum(x, "y"), 4 * lax.axis_index("y"), 4)


def by_table(x: Any) -> Any:
    number = 3 * lax.axis_index("x") + lax.axis_index("y")
    return tile(lax.psum(x, "y"), mnp.asarray(TABLE)[number], 4)


def over_both(x: Any) -> Any:
    place = 2 * lax.axis_index("y") + lax.axis_index("x")
    return tile(lax.psum(x, ("x", "y")), 2 * place, 2)


def in_a_loop(x: Any) -> Any:
    place = 4 * lax.axis_index("y")

    def step(total: Any, _: Any) -> Any:
        return total + tile(lax.psum(x * total.sum(), "y"), place, 4), None

    return lax.scan(step, mnp.ones((2, 4), np.float32), None, length=3)[0]


@pytest.mark.parametrize("function", [by_position, by_table, over_both, in_a_loop], ids=lambda f: f.__name__)
def test_own_tiles_of_sums_are_scattered(function):
    inputs = [array(2, 12, over="xy")]
    before = trace(function, inputs)
    after = with_reduce_scatters(before, MESH)
    assert set(kinds(before)) == {"all_reduce"} and set(kinds(after)) == {"reduce_scatter"}
    same(before, after, inputs)


def reversed_places(x: Any) -> Any:
    return tile(lax.psum(x, "y"), 8 - 4 * lax.axis_index("y"), 4)


def overlapping(x: Any) -> Any:
    return tile(lax.psum(x, "y"), 3 * lax.axis_index("y"), 4)


def along_others(x: Any) -> Any:
    return tile(lax.psum(x, "y"), 6 * lax.axis_index("x"), 6)


def not_summed(x: Any) -> Any:
    return lax.psum(tile(x, 4 * lax.axis_index("y"), 4), "y")


def computed(x: Any) -> Any:
    return tile(lax.psum(x, "y"), 4 * lax.axis_index("y") * (x.sum() > 0).astype(np.int32), 4)


def of_neighbours(x: Any) -> Any:
    return tile(lax.psum(x, "y"), lax.ppermute(4 * lax.axis_index("y"), "y", [(0, 1), (1, 2), (2, 0)]), 4)


def converted_to_bools(x: Any) -> Any:
    return tile(lax.psum(x, "y"), (4 * lax.axis_index("y")).astype(bool).astype(np.int32), 4)


def wrapped_around(x: Any) -> Any:
    places = lax.axis_index("y").astype(np.int8) * np.int8(64)  # 0, 64 and -128
    return tile(lax.psum(x, "y"), lax.min(4 * lax.axis_index("y"), places.astype(np.int32)), 4)


def below_zero(x: Any) -> Any:
    places = lax.axis_index("y").astype(np.uint32) - np.uint32(3)
    return tile(lax.psum(x, "y"), lax.select(places < np.uint32(100), 4 * lax.axis_index("y"), np.int32(0)), 4)


OTHERS = [
    reversed_places, overlapping, along_others, not_summed, computed, of_neighbours, converted_to_bools, wrapped_around,
    below_zero,
]  # fmt: skip


@pytest.mark.parametrize("function", OTHERS, ids=lambda f: f.__name__)
def test_others_are_not(function):
    inputs = [array(2, 12, over="xy")]
    before = trace(function, inputs)
    after = with_reduce_scatters(before, MESH)
    assert "reduce_scatter" not in kinds(after)
    same(before, after, inputs)


def test_places_beyond_the_last_case_are_those_of_the_last():
    def last(x: Any) -> Any:
        which = mnp.asarray(5, np.int32)
        place = lax.select_n(which, np.int32(0), 4 * lax.axis_index("y"))
        return tile(lax.psum(x, "y"), place, 4)

    inputs = [array(2, 12, over="xy")]
    before = trace(last, inputs)
    after = with_reduce_scatters(before, MESH)
    assert kinds(after) == ["reduce_scatter"]
    same(before, after, inputs)
