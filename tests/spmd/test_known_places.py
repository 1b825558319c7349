"""Windows at places that a program names: what is set beside itself is not sent, however it is written."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from meshwright.ops.indexing.gather_scatter import (
    GatherScatterMode,
    Scatter,
    ScatterAdd,
    ScatterDimensionNumbers,
    ScatterMax,
    ScatterMul,
)
from meshwright.ops.indexing.known_places import PlacedUpdate, known_places

MESH = mw.AbstractMesh((8,), ("x",))
ROWS, COLUMNS = P("x"), P(None, "x")
SHAPE = (24, 40)
PERMUTE = "collective_permute"


def sent(f: Any, spec: Any, *args: Any) -> list[tuple[str, int]]:
    where = NamedSharding(MESH, spec)
    array = mw.ShapeDtypeStruct(SHAPE, np.float32, sharding=where)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        part = mw.jit(f, out_shardings=where).lower(array, *args).partition()
    part.verify()
    return [(c.kind, c.bytes_sent) for c in part.collectives]


def borders(u: Any) -> Any:
    """No flow through any border."""
    u = u.at[0, 1:-1].set(u[1, 1:-1]).at[-1, 1:-1].set(u[-2, 1:-1])
    return u.at[1:-1, 0].set(u[1:-1, 1]).at[1:-1, -1].set(u[1:-1, -2])


def steps(u: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, u: borders(2 * u), u)


@pytest.mark.parametrize("spec", [ROWS, COLUMNS], ids=["rows", "columns"])
@pytest.mark.parametrize(
    "f",
    [
        lambda u: u.at[0, 1:-1].set(u[1, 1:-1]),
        lambda u: u.at[0, 1:-1].add(u[1, 1:-1]),
        lambda u: u.at[0:1, 2:-1].set(3 * u[1:2, 2:-1] - u[2:3, 2:-1]),
        lambda u: u.at[0, 1:-1].set(3 * u[1, 1:-1] - u[2, 1:-1]),
        borders,
        steps,
    ],
    ids=["row", "added", "rows", "of two", "borders", "loop"],
)
def test_a_border_set_from_rows_beside_it_sends_nothing(f: Any, spec: Any) -> None:
    assert sent(f, spec) == []


@pytest.mark.parametrize(
    ("f", "count"),
    [
        (lambda u: u.at[0, 1:-1].set(u[1, 2:]), 1),
        (lambda u: u.at[0, 1:-2].set(u[1, 3:]), 2),
        (lambda u: u[3:5, 1:], 2),  # not of the rows that are cut away
        (lambda u: mnp.pad(u, ((0, 0), (1, 0)))[1:3, :-1], 2),
    ],
    ids=["set", "set by two", "slice", "pad"],
)
def test_what_lies_askew_sends_what_others_have_of_it(f: Any, count: int) -> None:
    def put(u: Any) -> Any:
        y = f(u)
        return y if y.shape == SHAPE else mw.lax.with_sharding_constraint(y, NamedSharding(MESH, COLUMNS))

    array = mw.ShapeDtypeStruct(SHAPE, np.float32, sharding=NamedSharding(MESH, COLUMNS))
    part = mw.jit(put).lower(array).partition()
    part.verify()
    assert [(c.kind, c.bytes_sent) for c in part.collectives] == [(PERMUTE, 4 * count)]


def test_an_update_that_is_whole_stays_so() -> None:
    whole = mw.ShapeDtypeStruct((3, 30), np.float32, sharding=NamedSharding(MESH, P()))
    assert sent(lambda u, v: u.at[2:5, 7:37].set(v), COLUMNS, whole) == []
    assert sent(lambda u, v: u.at[2:5, 7:37].set(v), ROWS, whole) == []


def indexed(op: Any, *index: int, **options: Any) -> Any:
    """A scatter into a row, as other libraries write what is set or added there."""
    numbers = ScatterDimensionNumbers((0,), (0,), (0, 1))
    return lambda u: op(numbers, **options).bind(u, np.array(index, np.int32), u[1, 1:-1])


@pytest.mark.parametrize("op", [Scatter, ScatterAdd, ScatterMax])
@pytest.mark.parametrize("spec", [ROWS, COLUMNS], ids=["rows", "columns"])
def test_a_scatter_of_one_window_is_an_update(op: Any, spec: Any) -> None:
    assert sent(indexed(op, 0, 1), spec) == []


@pytest.mark.parametrize("op", [Scatter, ScatterAdd, ScatterMul])
def test_a_scatter_that_is_dropped_is_nothing(op: Any) -> None:
    assert sent(indexed(op, -1, 1), COLUMNS) == sent(indexed(op, 0, 3), COLUMNS) == []


@pytest.mark.filterwarnings("ignore::meshwright.errors.ReplicationWarning")
@pytest.mark.parametrize("mode", GatherScatterMode)
def test_windows_that_are_not_inside(mode: GatherScatterMode) -> None:
    """Which of them are written is up to the mode."""
    f, x = indexed(Scatter, 0, 3, mode=mode), np.arange(960, dtype=np.float32).reshape(SHAPE)
    mesh = mw.make_mesh((8,), ("x",))
    put = mw.device_put(x, NamedSharding(mesh, COLUMNS))
    expected = x.copy()
    if mode == GatherScatterMode.CLIP:
        expected[0, 2:] = x[1, 1:-1]
    if mode != GatherScatterMode.PROMISE_IN_BOUNDS:
        np.testing.assert_array_equal(mw.jit(f)(put), expected)


def test_reads_at_known_places_are_slices() -> None:
    """Each device has its part: nothing is given to all."""

    def read(u: Any) -> Any:
        y = lax.dynamic_slice(u, (np.int32(2), np.int32(0)), (3, 40))
        return u.at[4:7].set(y)

    assert sent(read, COLUMNS) == []


def test_places_are_followed_through_many_reshapes():
    """In one walk: their number is no depth of calls."""

    def set_row(x):
        place = lax.convert_element_type(np.int8(3), "int32")
        place = lax.reshape(mnp.stack([place]), (1,))
        for shape in ((1, 1), (1,)) * 1000:
            place = lax.reshape(place, shape)
        return DynamicUpdateSlice().bind(x, x[:1], lax.reshape(place, ()), np.int32(0))

    program = known_places(mw.make_jaxpr(set_row)(np.ones((8, 4), np.float32)))
    assert [e.op.place for e in program.jaxpr.eqns if isinstance(e.op, PlacedUpdate)] == [(3, 0)]


def test_numbers_converted_from_floats_are_not_followed():
    """XLA's conversion stops at the largest integer, NumPy's does not."""

    def read(x):
        return DynamicSlice((2,)).bind(x, lax.convert_element_type(np.float32(1e10), "int32"))

    program = mw.make_jaxpr(read)(np.arange(8.0, dtype=np.float32))
    assert [e.op.name for e in known_places(program).jaxpr.eqns] == [e.op.name for e in program.jaxpr.eqns]
    mesh = mw.make_mesh((4,), ("x",), devices=mw.devices()[:4])
    x = np.arange(8.0, dtype=np.float32)
    part = mw.jit(read, in_shardings=mw.NamedSharding(mesh, mw.P("x"))).lower(x).partition(mesh)
    np.testing.assert_array_equal(part(x), [6, 7])
