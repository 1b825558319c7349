"""Slices of slices with starts outside, which XLA would add."""

import itertools

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.lowering.starts import keep_starts
from meshwright.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice

X = np.arange(1, 61, dtype=np.float32).reshape(10, 6)
STARTS = [-3, 0, 2, 9]


def rows(x, start, count, axis=0):
    """A slice whose start is clamped, as StableHLO defines it; negative starts do not count from the end."""
    starts = [np.int32(0)] * x.ndim
    starts[axis] = start
    sizes = list(x.shape)
    sizes[axis] = count
    return DynamicSlice(tuple(sizes)).bind(x, *starts)


def put(x, update, start):
    return DynamicUpdateSlice().bind(x, update, start, *[np.int32(0)] * (x.ndim - 1))


def one(x, row):
    numbers = lax.GatherDimensionNumbers((0,), (0,), (0,))
    return lax.gather(x, mnp.reshape(row, (1,)), numbers, (1, *x.shape[1:]), mode="clip")


CHAINS = {
    "slice": lambda x, a, b: rows(rows(x, a, 8), b, 3),
    "of three": lambda x, a, b: rows(rows(rows(x, a, 8), b, 5), a, 2),
    "reshaped": lambda x, a, b: rows(rows(x, a, 8)[:, None], b, 3),
    "merged": lambda x, a, b: rows(rows(x, a, 8).reshape(48), 6 * b, 9),
    "transposed": lambda x, a, b: rows(rows(x, a, 8).T, b, 3, 1),
    "repeated": lambda x, a, b: rows(mnp.repeat(rows(x, a, 8), 2, 1), b, 3),
    "times one": lambda x, a, b: rows(rows(x, a, 8) * 1.0, b, 3),
    "a known start": lambda x, a, b: rows(rows(x, a, 8), np.int32(-2), 3) + b,
    "a row": lambda x, a, b: one(rows(x, a, 8), b),
    "an update": lambda x, a, b: put(x, put(rows(x, a, 6), 0 * x[:2], b), a),
    "stacked": lambda x, a, b: rows(mnp.stack([rows(x, a, 8)] * 2)[1], b, 3),
    "padded": lambda x, a, b: rows(lax.pad(rows(x, a, 8), np.float32(0), [(1, 2, 0), (0, 0, 0)])[1:9], b, 3),
    "written and read": lambda x, a, b: rows(rows(put(0 * x, rows(x, a, 8), np.int32(1)), np.int32(1), 8), b, 3),
    "as bytes": lambda x, a, b: rows(rows(x, a, 8).view(mnp.uint8).view(mnp.float32), b, 3),
    "scanned": lambda x, a, b: rows(lax.associative_scan(mnp.add, rows(x, a, 8)[None])[0], b, 3),
    "a row written": lambda x, a, b: rows(x, a, 8).at[b].set(0),
    "a row added, written back": lambda x, a, b: put(x, rows(x, a, 8).at[b].add(1), a),
    "a clamped row": lambda x, a, b: rows(x, a, 8).at[b].multiply(2, mode="clip"),
    "a row of one array of many": lambda x, a, b: mw.vmap(lambda x, b: one(rows(x, a, 8), b))(x[None], b[None]),
    "in a call": lambda x, a, b: rows(mw.jit(lambda x: rows(x, a, 8))(x), b, 3),
    "in a branch": lambda x, a, b: lax.cond(True, lambda y: rows(y, b, 3), lambda y: y[:3], rows(x, a, 8)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_each_start_is_clamped(name):
    f, compiled = CHAINS[name], mw.jit(CHAINS[name])
    for a, b in itertools.product(np.int32(STARTS), repeat=2):
        np.testing.assert_array_equal(compiled(X, a, b), f(mnp.asarray(X), a, b))  # op by op


@pytest.mark.parametrize("f", [
    lambda x, i: rows(x, i, 3),
    lambda x, i: rows(rows(x, i, 8), i, 2, 1),  # another dimension
    lambda x, i: rows(rows(x, i, 8), i, 8),  # all of it
    lambda x, i: put(x, rows(x, i, 3) + 1, i),
    lambda x, i: lax.scan(lambda c, y: (c, rows(y, i, 2)), 0, x)[1],
    lambda x, i: rows(rows(x, i, 8)[:4], i, 2),  # XLA does not move slices past these
])  # fmt: skip
def test_what_xla_does_not_add_stays(f):
    jaxpr = mw.make_jaxpr(f)(X, np.int32(1))
    assert keep_starts(jaxpr) is jaxpr


def test_rows_that_are_masked_stay_masked():
    """A gather that fills what lies outside: its index is not clamped."""
    f = mw.jit(lambda x, a, b: rows(x, a, 8).at[b].get(mode="fill", fill_value=-1))
    for a, b in itertools.product(STARTS[1:], STARTS[1:]):
        first = min(a, 2)
        want = X[first + b] if b < 8 else np.full(6, -1)
        np.testing.assert_array_equal(f(X, np.int32(a), np.int32(b)), want)
