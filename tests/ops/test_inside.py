"""Gathers that fill: where positions are inside for certain, nothing is filled; everywhere else it is."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.ir.jaxpr import all_eqns
from meshwright.ir.passes import INLINE
from meshwright.ops.indexing.gather_add import FILL, Gather
from meshwright.ops.indexing.inside import Bounds, gathers_inside

X = np.arange(1, 57, dtype=np.float32).reshape(7, 8)
I = np.array([0, 6, -3, 3, -8, 2**31 - 1, -(2**31), 7, 6], np.int32)
ROWS = np.arange(7)[::-1].copy()

#: positions in the first dimension, of 7
INSIDE = {
    "constant": lambda x, i: np.array([[3, -7], [6, 0]]),
    "counter": lambda x, i: mnp.arange(7) * 1,
    "argmax": lambda x, i: mnp.argmax(x[:, :7], 1),
    "argmin": lambda x, i: mnp.argmin(x[:7], 0),
    "top_k": lambda x, i: lax.top_k(x[:, :7], 3)[1],
    "argsort": lambda x, i: mnp.argsort(x[:, 2]),
    "clip": lambda x, i: mnp.clip(i, -7, 6),
    "clamp": lambda x, i: lax.clamp(np.int32(2), i, np.int32(5)),
    "remainder": lambda x, i: i % 7,
    "bits": lambda x, i: (i & 3) + 1,
    "count": lambda x, i: mnp.sum(x[:, :6] > 9, 1),
    "half": lambda x, i: mnp.arange(14) // 2,
    "chosen": lambda x, i: mnp.where((i >= 0) & (i < 7), i, 0),
    "where": lambda x, i: mnp.where(i < 3, np.int32(6), np.int32(-7)),
    "of integers": lambda x, i: mnp.array(ROWS)[mnp.argsort(x[:, 1])],
    "reversed": lambda x, i: 6 - mnp.argsort(x[:, 1]),
    "two": lambda x, i: (mnp.arange(7), mnp.argmax(x, 1)),
    "wide": lambda x, i: (np.arange(7), 1 + mnp.argmin(x[:, 1:], 1)),
}
OUTSIDE = {
    "any": lambda x, i: i,
    "constant": lambda x, i: np.array([0, 7]),
    "behind": lambda x, i: np.array([0, -8]),
    "goes round": lambda x, i: mnp.clip(i, 0, 6).astype(np.int8) * np.int8(127),
    "absolute": lambda x, i: mnp.minimum(mnp.abs(i), 6),
    "past": lambda x, i: mnp.clip(i, 0, 7),
    "by one": lambda x, i: mnp.where((i >= 0) & (i <= 7), i, 0),
    "or": lambda x, i: mnp.where((i >= 0) | (i < 7), i, 0),
    "sum": lambda x, i: mnp.sum(x > 9, 1),
    "of floats": lambda x, i: mnp.clip(x[:, 0] * np.nan, 0, 6).astype(np.int32),
    "remainder": lambda x, i: lax.rem(i, np.int32(9)),
    "of any": lambda x, i: i % mnp.clip(i, -1, 7),
    "two": lambda x, i: (mnp.argmax(x, 1) % 8, np.arange(7)),
}


def fills(f):
    jaxpr = gathers_inside(INLINE.apply(mw.make_jaxpr(f)(X, I)))
    modes = [e.op.mode for e in all_eqns(jaxpr.jaxpr) if isinstance(e.op, Gather)]
    return bool(modes) and modes[-1] is FILL, jaxpr


def taken(of):
    return lambda x, i: x.at[of(x, i)].get(mode="fill")


def by_numpy(positions):
    """The elements, NaN for those outside."""
    at = [np.asarray(p, np.int64) for p in (positions if isinstance(positions, tuple) else (positions,))]
    sizes = X.shape[: len(at)]
    valid = np.all([(p >= -n) & (p < n) for p, n in zip(at, sizes)], 0)
    out = X[tuple(np.where(valid, p, 0) for p in at)]
    return np.where(valid.reshape(valid.shape + (1,) * (out.ndim - valid.ndim)), out, np.nan)


@pytest.mark.parametrize("name", INSIDE)
def test_positions_that_are_known_to_be_inside_are_not_looked_at(name):
    assert not fills(taken(INSIDE[name]))[0]
    np.testing.assert_array_equal(mw.jit(taken(INSIDE[name]))(X, I), by_numpy(INSIDE[name](mnp.array(X), I)))


@pytest.mark.parametrize("name", OUTSIDE)
def test_other_positions_are(name):
    assert fills(taken(OUTSIDE[name]))[0]
    np.testing.assert_array_equal(mw.jit(taken(OUTSIDE[name]))(X, I), by_numpy(OUTSIDE[name](mnp.array(X), I)))


def test_selects_of_one_case_are_left_out():
    """As those of positions that may count from the end."""
    _, jaxpr = fills(taken(INSIDE["argsort"]))
    assert "select_n" not in {e.op.name for e in all_eqns(jaxpr.jaxpr)}


def test_positions_in_loops_and_derivatives():
    def loss(x, i):
        step = lambda c, row: (c + x.at[mnp.argsort(row)].get(mode="fill")[:7].sum(), row)  # noqa: E731
        return lax.scan(step, np.float32(0), x[:, :7])[0] + mnp.nansum(x.at[i].get(mode="fill"))

    assert "FILL" not in str(gathers_inside(INLINE.apply(mw.make_jaxpr(lambda x: loss(x, np.array([0])))(X))))
    counts = np.bincount([p % 7 for p in I if -7 <= p < 7], minlength=7)
    np.testing.assert_allclose(mw.jit(mw.grad(loss))(X, I), np.tile(counts[:, None] + 7.0, 8))


@pytest.mark.parametrize("seed", range(8))
def test_bounds_hold(seed):
    """Random arithmetic on random integers, at the ends of their types too."""
    rng = np.random.default_rng(seed)
    dtype = [np.int8, np.uint8, np.int32, np.int16][seed % 4]
    ends = np.iinfo(dtype)
    given = np.concatenate([rng.integers(ends.min, ends.max, 40), [ends.min, ends.max, 0, 1]]).astype(dtype)
    number = lambda low=-3: dtype(max(rng.integers(low, 9), ends.min))  # noqa: E731
    makes = [
        lambda v, w: v + w, lambda v, w: v - w, lambda v, w: v * number(), lambda v, w: mnp.minimum(v, w),
        lambda v, w: mnp.clip(v, number(), number()), lambda v, w: v % number(1), lambda v, w: lax.rem(v, number(1)),
        lambda v, w: lax.div(v, number(1)), lambda v, w: v & w, lambda v, w: mnp.where(v < w, v, w + number()),
        lambda v, w: mnp.where(~((v >= number()) & (w > v)), v, v + w), lambda v, w: lax.clamp(number(), v, w),
        lambda v, w: mnp.sort(v), lambda v, w: mnp.where(v <= number(), v - number(), v), lambda v, w: -v,
        lambda v, w: mnp.maximum(v, number()), lambda v, w: v.astype(np.int8).astype(dtype),
    ]  # fmt: skip
    chosen = [(makes[rng.integers(len(makes))], rng.integers(99), rng.integers(99)) for _ in range(40)]

    def f(x):
        state, found = rng.bit_generator.state, [x, mnp.clip(x, number(), number())]
        for make, a, b in chosen:
            found.append(make(found[a % len(found)], found[b % len(found)]))
        rng.bit_generator.state = state
        return found

    jaxpr = INLINE.apply(mw.make_jaxpr(f)(given))
    bounds, narrow = Bounds(jaxpr), 0
    for atom, value in zip(jaxpr.jaxpr.outvars, f(mnp.array(given)), strict=True):
        at = bounds.of(atom)
        assert at.low <= np.min(value) and np.max(value) <= at.high
        narrow += at.high - at.low < 100
    assert narrow
