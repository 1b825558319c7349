"""Ufuncs: reduce, accumulate, reduceat, at and outer against jax.numpy's, and those of functions of one's own."""

from __future__ import annotations

import pickle
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy_oracle import assert_same, check_functions

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import ArgumentError

ARITHMETIC = ("add", "multiply", "maximum", "minimum", "subtract", "logaddexp")
LOGIC = ("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor")
FLOATS = np.array([[1.5, -2.0, 0.0, 3.0], [0.25, 4.0, -1.0, 0.5], [2.0, 1.0, 0.0, -3.5]], np.float32)
INTEGERS = np.array([[1, 6, 0, 3], [7, 4, 5, 2], [3, 0, 6, 1]], np.int8)


def both(name: str, method: str, *args: Any, **kwargs: Any) -> None:
    ours, theirs = (getattr(getattr(m, name), method) for m in (mnp, jnp))
    check_functions(ours, theirs, *args, what=f"{name}.{method}{kwargs}", **kwargs)


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("options", [{}, {"axis": 1, "keepdims": True}, {"axis": None}], ids=str)
def test_reduce(name: str, options: Any) -> None:
    both(name, "reduce", FLOATS, **options)


@pytest.mark.parametrize("name", LOGIC)
@pytest.mark.parametrize("x", [INTEGERS, INTEGERS > 2], ids=["int8", "bool"])
def test_reduce_bits_and_flags(name: str, x: Any) -> None:
    both(name, "reduce", x)
    both(name, "reduce", x, axis=1)


def test_reduce_takes_what_sums_take() -> None:
    both("add", "reduce", INTEGERS, axis=(0, 1), initial=5)
    both("multiply", "reduce", FLOATS, where=FLOATS > 0)
    both("subtract", "reduce", FLOATS, initial=10.0)
    both("minimum", "reduce", FLOATS, where=FLOATS > 0, initial=2.0)
    for name in ("add", "multiply"):  # of booleans: whether any is true, or all
        both(name, "reduce", INTEGERS % 3, dtype=bool)
        both(name, "accumulate", INTEGERS % 3, dtype=bool)


@pytest.mark.parametrize("name", ARITHMETIC[:-1])
def test_accumulate_reduceat_outer(name: str) -> None:
    both(name, "accumulate", FLOATS)
    both(name, "accumulate", INTEGERS, axis=1)
    both(name, "reduceat", INTEGERS, np.array([0, 2, 1]))
    both(name, "reduceat", FLOATS, np.array([3, 0, 2]), axis=1)
    both(name, "outer", FLOATS, INTEGERS[0])


@pytest.mark.parametrize("name", [*ARITHMETIC[:-1], "bitwise_xor"])
def test_at_counts_repeated_positions(name: str) -> None:
    x = np.array([5, 2, 9, 4], np.int32)
    ours, theirs = getattr(mnp, name), getattr(jnp, name)
    index, values = np.array([1, 3, 1]), np.array([3, 7, 6], np.int32)
    assert_same(ours.at(x, index, values, inplace=False), theirs.at(x, index, values, inplace=False))


def test_a_function_of_ones_own() -> None:
    digits = mnp.frompyfunc(lambda a, b: 10 * a + b, 2, 1)
    x = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    assert digits.reduce(x, axis=1).tolist() == [123, 456]
    assert digits.reduce(x, axis=None).item() == 123456
    assert digits.accumulate(x, axis=1).tolist() == [[1, 12, 123], [4, 45, 456]]
    assert digits.outer(x[0], x[1]).tolist() == [[14, 15, 16], [24, 25, 26], [34, 35, 36]]
    assert digits.at(x[0], np.array([2, 0, 2]), np.array([7, 8, 9]), inplace=False).tolist() == [18, 2, 379]
    assert digits.reduceat(x, [0, 2, 1], axis=1).tolist() == [[12, 3, 23], [45, 6, 56]]


def test_transformations_go_through() -> None:
    x = mnp.arange(4.0)
    assert mw.grad(lambda v: mnp.subtract.reduce(v * v))(x).tolist() == [0.0, -2.0, -4.0, -6.0]
    assert mw.jit(mnp.add)(2, 3).item() == 5
    assert mw.vmap(mnp.maximum.reduce)(FLOATS).tolist() == [3.0, 4.0, 2.0]
    assert pickle.loads(pickle.dumps(mnp.logaddexp)) is mnp.logaddexp


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no identity; pass initial="):
        mnp.subtract.reduce(np.zeros((0, 3)))
    with pytest.raises(ArgumentError, match="no identity; pass initial="):
        mnp.subtract.reduce(FLOATS, where=FLOATS > 0)
    with pytest.raises(ArgumentError, match="inplace=False"):
        mnp.add.at(mnp.zeros(3), 0, 1.0)
    with pytest.raises(ArgumentError, match="out= and where= are not supported"):
        mnp.add(1, 2, out=mnp.zeros(()))
    with pytest.raises(ArgumentError, match="two arguments"):
        mnp.negative.reduce(mnp.zeros(3))
    with pytest.raises(TypeError, match="expected 2 arguments, got 3"):
        mnp.add(1, 2, 3)
