"""Samples of ops that move, repeat, cut, join and reduce."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from meshwright.ops.control.markers import Named
from meshwright.ops.control.platform import PlatformIndex
from meshwright.ops.products.dot import DotGeneral
from meshwright.ops.products.ragged import RaggedDot
from meshwright.ops.reduce import cumulative as C
from meshwright.ops.reduce import reductions as R
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim, Iota, ReduceSum
from meshwright.ops.shape.cyclic import CyclicWindow
from meshwright.ops.shape.rearrange import Reshape, ReshapeRows, Rev, Squeeze, Transpose
from meshwright.ops.shape.row_moves import RowMoves
from meshwright.ops.shape.shifts import Border, Shifts
from meshwright.ops.shape.slice_pad import Concatenate, Pad, Slice
from meshwright.ops.shape.spaced_rows import SpacedRows
from meshwright.ops.sharding.constraint import ShardingConstraint
from meshwright.ops.sort.sorting import Sort
from meshwright.ops.sort.top_k import TopK
from meshwright.sharding import AbstractMesh, NamedSharding, PartitionSpec
from meshwright.sharding.row_map import ZEROS, RowMap, Span
from samples.sample import Sample, bools, complexes, floats, ints, sample

F32, I32 = np.dtype(np.float32), np.dtype(np.int32)


def _ragged() -> Iterator[Sample]:
    """Products with groups: empty ones, rows of none, first rows, groups of their own for each index."""
    rows, sums = (((1,), (1,)), ((), ())), (((0,), (0,)), ((), ()))
    sizes = np.int32([2, 0, 3, 1])
    yield sample(RaggedDot(rows, 0, 0), floats(7, 3), floats(4, 3, 2), sizes, label="rows")
    yield sample(
        RaggedDot(rows, 0, 0), floats(7, 3), floats(4, 3, 2), np.int32([1, 0, 2, 1]), np.int32(2), label="first"
    )
    yield sample(
        RaggedDot((((0,), (2,)), ((), ())), 1, 1), floats(3, 20), floats(2, 3, 3), np.int32([11, 4, 2]), label="turned"
    )
    batch = RaggedDot((((2,), (1,)), ((0,), (2,))), 1, 3, (0,))
    yield sample(batch, floats(2, 6, 3), floats(2, 3, 2, 3), np.int32([[1, 0, 5], [2, 2, 1]]), label="batch")
    free = RaggedDot((((2,), (1,)), ((), ())), 1, 0, (0,))
    yield sample(free, floats(2, 6, 3), floats(3, 3, 2), np.int32([[1, 0, 5], [2, 2, 1]]), label="free")
    yield sample(RaggedDot(sums, 0, None), floats(6, 3), floats(6, 2), sizes, label="sums")
    yield sample(RaggedDot(sums, 0, None), floats(20, 3), floats(20, 2), np.int32([5, 12]), np.int32(1), label="later")
    several = RaggedDot((((0, 2), (2, 0)), ((), ())), 2, None, (0,))
    yield sample(several, floats(2, 3, 5), floats(5, 2, 2), np.int32([[1, 3, 0], [2, 0, 3]]), label="sums-of-several")
    yield sample(RaggedDot(rows, 0, 0, (), None, I32), ints(5, 2), ints(3, 2, 2), np.int32([1, 2, 1]), label="ints")
    yield sample(RaggedDot(rows, 0, 0), floats(0, 3), floats(2, 3, 2), np.int32([0, 0]), label="no-rows")
    yield sample(RaggedDot(rows, 0, 0), floats(4, 3), floats(0, 3, 2), np.zeros(0, np.int32), label="no-groups")


def _shapes() -> Iterator[Sample]:
    for old, new in (
        ((6, 4), (24,)), ((24,), (4, 6)), ((6, 4), (4, 6)), ((6, 4), (8, 3)), ((2, 3, 4), (6, 4)), ((6, 4), (2, 3, 4)),
        ((6, 4), (2, 3, 2, 2)), ((5, 3), (15,)), ((15,), (5, 3)), ((1, 5), (5,)), ((5, 2), (5, 1, 2)), ((1,), ()),
        ((), (1, 1)), ((0, 3), (3, 0)), ((12,), (4, 3)), ((4, 3, 2), (2, 12)), ((8,), (2, 2, 2)), ((2, 2, 2), (8,)),
    ):  # fmt: skip
        yield sample(Reshape(new), floats(*old), label="x".join(map(str, new)) or "scalar")
    yield sample(Reshape((12,)), ints(4, 3))
    for old, new, group, split in (
        ((2, 35), (2, 7, 5), 1, 0), ((7, 5), (35,), 0, 0), ((7, 2, 3, 2), (42, 2), 0, 0), ((6, 35), (2, 3, 7, 5), 1, 0),
        ((6, 2, 7, 1, 5), (12, 35), 1, 0), ((4, 3, 7, 5), (2, 2, 3, 35), 2, 0), ((35, 2, 3), (7, 1, 5, 6), 0, 0),
        ((2, 36), (2, 3, 6, 2), 1, 1), ((2, 36), (2, 3, 6, 2), 1, 2), ((3, 5, 2), (30,), 0, 1), ((3, 8), (24,), 0, 1),
        ((4, 3, 7, 5), (2, 2, 105), 1, 1), ((30, 2), (2, 3, 5, 2), 0, 2),
    ):  # fmt: skip
        yield sample(ReshapeRows(new, group, split), floats(*old), label=f"{'x'.join(map(str, new))}_{split}")
    yield sample(Squeeze((1,)), floats(5, 1, 3))
    yield sample(Squeeze((0, 2)), ints(1, 6, 1))
    for permutation in itertools.permutations(range(3)):
        yield sample(Transpose(permutation), floats(3, 2, 5), label="".join(map(str, permutation)))
    yield sample(Transpose((1, 0)), ints(6, 4))
    yield sample(Transpose(()), floats())
    for dims in ((0,), (1,), (0, 1), ()):
        yield sample(Rev(dims), floats(5, 3), label=str(dims))
        yield sample(Rev(dims), ints(6, 4), label=str(dims))
    yield sample(Rev((0,)), floats(1, 4))
    for dim, start, length in ((0, 7, 8), (0, 1, 8), (0, 3, 8), (1, 2, 6), (1, 5, 8), (1, 4, 17)):
        yield sample(CyclicWindow(dim, start, length), floats(8, 6), label=f"{dim}_{start}_{length}")
    yield sample(CyclicWindow(0, 5, 7), ints(7, 2), label="uneven")
    yield sample(CyclicWindow(0, 6, 9), bools(7, 2), label="bool")
    for dim, start, stride, length in ((0, -3, 2, 6), (0, 1, 3, 5), (1, -5, 3, 3), (0, 2, 1, 8), (0, -1, 1, 10)):
        yield sample(SpacedRows(dim, start, stride, length), floats(8, 6), label=f"{dim}_{start}_{stride}_{length}")
    yield sample(SpacedRows(0, -2, 2, 6), ints(7, 2), label="uneven")
    halves = RowMap((8,), ((Span(0, 0, 4),), (Span(0, 4, 8),)))
    yield sample(RowMoves(1, halves), floats(4, 8), label="halves")
    woven = RowMap((5, 6), ((Span(1, 2, 6), Span(ZEROS, 0, 3), Span(0, 1, 4)), (Span(0, 0, 5), Span(1, 0, 3))))
    yield sample(RowMoves(0, woven), floats(5, 3), floats(6, 3), label="woven")
    yield sample(RowMoves(0, woven), ints(5, 2), ints(6, 2), label="ints")
    yield sample(Shifts(((1, -1), (0, 2), (-1, 0))), floats(8, 6), label="plane")
    yield sample(Shifts(((2, 0), (-1, 0))), ints(7, 2), label="uneven")
    edges, mirrors = Border((0, 0), (7,)), Border((2, 1), (4, 3))
    yield sample(Shifts(((1, -1), (-2, 2), (2, 0)), (edges, mirrors)), floats(8, 6), label="borders")
    yield sample(
        Shifts(((3, 0), (-1, 1)), (Border((5, 5), (6, 5, 4)), Border((), (1,)))), ints(7, 2), label="uneven borders"
    )
    mesh = AbstractMesh((2,), ("nowhere",))
    yield sample(ShardingConstraint(NamedSharding(mesh, PartitionSpec())), floats(5, 3))


def _broadcasts() -> Iterator[Sample]:
    for shape, target, dims in (
        ((), (5, 3), ()), ((3,), (5, 3), (1,)), ((5,), (5, 3), (0,)), ((5, 1), (5, 3), (0, 1)),
        ((1, 3), (6, 1, 3), (0, 2)),
        ((4, 6), (4, 2, 6), (0, 2)), ((3,), (0, 3), (1,)), ((1, 1), (1, 4), (0, 1)), ((2, 3), (2, 3), (0, 1)),
    ):  # fmt: skip
        yield sample(BroadcastInDim(target, dims), floats(*shape), label="x".join(map(str, target)))
    yield sample(BroadcastInDim((4, 6), (0,)), ints(4))
    for shape, dim in (((7,), 0), ((5, 3), 0), ((5, 3), 1), ((6, 4), 1), ((1,), 0), ((0, 2), 0)):
        yield sample(Iota(I32, shape, dim), label=f"{'x'.join(map(str, shape))}_{dim}")
    yield sample(Iota(F32, (5, 3), 1), label="f32")
    yield sample(PlatformIndex((("tpu",), ("cpu", "cuda"), None)), label="among_three")


def _slices() -> Iterator[Sample]:
    for shape, start, limit, strides in (
        ((7, 5), (0, 0), (7, 5), (1, 1)), ((7, 5), (2, 0), (7, 5), (1, 1)), ((7, 5), (0, 0), (3, 5), (1, 1)),
        ((7, 5), (1, 1), (6, 4), (2, 1)), ((8, 6), (1, 0), (8, 6), (3, 2)), ((8, 6), (0, 2), (8, 4), (1, 1)),
        ((8, 6), (5, 0), (6, 6), (1, 1)), ((9,), (4,), (4,), (1,)), ((9,), (0,), (9,), (4,)), ((12,), (3,), (9,), (1,)),
    ):  # fmt: skip
        yield sample(Slice(start, limit, strides), floats(*shape), label=f"{start}{limit}{strides}")
    yield sample(Slice((1, 2), (6, 4), (1, 1)), ints(6, 4))
    for config in (
        ((1, 2, 0), (0, 0, 0)), ((0, 0, 0), (0, 1, 0)), ((0, 0, 1), (1, 1, 2)), ((-1, 2, 0), (0, -1, 0)),
        ((3, -1, 1), (-1, -1, 0)), ((-1, -1, 1), (2, 0, 0)), ((0, 0, 0), (0, 0, 0)), ((-2, -3, 0), (0, 0, 0)),
    ):  # fmt: skip
        yield sample(Pad(config), floats(5, 3), np.float32(0.37), label=str(config))
        yield sample(Pad(config), ints(6, 4), np.int32(-99), label=str(config))
    yield sample(Pad(((2, 1, 1),)), floats(0), np.float32(0.5))
    yield sample(Concatenate(0), floats(5, 3), floats(2, 3, seed=1))
    yield sample(Concatenate(1), floats(5, 3), floats(5, 2, seed=1), floats(5, 4, seed=2))
    yield sample(Concatenate(0), ints(6, 4), ints(6, 4, seed=1))
    yield sample(Concatenate(0), ints(4), ints(1, seed=1), ints(0), ints(7, seed=2))
    yield sample(Concatenate(1), floats(2, 3, 2), floats(2, 5, 2, seed=1))
    yield sample(Concatenate(0), floats(5, 3))


def _reductions() -> Iterator[Sample]:
    for axes in ((0,), (1,), (0, 1), ()):
        yield sample(ReduceSum(axes), floats(5, 3), label=str(axes))
    yield sample(ReduceSum((1,)), ints(6, 4))
    yield sample(ReduceSum((0, 2)), floats(3, 4, 5))
    yield sample(ReduceSum((0,)), floats(0, 3))
    yield sample(ReduceSum((0,)), complexes(5, 3))
    for op in (R.ReduceMax, R.ReduceMin, R.ReduceProd):
        yield sample(op((0,)), floats(5, 3))
        yield sample(op((0, 1)), floats(6, 4))
        yield sample(op((1,)), ints(6, 4, low=1) % 5 + 1)
        yield sample(op((0, 2)), floats(3, 4, 5, low=0.5, high=1.5))
        yield sample(op((0,)), complexes(5, 3), smooth=False)
    for op in (R.ReduceAnd, R.ReduceOr, R.ReduceXor):
        yield sample(op((0,)), bools(5, 3))
        yield sample(op((0, 1)), ints(6, 4, low=5))
        yield sample(op((1,)), ints(5, 7, low=1000, dtype=np.uint32))
    for op in (R.ArgMax, R.ArgMin):
        yield sample(op((0,), I32), floats(5, 3))
        yield sample(op((1,), I32), ints(6, 7) // 2)
        yield sample(op((0,), I32), bools(9))
        yield sample(op((1,), I32), complexes(2, 7).round())
    for op in (C.CumSum, C.CumProd, C.CumMax, C.CumMin, C.CumLogSumExp):
        for reverse in (False, True):
            yield sample(op(0, reverse), floats(7, 3), label=f"0{reverse}")
            yield sample(op(1, reverse), floats(4, 6), label=f"1{reverse}")
        yield sample(op(0, False), floats(1))
        if op is not C.CumLogSumExp:
            yield sample(op(0, False), ints(6, 4))


def _products() -> Iterator[Sample]:
    for left, right, numbers in (
        ((5, 4), (4, 3), (((1,), (0,)), ((), ()))), ((6, 4), (2, 4), (((1,), (1,)), ((), ()))),
        ((2, 5, 3), (2, 3, 4), (((2,), (1,)), ((0,), (0,)))), ((5, 2, 3), (3, 4, 2), (((2,), (0,)), ((1,), (2,)))),
        ((3,), (4,), (((), ()), ((), ()))), ((5,), (5,), (((0,), (0,)), ((), ()))),
        ((3, 4), (4, 3), (((0, 1), (1, 0)), ((), ()))), ((3, 4, 2), (2, 4, 5), (((2, 1), (0, 1)), ((), ()))),
        ((4, 5), (4, 5), (((), ()), ((0,), (0,)))), ((2, 0), (0, 3), (((1,), (0,)), ((), ()))),
        ((), (3,), (((), ()), ((), ()))),
    ):  # fmt: skip
        yield sample(DotGeneral(numbers), floats(*left), floats(*right, seed=1), label=str(numbers).replace(" ", ""))
    matmul = (((1,), (0,)), ((), ()))
    yield sample(DotGeneral(matmul), ints(6, 4), ints(4, 5, seed=1))
    yield sample(DotGeneral(matmul), complexes(3, 4), complexes(4, 2, seed=1))
    halves = [floats(5, 4).astype(np.float16), floats(4, 3, seed=1).astype(np.float16)]
    yield sample(DotGeneral(matmul, None, F32), *halves, label="f32", smooth=False)


def _sorts() -> Iterator[Sample]:
    for dim in (0, 1):
        yield sample(Sort(dim), floats(7, 4), label=str(dim))
        yield sample(Sort(dim), ints(6, 5) // 2, floats(6, 5), label=f"{dim}-pair")
    yield sample(Sort(0, 2), ints(9) // 3, ints(9, seed=1) // 2, floats(9, seed=2), label="two-keys")
    yield sample(Sort(0), bools(5, 3))
    yield sample(TopK(2), floats(4, 7))
    yield sample(TopK(3), ints(5))
    yield sample(Named("somewhere"), floats(5, 3))


def structural_samples() -> list[Sample]:
    """All of them."""
    return [*_shapes(), *_broadcasts(), *_slices(), *_reductions(), *_products(), *_ragged(), *_sorts()]
