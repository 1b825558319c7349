"""Windows at traced positions, ``x[ds(i, n)]``: values beside JAX's, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import ArgumentError, ArgumentTypeError, IndexingError, TracerIntegerConversionError

X, Y = np.arange(10, dtype=np.float32) + 1, np.arange(20, dtype=np.float32).reshape(4, 5) + 1

READS = {
    "one": (X, lambda m, n, i: m.ds(i, 3)),
    "none": (X, lambda m, n, i: m.ds(i, 0)),
    "in a tuple": (X, lambda m, n, i: (m.ds(i, 10),)),
    "strided": (X, lambda m, n, i: m.ds(i, 3, 2)),
    "rows": (Y, lambda m, n, i: m.ds(i, 2)),
    "beside a slice": (Y, lambda m, n, i: (m.ds(i, 2), slice(1, None, 2))),
    "beside an integer": (Y, lambda m, n, i: (1, m.ds(i, 3))),
    "beside a traced one": (Y, lambda m, n, i: (i, m.ds(i, 3))),
    "after an ellipsis": (Y, lambda m, n, i: (..., None, m.ds(i, 3))),
    "two": (Y, lambda m, n, i: (m.ds(i, 2), m.ds(i, 3))),
    "before an array": (Y, lambda m, n, i: (m.ds(i, 2), n.array([2, 0, 2]))),
    "after an array": (Y, lambda m, n, i: (n.array([2, 0, 2]), m.ds(i, 2))),
    "reversed": (Y, lambda m, n, i: (m.ds(i, 3), slice(None, None, -1))),
}
STARTS = [0, 1, 2, 5, 8, 9, 10, 99, -99, np.uint8(250), np.int16(1)]  # negative ones JAX counts by different rules
UPDATES = {
    "set": lambda r, v: r.set(v), "add": lambda r, v: r.add(v), "mul": lambda r, v: r.mul(2),
    "min": lambda r, v: r.min(v), "clip": lambda r, v: r.set(v, mode="clip"), "divide": lambda r, v: r.divide(v + 1),
    "apply": lambda r, v: r.apply(lambda x: x * x),
}  # fmt: skip


def _both(f, x, i):
    """What ``f(library, its numpy, x, i)`` is in both libraries, with ``i`` traced and known."""
    want = np.asarray(jax.jit(lambda x, i: f(jax, jnp, x, i))(x, i))
    return want, [mw.jit(lambda x, i: f(mw, mnp, x, i))(x, i), f(mw, mnp, mnp.asarray(x), i)]


@pytest.mark.parametrize("start", STARTS, ids=str)
@pytest.mark.parametrize("name", READS)
def test_reads(name, start):
    x, index = READS[name]
    want, found = _both(lambda m, n, x, i: x[index(m, n, i)], x, start)
    for got in found:
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("start", [1, 8, -99])
def test_reads_that_fill(start):
    want, found = _both(lambda m, n, x, i: x.at[m.ds(i, 3)].get(mode="fill", fill_value=-1), X, start)
    for got in found:
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("start", STARTS, ids=str)
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("name", READS)
def test_updates(name, update, start):
    x, index = READS[name]
    shape = mnp.asarray(x)[index(mw, mnp, 0)].shape
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 50
    want, found = _both(lambda m, n, x, i: UPDATES[update](x.at[index(m, n, i)], values), x, start)
    for got in found:
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("start", [-1, -3, -10, -11])
def test_negative_starts_count_from_the_end(start):
    read = jnp.asarray(X)[jax.ds(start, 3)]
    at = max(min(start + 10 if start < 0 else start, 7), 0)
    written = X.copy()
    if 0 <= start + 10 <= 7:
        written[at : at + 3] = 0
    moved = X.copy()
    moved[at : at + 3] = 0
    for f, want in (
        (lambda x, i: x[mw.ds(i, 3)], read), (lambda x, i: x.at[mw.ds(i, 3)].set(0), written),
        (lambda x, i: x.at[mw.ds(i, 3)].set(0, mode="clip"), moved),
        (lambda x, i: x.at[mw.ds(i, 3)].set(0, wrap_negative_indices=False), X),
        (lambda x, i: x[mw.ds(i, 3, 2)], X[np.clip(start + 10 + np.arange(0, 6, 2), 0, 9)] if start >= -10 else None),
    ):  # fmt: skip
        for got in (mw.jit(f)(X, start), f(mnp.asarray(X), start)):
            assert want is None or np.array_equal(got, want)


@pytest.mark.parametrize("start", [2, 9, -2])
def test_references(start):
    def f(m, n, x, i):
        ref = m.new_ref(x)
        ref[m.ds(i, 3)] = n.zeros(3)
        m.ref.addupdate(ref, m.ds(i, 2), n.ones(2))
        return n.concatenate([ref[...], ref[m.ds(i, 2)]])

    want, found = _both(f, X, start)
    for got in found:
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_they_are_differentiated_and_batched():
    def f(m, n):
        return lambda x, i: (
            (x[m.ds(i, 3)] ** 2).sum() + (x.at[m.ds(i, 2)].mul(3.0) ** 2).sum(),
            x.at[m.ds(i, 2)].add(1.0),
        )

    starts = np.array([0, 2, 9, 99])
    for transform in (
        lambda m, n: m.vmap(f(m, n), (None, 0)), lambda m, n: m.vmap(m.grad(lambda x, i: f(m, n)(x, i)[0]), (None, 0)),
    ):  # fmt: skip
        outs, wants = transform(mw, mnp)(mnp.asarray(X), starts), transform(jax, jnp)(jnp.asarray(X), starts)
        for got, want in zip(mw.tree.leaves(outs), jax.tree.leaves(wants), strict=True):
            np.testing.assert_allclose(got, want)


def test_they_are_partitioned():
    mesh = mw.make_mesh((4,), ("x",))

    def decode(cache, row, i):
        return cache.at[mw.ds(i, 1)].set(row)[mw.ds(i - 1, 3)]

    shapes = [mw.ShapeDtypeStruct(s, d) for s, d in (((8, 6), "float32"), ((1, 6), "float32"), ((), "int32"))]
    for spec in (mw.P("x"), mw.P(None, "x")):
        part = mw.jit(decode, in_shardings=(mw.NamedSharding(mesh, spec), None, None)).lower(*shapes).partition()
        for i in (3, 0, 7, 9):
            part.verify(np.arange(48, dtype=np.float32).reshape(8, 6), -np.ones((1, 6), np.float32), np.int32(i))


def test_what_they_are():
    assert mw.ds(None) == slice(None) and repr(mw.ds(2, 3)) == repr(jax.ds(2, 3)) and repr(mw.ds(4)) == repr(jax.ds(4))
    assert mnp.s_[mw.ds(1, 2), 3][1] == 3


def test_refusals(refuses):
    x = mnp.asarray(Y)
    for kind, call, words in (
        (IndexingError, lambda: x[mw.ds(0, 5)], "do not fit dimension 0"),
        (IndexingError, lambda: x[mw.ds(1.5, 2)], "must be an integer"),
        (IndexingError, lambda: x[mw.ds(np.array([1, 2]), 2)], "must be an integer"),
        (IndexingError, lambda: x[mw.ds(True, 2)], "must be an integer"),
        (IndexingError, lambda: x[mw.ds(0, 2, 2), mnp.array([1, 2])], "beside index arrays"),
        (IndexingError, lambda: x[mw.ds(0, 1), mw.ds(0, 1), mw.ds(0, 1)], "too many"),
        (ArgumentError, lambda: mw.ds(0, -1), "size"),
        (ArgumentError, lambda: mw.ds(0, 1, 0), "stride"),
        (TracerIntegerConversionError, lambda: mw.jit(lambda n: x[mw.ds(0, n)])(2), "static"),
        (ArgumentTypeError, lambda: mw.ds(None, 2), "start"),
    ):
        with refuses(kind, words):
            call()


@pytest.mark.parametrize("start", [3, 9, -3, -12, -(2**30), 2**31 - 1])
@pytest.mark.parametrize("stride", [2, 7, 2**33])
def test_windows_with_strides_that_reach_outside(start, stride):
    rows = start + (10 if start < 0 else 0) + stride * np.arange(3)
    x = mnp.arange(10)
    read = mw.jit(lambda i: x[mw.ds(i, 3, stride)])(start)
    counts = x.at[mw.ds(start, 3, stride)].add(1) - x
    assert read.tolist() == np.clip(rows, 0, 9).tolist()
    assert counts.tolist() == [int(i in rows) for i in range(10)]
