"""Indices at and past the edge, and updates in which dtypes meet: as jax.numpy does them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy_oracle import assert_same

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import IndexingError, ShapeError

X = np.arange(1.0, 13.0, dtype=np.float32).reshape(3, 4)
UPDATES = ("set", "add", "subtract", "multiply", "min", "max", "power", "divide")
OUTSIDE: list[Any] = [5, -4, (5, 0), (1, 4), (5, slice(None)), (slice(None), -9), (Ellipsis, 7), (3, np.array([0, 2]))]


def assert_update(x: Any, index: Any, method: str, value: Any, **options: Any) -> None:
    ours, theirs = (getattr(a.at[index], method)(value, **options) for a in (mnp.asarray(x), jnp.asarray(x)))
    assert_same(ours, theirs, f"at[{index}].{method}({value}, {options})")


@pytest.mark.parametrize("index", OUTSIDE, ids=str)
def test_updates_out_of_range_are_dropped(index: Any) -> None:
    for method in UPDATES:
        assert_update(X, index, method, 2.0)
    assert_update(X, index, "set", 2.0, mode="clip")


@pytest.mark.parametrize("index", OUTSIDE, ids=str)
def test_reads_out_of_range_are_filled_or_clipped(index: Any) -> None:
    for options in ({}, {"mode": "fill"}, {"mode": "fill", "fill_value": 7.0}, {"mode": "clip"}):
        ours, theirs = (a.at[index].get(**options) for a in (mnp.asarray(X), jnp.asarray(X)))
        assert_same(ours, theirs, str(options))


def test_an_index_into_nothing_is_refused() -> None:
    with pytest.raises(IndexingError, match="size 0"):
        mnp.zeros((0, 3)).at[1].set(2.0)


def test_negative_indices_may_be_out_of_range() -> None:
    for index in (-1, np.array([-1, 1])):
        assert_update(X, index, "set", 2.0, wrap_negative_indices=False)
        ours, theirs = (
            a.at[index].get(mode="fill", wrap_negative_indices=False) for a in (mnp.asarray(X), jnp.asarray(X))
        )
        assert_same(ours, theirs)
    index = np.array([[-1], [1], [0]])
    assert_same(
        mnp.take_along_axis(X, index, 1, wrap_negative_indices=False),
        jnp.take_along_axis(jnp.asarray(X), index, 1, wrap_negative_indices=False),
    )


@pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types", "ignore:at.*does not hold them all")
@pytest.mark.parametrize("method", UPDATES)
@pytest.mark.parametrize("dtype", ["int32", "uint8", "float16"])
def test_elements_and_values_meet_in_their_common_dtype(method: str, dtype: str) -> None:
    x, value = np.array([3, 8, 2, 5], dtype), np.float32(2.75)
    for index in (1, slice(0, 2), np.array([0, 3]), ()):
        assert_update(x, index, method, value)


def test_values_may_have_leading_dimensions_of_size_1() -> None:
    got = mnp.zeros((2, 3)).at[1].set(np.array([[4.0, 5.0, 6.0]]))
    assert got.tolist() == [[0, 0, 0], [4, 5, 6]]
    with pytest.raises(ShapeError, match="do not broadcast"):
        mnp.zeros((2, 3)).at[1].set(np.ones((2, 3)))


def test_narrow_index_arrays_reach_far() -> None:
    x = np.arange(300, dtype=np.int32)
    index = np.array([-1, 5], np.int8)
    assert mnp.asarray(x)[index].tolist() == [299, 5]
    assert mw.jit(lambda v: v[index])(x).tolist() == [299, 5]


def test_results_are_arrays() -> None:
    assert hasattr(mnp.asarray(3).at[...].set(2), "aval")


@pytest.mark.parametrize("old", ["bool", "int8", "uint16", "float32", "complex64"])
@pytest.mark.parametrize("new", ["uint8", "float16", "int32", "complex64"])
def test_view_changes_the_last_dimension(old: str, new: str) -> None:
    x = np.arange(16).reshape(2, 8).astype(old) if old != "bool" else (np.arange(16) % 3 == 0).reshape(2, 8)
    got = mnp.asarray(x).view(new)
    assert got.dtype == new and got.shape == x.view(new).shape
    assert np.asarray(got).tobytes() == x.view(new).tobytes()


def test_view_as_bools() -> None:
    assert mnp.asarray(np.array([1, 256], np.int16)).view("bool").tolist() == [True, False, False, True]


def test_view_of_what_does_not_fit() -> None:
    with pytest.raises(ShapeError, match="whole number of elements"):
        mnp.zeros(3, "int8").view("int32")


def test_methods_of_positions() -> None:
    x = mnp.asarray(np.array([5, 2, 9, 4]))
    assert x.compress(np.array([True, False, True, False])).tolist() == [5, 9]
    assert x.argpartition(1)[:2].tolist() == [1, 3]
    assert mnp.array([1, 3, 5]).searchsorted(4).item() == 2
    assert mnp.array([1, 0]).choose([mnp.array([10, 20]), mnp.array([30, 40])]).tolist() == [30, 20]
    assert [p.tolist() for p in mnp.where(np.array([0, 4, 5]), size=3, fill_value=9)] == [[1, 2, 9]]


def test_numpy_values_of_narrow_floats_while_tracing() -> None:
    constant = np.array([1.5, 2.5], mnp.bfloat16.dtype)
    got = mw.jit(lambda x: x + mnp.asarray(constant))(mnp.ones(2))
    assert got.tolist() == [2.5, 3.5]
