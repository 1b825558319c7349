"""Integers of every type are positions in every dimension: types that do not hold its size, and that hold more."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import ArgumentError

SIZE = 300
X = np.arange(1.0, SIZE + 1, dtype=np.float32)
NARROW = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
WIDE = ("int32", "uint32", "int64", "uint64")


def both(f, *args):
    """What a function gives of arrays that are known, and of traced ones, which are equal."""
    known, traced = np.asarray(f(*args)), np.asarray(mw.jit(f)(*args))
    np.testing.assert_array_equal(known, traced)
    return known


def _put(mode):
    def put(x, i):
        return mnp.put(x, i, 5.0, mode=mode, inplace=False)

    def expected(x, i):
        y = x.copy()
        np.put(y, i, 5.0, mode=mode)
        return y

    return put, expected


def _set(x, i):
    y = x.copy()
    y[i] = 5.0
    return y


#: of an array and positions inside of it: ours, and NumPy's with positions of int64
FUNCTIONS = {
    "x[i]": (lambda x, i: mnp.asarray(x)[i], lambda x, i: x[i]),
    "x[i[1]]": (lambda x, i: mnp.asarray(x)[i[1]], lambda x, i: x[i[1]]),
    "x[i, j]": (
        lambda x, i: mnp.asarray(x).reshape(2, -1)[i % 2, i % 99], lambda x, i: x.reshape(2, -1)[i % 2, i % 99]
    ),
    "take": (mnp.take, np.take),
    "take wrap": (lambda x, i: mnp.take(x, i, mode="wrap"), lambda x, i: np.take(x, i, mode="wrap")),
    "take clip": (lambda x, i: mnp.take(x, i, mode="clip"), lambda x, i: np.take(x, i, mode="clip")),
    "take_along_axis": (lambda x, i: mnp.take_along_axis(x, i, 0), lambda x, i: np.take_along_axis(x, i, 0)),
    "at.set": (lambda x, i: mnp.asarray(x).at[i].set(5.0), _set),
    "at[scalar].set": (lambda x, i: mnp.asarray(x).at[i[1]].set(5.0), lambda x, i: _set(x, i[1])),
    "put wrap": _put("wrap"),
    "put clip": _put("clip"),
    "roll": (lambda x, i: mnp.roll(x, i[1]), lambda x, i: np.roll(x, i[1])),
    "roll back": (lambda x, i: mnp.roll(x, i[2]), lambda x, i: np.roll(x, i[2])),
    "bincount": (lambda x, i: mnp.bincount(abs(i), length=SIZE), lambda x, i: np.bincount(abs(i), minlength=SIZE)),
    "segment_sum": (
        lambda x, i: mw.ops.segment_sum(mnp.ones(4), abs(i), SIZE), lambda x, i: np.bincount(abs(i), minlength=SIZE)
    ),
    "unravel_index": (
        lambda x, i: mnp.stack(mnp.unravel_index(abs(i), (2, 150))),
        lambda x, i: np.stack(np.unravel_index(abs(i), (2, 150))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_positions_inside(name, dtype):
    ours, expected = FUNCTIONS[name]
    with mw.enable_x64(dtype.endswith("64")):
        index = np.array([0, 100, 3 if dtype.startswith("u") else -3, 7], dtype)
        np.testing.assert_array_equal(both(ours, X, index), expected(X, index.astype(int)))


@pytest.mark.parametrize("dtype", WIDE)
def test_positions_beyond_an_index_are_out_of_range(dtype):
    """2**32 - 1 is no -1, and 2**63 is none either."""
    top = np.iinfo(dtype).max
    with mw.enable_x64(dtype.endswith("64")):
        index = np.array([0, top, 1, top - 1, 4, top // 2 + 1], dtype)
        x = X[:5]
        last = np.array([1, 5, 2, 5, 5, 5], np.float32)
        np.testing.assert_array_equal(both(lambda x, i: mnp.asarray(x)[i], x, index), last)
        np.testing.assert_array_equal(both(lambda x, i: mnp.take(x, i, mode="clip"), x, index), last)
        np.testing.assert_array_equal(both(lambda x, i: mnp.asarray(x).at[i].get(mode="clip"), x, index), last)
        filled = np.where(index > 4, np.nan, last)
        np.testing.assert_array_equal(both(mnp.take, x, index), filled)
        np.testing.assert_array_equal(both(lambda x, i: mnp.take_along_axis(x, i, 0), x, index), filled)
        np.testing.assert_array_equal(both(lambda x, i: mnp.asarray(x)[i[1]], x, index), 5)
        added = both(lambda x, i: mnp.asarray(x).at[i].add(1.0), x, index)
        np.testing.assert_array_equal(added, [2, 3, 3, 4, 6])
        np.testing.assert_array_equal(both(lambda x, i: mnp.bincount(i, length=5), x, index), [1, 1, 0, 0, 1])
        np.testing.assert_array_equal(
            both(lambda x, i: mw.ops.segment_sum(mnp.ones(6), i, 5), x, index), [1, 1, 0, 0, 1]
        )
        wrapped = both(lambda x, i: mnp.take(x, i, mode="wrap"), x, index)
        np.testing.assert_array_equal(wrapped, x[[int(i) % 5 for i in index.tolist()]])


@pytest.mark.parametrize("dtype", NARROW)
def test_deleted_inserted_and_repeated(dtype):
    with mw.enable_x64(dtype.endswith("64")):
        index = np.array([0, 100, 7], dtype)
        np.testing.assert_array_equal(mnp.delete(X, index), np.delete(X, index.astype(int)))
        np.testing.assert_array_equal(mnp.insert(X, index, 0.0), np.insert(X, index.astype(int), 0.0))
        np.testing.assert_array_equal(mnp.repeat(X[:3], index), np.repeat(X[:3], index.astype(int)))


def test_bools_are_numbers_to_take():
    np.testing.assert_array_equal(both(mnp.take, X, np.array([True, False])), [2, 1])


def test_counts_are_not_negative():
    with pytest.raises(ArgumentError, match="repeats must not be negative, got -1"):
        mnp.repeat(X, np.array([-1] * SIZE))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_ranges_at_the_ends_of_their_types(dtype):
    ends = np.iinfo(dtype)
    with mw.enable_x64(dtype.endswith("64")):
        for start, stop in ((ends.max - 3, ends.max), (ends.min, ends.min + 3)):
            want = [start, start + 1, start + 2]
            assert mnp.arange(np.array(start, dtype), np.array(stop, dtype)).tolist() == want
            assert mnp.arange(start, stop, dtype=dtype).tolist() == want
            assert mw.jit(lambda a=start, b=stop: mnp.arange(a, b, dtype=dtype))().tolist() == want
        assert mnp.arange(np.array(5, dtype), np.array(3, dtype)).tolist() == []
