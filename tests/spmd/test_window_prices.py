"""Slices, paddings and joins along a split dimension: what they send, and that the partitioner knows of it."""

from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright import PartitionSpec as P
from meshwright import lax
from meshwright.ir.tracing import typeof
from meshwright.ops.reduce.cumulative import CumSum
from meshwright.ops.shape.slice_pad import Concatenate, Pad, Slice
from meshwright.ops.window.reductions import ReduceWindowSum
from meshwright.spmd.partition import layout_passes

MESH = mw.AbstractMesh((4,), ("x",))
COLUMNS = 6


def op_on_rows(kind: str, rng: np.random.Generator) -> tuple[Any, list[tuple[int, int]]]:
    """An op along the first dimension, and the shapes of its operands."""
    size = int(rng.integers(8, 40))
    if kind == "slice":
        start = int(rng.integers(0, size // 2))
        stop = int(rng.integers(start + 4, size + 1))
        return Slice((start, 0), (stop, COLUMNS), (int(rng.integers(1, 4)), 1)), [(size, COLUMNS)]
    if kind == "pad":
        low, high = (int(n) for n in rng.integers(-3, 9, 2))
        return Pad(((low, high, int(rng.integers(0, 3))), (0, 0, 0))), [(size, COLUMNS), ()]
    if kind == "sums":
        return CumSum(0), [(4 * size, COLUMNS)]
    if kind == "pool":
        window, stride, low, high, spread, apart = map(int, rng.integers((2, 1, 0, 0, 1, 1), (6, 4, 3, 3, 3, 3)))
        pads = ((low, high), (0, 0))
        return ReduceWindowSum((window, 1), (stride, 1), pads, (spread, 1), (apart, 1)), [(size, COLUMNS)]
    return Concatenate(0), [(size, COLUMNS), (int(rng.integers(2, 40)), COLUMNS)]


@pytest.mark.parametrize("kind", ["slice", "pad", "concatenate", "sums", "pool"])
@pytest.mark.parametrize("seed", range(20))
def test_the_price_is_what_is_sent(kind, seed, monkeypatch):
    monkeypatch.setattr(layout_passes, "merge_moves", lambda closed, *_: closed)  # one by one
    op, shapes = op_on_rows(kind, np.random.default_rng(seed))
    args = [np.zeros(s, np.float32) for s in shapes]
    rule = op.sharding_rule(*map(typeof, args))
    (factor,) = {f for (f,) in (dims[0] for dims in rule.operands if dims and dims[0])}
    result = op.infer(*map(typeof, args)).shape[0]
    if result < 2:
        return
    rows = mw.NamedSharding(MESH, P("x"))
    place = tuple(rows if len(s) else mw.NamedSharding(MESH, P()) for s in shapes)
    part = mw.jit(lambda *xs: op.bind(*xs), in_shardings=place, out_shardings=rows).lower(*args).partition()
    part.verify()
    assert kind not in ("sums", "pool") or rule.factors[factor].passes is not None
    held = sum(4 * COLUMNS * -(-s[0] // 4) for s in shapes if len(s))
    kinds = {c.kind for c in part.collectives}
    if rule.factors[factor].passes is not None and kinds <= {"collective_permute", "all_gather"}:
        assert part.bytes_sent == round(rule.factors[factor].passes(4) * held)


@pytest.mark.parametrize("tiles,config,size,sent", [
    (4, (-5, 3, 1), 57, 2), (8, (-1, 3, 1), 36, 1), (4, (2, -3, 2), 85, 3), (4, (-5, 1, 2), 63, 3),
])  # fmt: skip
def test_gradients_of_paddings_that_cut_and_spread_fetch_rows_once(tiles, config, size, sent):
    """Of the rows between them nothing is sent, where tiles have as many of them each: not in the last case."""
    rows = mw.NamedSharding(mw.AbstractMesh((tiles,), ("x",)), P("x"))
    low, high, inner = config
    result = low + high + size + (size - 1) * inner

    def gradient(x, ct):
        return mw.vjp(lambda x: lax.pad(x, np.float32(0), [config, (0, 0, 0)]), x)[1](ct)[0]

    x, ct = (mw.ShapeDtypeStruct((n, COLUMNS), np.float32) for n in (size, result))
    part = mw.jit(gradient, in_shardings=rows, out_shardings=rows).lower(x, ct).partition()
    part.verify()
    assert part.bytes_sent == sent * COLUMNS * 4
    assert {c.kind for c in part.collectives} == {"collective_permute"}


def test_every_other_row_from_somewhere_is_taken_where_rows_are_whole():
    """The rows between them would be sent, too; what is split by columns then, one all-to-all brings there."""
    rows, columns = (mw.NamedSharding(MESH, s) for s in (P("x"), P(None, "x")))
    x = mw.ShapeDtypeStruct((96, 32), np.float32)
    run = mw.jit(lambda x: lax.slice_in_dim(x, 35, 93, 2), in_shardings=rows, out_shardings=columns)
    part = run.lower(x).partition()
    part.verify()
    assert [(c.kind, c.bytes_sent) for c in part.collectives] == [("all_to_all", 96 * 32 * 4 // 4 * 3 // 4)]


def test_spread_rows_and_what_comes_back_from_them_are_held_once():
    """Rows put between, before and behind others, and the gradient, which takes every third row from the second."""
    rows = mw.NamedSharding(MESH, P("x"))

    def loss(x):
        return mw.numpy.sum(mw.numpy.sin(lax.pad(x, 0.5, [(2, 1, 2)])))

    run = mw.jit(mw.grad(loss), in_shardings=rows, out_shardings=rows)
    part = run.lower(mw.ShapeDtypeStruct((4096,), np.float32)).partition()
    part.verify()
    assert part.bytes_sent <= 2 * 4  # a row forth and one back
    held = 4 * (4096 + 3 * 4096) // 4
    assert part.peak_bytes <= 1.3 * held


def test_on_a_machine_every_exchange_is_started():
    """The six rounds of a sorting network take three times as long as a gather of so few rows."""
    where = mw.NamedSharding(mw.AbstractMesh((8,), ("x",), machine="v5e:2x4"), P("x"))
    given = mw.ShapeDtypeStruct((256,), np.int32, sharding=where)
    part = mw.jit(lax.sort, out_shardings=where).lower(given).partition()
    assert [c.kind for c in part.collectives] == ["all_gather"]


@pytest.mark.parametrize(("size", "kinds"), [(8000, {"all_gather"}), (64_000, {"all_to_all", "collective_permute"})])
def test_arrays_that_are_sorted_together_start_collectives_of_their_own(size, kinds):
    """On a machine, few rows are gathered to be sorted: by columns, each of two arrays would start six collectives."""
    rows = mw.NamedSharding(mw.AbstractMesh((8,), ("d",), machine="v5e:2x4"), P("d"))
    args = [mw.ShapeDtypeStruct((size,), np.int32)] * 2
    sort = mw.jit(lambda *xs: lax.sort(xs, num_keys=2), in_shardings=rows, out_shardings=rows)
    assert {c.kind for c in sort.lower(*args).partition().collectives} == kinds
