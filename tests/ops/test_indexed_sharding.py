"""Reductions, cumulative ops, sorts, dynamic slices, gathers, scatters and random bits, split in every way."""

from __future__ import annotations

import numpy as np
import pytest
from op_checks import values
from sharding_checks import check_sharded

from meshwright.ops.indexing import dynamic_slice as D
from meshwright.ops.indexing import gather_scatter as G
from meshwright.ops.indexing.gather_scatter import GatherDimensionNumbers as N
from meshwright.ops.indexing.gather_scatter import GatherScatterMode
from meshwright.ops.random.bits import RandomBits, Threefry2x32
from meshwright.ops.reduce import cumulative as C
from meshwright.ops.reduce import reductions as R
from meshwright.ops.sort import sorting as S
from meshwright.ops.sort.top_k import TopK

I32 = np.dtype(np.int32)
MODES = list(GatherScatterMode)


@pytest.mark.parametrize("op", [R.ReduceMax((0,)), R.ReduceMin((1,)), R.ReduceProd((0, 1))])
def test_reductions(op):
    check_sharded(op, values(5, 3) / 4)


@pytest.mark.parametrize("op", [R.ReduceAnd((0,)), R.ReduceOr((1,)), R.ReduceXor((0, 1)), R.ReduceXor((1,))])
@pytest.mark.parametrize("dtype", [np.int32, np.bool_])
def test_bitwise_reductions(op, dtype):
    x = np.random.default_rng(0).integers(0, 64, (5, 3)).astype(dtype)
    check_sharded(op, x | 8 if op.name == "reduce_and" and dtype is np.int32 else x)


@pytest.mark.parametrize("op", [R.ArgMax((0,), I32), R.ArgMin((1,), I32), R.ArgMax((1,), np.dtype(np.int8))])
def test_positions_of_extrema(op):
    x = np.random.default_rng(0).integers(0, 3, (5, 7)).astype(np.float32)
    check_sharded(op, x)
    x[3, 2] = x[4, 5] = np.nan
    check_sharded(op, x)
    check_sharded(op, np.full((5, 7), -np.inf, np.float32))
    check_sharded(op, x > 1)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("op", [C.CumSum, C.CumProd, C.CumMax, C.CumMin, C.CumLogSumExp])
def test_cumulative(op, reverse):
    check_sharded(op(1, reverse), values(3, 7) / 8)


def test_sorts():
    check_sharded(S.Sort(1, 2), values(5, 4), values(5, 4, seed=1))
    check_sharded(TopK(2), values(5, 4))


@pytest.mark.parametrize("start", [(1, 2), (9, -3), (2, 4)])
@pytest.mark.parametrize("size", [(2, 3), (1, 7), (4, 6), (5, 0)])
def test_dynamic_slices(start, size):
    i, j = map(np.int32, start)
    check_sharded(D.DynamicSlice(size), values(5, 7), i, j)
    check_sharded(D.DynamicUpdateSlice(), values(5, 7), values(*size, seed=1) + 100, i, j)


def test_dynamic_slices_of_bools():
    check_sharded(D.DynamicSlice((2, 3)), values(5, 7) > 0, np.int32(1), np.int32(3))
    check_sharded(D.DynamicUpdateSlice(), values(5, 7) > 0, values(2, 3) > 0, np.int32(1), np.int32(3))


#: (operand shape, dimension numbers, window, indices shape, result shape)
FORMS = {
    "rows": ((5, 3), N((1,), (0,), (0,)), (1, 3), (4, 1), (4, 3)),
    "columns": ((3, 5), N((0,), (1,), (1,)), (3, 1), (4, 1), (3, 4)),
    "points": ((4, 5), N((), (0, 1), (1, 0)), (1, 1), (3, 2, 2), (3, 2)),
    "windows": ((6, 5, 2), N((1, 2), (2,), (0, 1)), (2, 3, 1), (3, 2), (3, 2, 3)),
    "indexed but whole": ((3, 5), N((0,), (1,), (1, 0)), (3, 1), (4, 2), (3, 4)),
    "batched": ((3, 5, 2), N((2,), (1,), (1,), (0,), (0,)), (1, 1, 2), (3, 4, 1), (3, 4, 2)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_gathers(form, mode):
    shape, numbers, sizes, indices, _ = form
    i = np.random.default_rng(0).integers(-2, 7, indices).astype(np.int32)
    check_sharded(G.Gather(numbers, sizes, mode), values(*shape), i)


@pytest.mark.parametrize("mode", MODES)
def test_gathers_of_other_dtypes(mode):
    shape, numbers, sizes, indices, _ = FORMS["rows"]
    i = np.random.default_rng(0).integers(-2, 7, indices).astype(np.int32)
    check_sharded(G.Gather(numbers, sizes, mode, fill_value=7), values(*shape).astype(np.int32), i)
    check_sharded(G.Gather(numbers, sizes, mode), values(*shape) > 0, i)
    check_sharded(G.Gather(numbers, sizes, mode), values(*shape), i.astype(np.uint32))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_scatter_add(form, mode):
    shape, n, _, indices, result = form
    numbers = G.ScatterDimensionNumbers(*vars(n).values())
    i = np.random.default_rng(3).integers(-2, 7, indices).astype(np.int32)
    check_sharded(G.ScatterAdd(numbers, mode=mode), values(*shape) / 8, i, values(*result, seed=2) / 4)


@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize("op", [G.ScatterMul, G.ScatterMin, G.ScatterMax, G.Scatter])
@pytest.mark.parametrize("form", ["rows", "batched"])
def test_other_scatters(form, op, mode):
    shape, n, _, indices, result = FORMS[form]
    numbers = G.ScatterDimensionNumbers(*vars(n).values())
    i = np.random.default_rng(3).integers(-2, 7, indices).astype(np.int32)
    check_sharded(op(numbers, mode=mode), values(*shape) / 8, i, values(*result, seed=2) / 4)


def test_extreme_indices():
    i = np.array([[2**31 - 1], [-(2**31)], [4], [5]], np.int32)
    shape, n, sizes, _, result = FORMS["rows"]
    numbers = G.ScatterDimensionNumbers(*vars(n).values())
    for mode in MODES[:2]:
        check_sharded(G.Gather(n, sizes, mode), values(*shape), i)
        check_sharded(G.ScatterAdd(numbers, mode=mode), values(*shape), i, values(*result, seed=1))


def test_random_bits():
    key = np.array([3, 42], np.uint32)
    check_sharded(RandomBits((5, 3), 32), key)
    check_sharded(RandomBits((7,), 8), np.arange(6, dtype=np.uint32).reshape(3, 2))
    words = np.arange(15, dtype=np.uint32).reshape(5, 3)
    check_sharded(Threefry2x32(), np.uint32(1), words + 7, words, np.uint32(0))
