"""A dimension that is indexed with 0, 1, 2, ... is split like any other: nothing is sent for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.ops.indexing.counted_rows import counted_rows

B, T, N = 6, 4, 5
MESH = mw.AbstractMesh((2, 2), ("d", "t"))
RNG = np.random.default_rng(8)
ROWS = mnp.arange


def indices(*shape: int) -> np.ndarray:
    return RNG.integers(-N - 2, N + 2, shape).astype(np.int32)


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


X, XT, I, IT, U, UT = f32(B, N), f32(B, T, N), indices(B), indices(B, T), f32(B), f32(B, T)
#: functions, their arguments, all with the split dimension first
COUNTED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "read": (lambda x, i: x[ROWS(B), i], (X, I)),
    "constant": (lambda x, i: x[np.arange(B), i], (X, I)),
    "rows in unsigned": (lambda x, i: x[ROWS(B, dtype=np.uint8), i.astype(np.int16)], (X, I)),
    "clipped": (lambda x, i: x.at[ROWS(B), i].get(mode="clip"), (X, I)),
    "filled": (lambda x, i: x.at[ROWS(B), i].get(mode="fill", fill_value=7), (X, I)),
    "promised": (lambda x, i: x.at[ROWS(B), i % N].get(mode="promise_in_bounds"), (X, I)),
    "negative rows are none": (lambda x, i: x[mnp.maximum(ROWS(B), 0), i], (X, I)),
    "set": (lambda x, i, u: x.at[ROWS(B), i].set(u), (X, I, U)),
    "add": (lambda x, i, u: x.at[ROWS(B), i].add(u), (X, I, U)),
    "set, clipped": (lambda x, i, u: x.at[ROWS(B), i].set(u, mode="clip"), (X, I, U)),
    "two, clipped": (
        lambda x, i, u: x.at[ROWS(B)[:, None], i, i - 1].add(u, mode="clip"),
        (f32(B, N, N), IT, UT),
    ),
    "clipped in a loop": (
        lambda x, i: lax.fori_loop(0, 3, lambda t, x: x.at[ROWS(B), i + t].add(1.0, mode="clip"), x),
        (X, I),
    ),
    "max, dropped": (lambda x, i, u: x.at[ROWS(B), i].max(u, mode="drop"), (X, I, U)),
    "windows": (lambda x, i: x[ROWS(B), i], (f32(B, N, 3), I)),
    "set windows": (lambda x, i, u: x.at[ROWS(B), i].set(u), (f32(B, N, 3), I, f32(B, 3))),
    "second dimension": (lambda x, i: x[i % B, ROWS(N)].T[0] + x[:, 0], (X, IT[0, :1])),
    "two": (lambda x, i: x[ROWS(B)[:, None], ROWS(T)[None], i], (XT, IT)),
    "two, added": (lambda x, i, u: x.at[ROWS(B)[:, None], ROWS(T)[None], i].add(u), (XT, IT, UT)),
    "one of two": (lambda x, i: x[ROWS(B)[:, None], i % T, ROWS(T)[None]], (XT, IT)),
    "several places of a row": (lambda x, i: x[ROWS(B)[:, None], i], (X, IT)),
    "last": (lambda x, i: x[..., ROWS(B), i].T, (f32(3, B, N), I)),
    "gradient": (mw.grad(lambda x, i: (x[ROWS(B), i] ** 2).sum()), (X, I)),
    "batched": (mw.vmap(lambda x, i: x[ROWS(T), i]), (XT, IT)),
    "loop": (lambda x, i: lax.fori_loop(0, 3, lambda t, x: x.at[ROWS(B), (i + t) % N].add(1.0), x), (X, I)),
    "rows from outside": (
        lambda x, i: (lambda b: lax.scan(lambda x, k: (x.at[b, (i + k) % N].add(1.0), x[b, i]), x, ROWS(3)))(ROWS(B)),
        (X, I),
    ),
    "all rows": (lambda x, i: x[ROWS(B)] * i[:, None], (X, I)),
    "all rows, filled": (lambda x, i: x.at[ROWS(B)].get(mode="fill") * i[:, None], (X, I)),
    "all rows, in another place": (lambda x, i: x[:, ROWS(T)[None, :, None], ROWS(N)].swapaxes(1, 3), (XT, IT)),
    "all rows, repeatedly": (lambda x, i: x[mnp.broadcast_to(ROWS(B)[:, None], (B, 3)), 1:4], (X, I)),
    "part of a window": (
        lambda x, i: (
            lax.gather(
                x, ROWS(B)[:, None], lax.GatherDimensionNumbers((0,), (0,), (0,)), (1, 3), mode="promise_in_bounds"
            ).T
        ),
        (X, I),
    ),
    "branches": (lambda x, i: lax.cond(i.sum() > 0, lambda: x[ROWS(B), i], lambda: x[ROWS(B), 0]), (X, I)),
    "while": (
        lambda x, i: lax.while_loop(
            lambda c: c[1].sum() > 0, lambda c: (c[0].at[ROWS(B), c[1]].add(1), c[1] - 1), (x, i)
        )[0],
        (X, abs(I) % N),
    ),
}
OTHERS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "moved rows": (lambda x, i: x[ROWS(B) - 1, i], (X, I)),
    "reversed rows": (lambda x, i: x[ROWS(B)[::-1], i], (X, I)),
    "every other row": (lambda x, i: x[ROWS(B // 2) * 2, i[: B // 2]], (X, I)),
    "rows beyond the bounds": (
        lambda x, i, u: x.at[mnp.clip(mnp.stack([ROWS(B), i], 1), 0, np.array([B - 2, N - 1]))[:, 0], i].set(u),
        (X, I, U),
    ),
    "clamped vectors, to fewer": (
        lambda x, i, u: lax.scatter(
            x,
            lax.clamp(np.int32([[0, 0]] * B), mnp.stack([ROWS(B), i], 1), np.int32([[B - 2, N - 1]] * B)),
            u,
            lax.ScatterDimensionNumbers((), (0, 1), (0, 1)),
        ),
        (X, I, U),
    ),
    "fewer rows": (lambda x, i: x[ROWS(B - 2), i[: B - 2]], (X, I)),
    "rows that are taken": (lambda x, i: x[i % B, i], (X, I)),
    "diagonal": (lambda x, i: x[ROWS(B), ROWS(B)] + i, (f32(B, B), I)),
    "sorted": (lambda x, i: x[mnp.argsort(i), i], (X, I)),
    "rows that wrap": (
        lambda x, i: x[lax.iota(np.int8, 300).astype(np.int32) % 300, i],
        (f32(300, N), indices(300)),
    ),
    "of a carry": (
        lambda x, i: lax.scan(lambda c, t: ((c[0], c[1][::-1]), c[0][c[1], i]), (x, ROWS(B)), None, length=3)[1].T,
        (X, I),
    ),
}


def partitioned(f: Any, args: Any) -> Any:
    rows = NamedSharding(MESH, P("d"))
    with np.errstate(all="ignore"):
        part = mw.jit(f, in_shardings=(rows,) * len(args)).lower(*args).partition()
        part.verify(*args, finite=0.5)
    return part


@pytest.mark.parametrize("name", COUNTED)
def test_nothing_is_sent(name):
    f, args = COUNTED[name]
    if name == "last":
        rows = NamedSharding(MESH, P(None, "d")), NamedSharding(MESH, P("d"))
        part = mw.jit(f, in_shardings=rows).lower(*args).partition()
        part.verify(*args)
    else:
        part = partitioned(f, args)
    sent = [c for c in part.collectives if c.operand.size > 1]
    assert name == "second dimension" or not sent


@pytest.mark.parametrize("name", OTHERS)
def test_other_rows_are_looked_for(name):
    f, args = OTHERS[name]
    partitioned(f, args)


@pytest.mark.parametrize("name", [*COUNTED, *OTHERS])
def test_programs_are_the_same(name):
    f, args = (COUNTED | OTHERS)[name]
    before = mw.make_jaxpr(f)(*args)
    after = counted_rows(before)
    assert after is not before if name in COUNTED else name == "diagonal" or after is before
    for a, b in zip(
        mw.core.eval_jaxpr(before.jaxpr, before.consts, *args), mw.core.eval_jaxpr(after.jaxpr, after.consts, *args)
    ):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_texts_of_other_programs():
    """Normalized indices, with constants that are broadcast, as JAX's texts have them."""

    def f(x: Any, i: Any) -> Any:
        zeros, sizes = mnp.zeros(B, np.int32), mnp.full(B, B, np.int32)
        rows = lax.iota(np.int32, B)
        rows = lax.select(lax.lt(rows, zeros), lax.add(rows, sizes), rows)
        return x[rows, i]

    assert not partitioned(f, (X, I)).collectives


def test_several_devices_along_both_dimensions():
    on = [NamedSharding(MESH, s) for s in (P("d", "t"), P("d"), P("d"))]
    part = mw.jit(lambda x, i, u: x.at[ROWS(B), i].add(u), in_shardings=tuple(on)).lower(X, I, U).partition()
    part.verify(X, I, U)
    assert not part.collectives
