"""Samples of ops that slide windows, index, and draw bits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from meshwright.ops.indexing.gather_add import Gather, ScatterAdd, ScatterDimensionNumbers
from meshwright.ops.indexing.gather_scatter import Scatter, ScatterMax, ScatterMin, ScatterMul
from meshwright.ops.indexing.indexed import GatherDimensionNumbers, GatherScatterMode
from meshwright.ops.indexing.known_places import PlacedUpdate, WholeUpdate
from meshwright.ops.products.conv import conv_general_dilated
from meshwright.ops.random.bit_generator import RngBitGenerator
from meshwright.ops.random.bits import RandomBits
from meshwright.ops.window.reductions import ReduceWindowMax, ReduceWindowMin, ReduceWindowProd, ReduceWindowSum
from meshwright.ops.window.select import SelectAndGatherAdd, SelectAndScatterAdd
from samples.sample import Sample, floats, ints, recorded, sample

#: (shape, window, strides, padding, base dilation, window dilation)
WINDOWS = (
    ((7, 3), (2, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1)),
    ((7, 3), (3, 1), (2, 1), ((1, 1), (0, 0)), (1, 1), (1, 1)),
    ((8, 6), (2, 3), (2, 3), ((0, 0), (0, 0)), (1, 1), (1, 1)),
    ((6, 5), (2, 2), (1, 2), ((1, 0), (0, 1)), (1, 1), (2, 1)),
    ((5, 4), (2, 1), (1, 1), ((0, 1), (0, 0)), (2, 1), (1, 1)),
    ((4, 3), (4, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1)),
)


def _windows() -> Iterator[Sample]:
    for op in (ReduceWindowSum, ReduceWindowMax, ReduceWindowMin, ReduceWindowProd):
        for shape, *params in WINDOWS:
            yield sample(op(*params), floats(*shape), label=str(params[0]))
    yield sample(ReduceWindowSum(*WINDOWS[1][1:]), ints(7, 3))
    for selects in ("ge", "le"):
        for shape, *params in WINDOWS[:4]:
            pooled = ReduceWindowMax(*params).infer(_aval(shape)).shape
            gather, scatter = SelectAndGatherAdd(*params, selects), SelectAndScatterAdd(*params, selects)
            yield sample(gather, floats(*shape), floats(*shape, seed=1), fixed=(1,), label=f"{selects}{params[0]}")
            yield sample(scatter, floats(*pooled), floats(*shape, seed=1), fixed=(1,), label=f"{selects}{params[0]}")


def _aval(shape: tuple[int, ...]) -> ShapedArray:
    return ShapedArray(shape, np.dtype(np.float32))


def _convolutions() -> Iterator[Sample]:
    def conv(label: str, lhs: tuple[int, ...], rhs: tuple[int, ...], *args: object, **kwargs: object) -> Sample:
        return recorded(
            lambda x, k: conv_general_dilated(x, k, *args, **kwargs), floats(*lhs), floats(*rhs, seed=1), label=label
        )

    one = ("NCW", "OIW", "NCW")
    yield conv("plain", (2, 3, 7), (4, 3, 2), (1,), "VALID")
    yield conv("same", (2, 3, 8), (4, 3, 3), (1,), "SAME")
    yield conv("stride", (2, 3, 9), (2, 3, 3), (2,), [(1, 2)])
    yield conv("lhs-dilated", (2, 2, 5), (3, 2, 3), (1,), [(2, 1)], lhs_dilation=(2,))
    yield conv("rhs-dilated", (3, 2, 8), (2, 2, 2), (1,), [(0, 3)], rhs_dilation=(3,))
    yield conv("negative", (2, 2, 7), (3, 2, 2), (1,), [(-1, -2)])
    yield conv("groups", (2, 6, 5), (4, 3, 2), (1,), "VALID", feature_group_count=2)
    yield conv("depthwise", (2, 3, 5), (6, 1, 2), (1,), "SAME", feature_group_count=3)
    yield conv("batch-groups", (4, 3, 5), (6, 3, 2), (1,), "VALID", batch_group_count=2)
    yield conv("layout", (5, 7, 3), (2, 3, 4), (1,), "SAME", dimension_numbers=("WNC", "WIO", "NWC"))
    yield conv("two", (2, 5, 4, 3), (2, 3, 3, 2), (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    yield conv("whole", (2, 3, 4), (2, 3, 4), (1,), "VALID", dimension_numbers=one)


def _dynamic() -> Iterator[Sample]:
    for position in ((0, 0), (2, 1), (4, -1), (9, 9), (-5, 0)):
        starts = [np.int32(i) for i in position]
        yield sample(DynamicSlice((3, 2)), floats(7, 5), *starts, label=str(position))
        yield sample(DynamicUpdateSlice(), floats(7, 5), floats(3, 2, seed=1), *starts, label=str(position))
    for place, size in (((2, 1), (3, 2)), ((0, 1), (1, 4)), ((0, 0), (7, 3)), ((1, 4), (6, 1))):
        full = PlacedUpdate.of(place, size)
        yield sample(full, floats(7, 5), floats(*size, seed=1), label=str(place))
        yield sample(WholeUpdate(*vars(full).values()), floats(7, 5), floats(*size, seed=1), label=str(place))
    yield sample(PlacedUpdate((2, 0), ((0, 1), (1, 4))), floats(7, 5), floats(1, 5, seed=1), label="rows")
    yield sample(PlacedUpdate((0, 1), ((2, 5), (1, 3))), ints(7, 5), ints(7, 3, low=90), label="rows")
    yield sample(DynamicSlice((6, 1)), ints(6, 4), np.int32(0), np.int32(3))
    yield sample(DynamicUpdateSlice(), ints(6, 4), ints(6, 1, low=90), np.int32(0), np.int32(2))


def _rows(ndim: int) -> GatherDimensionNumbers:
    """Windows that are whole rows."""
    return GatherDimensionNumbers(tuple(range(1, ndim)), (0,), (0,))


def _gathers() -> Iterator[Sample]:
    rows = np.array([[4], [0], [6], [2], [2]], np.int32)
    outside = np.array([[-1], [3], [9], [5]], np.int32)
    pairs = np.array([[[0, 1], [4, 2], [6, 0]], [[3, 3], [8, 1], [1, 1]]], np.int32)
    both = GatherDimensionNumbers((), (0, 1), (0, 1))
    windows = GatherDimensionNumbers((1, 2), (), (0, 1))
    batched = GatherDimensionNumbers((2,), (1,), (1,), (0,), (0,))
    for mode in GatherScatterMode:
        indices = rows if mode is GatherScatterMode.PROMISE_IN_BOUNDS else outside
        yield sample(Gather(_rows(2), (1, 3), mode), floats(7, 3), indices, label=mode.value)
    for mode in (GatherScatterMode.CLIP, GatherScatterMode.FILL_OR_DROP):
        yield sample(Gather(both, (1, 1), mode), floats(7, 4), pairs, label=f"pairs-{mode.value}")
        yield sample(Gather(windows, (2, 3), mode), floats(7, 4), pairs[0], label=f"windows-{mode.value}")
    per_row = np.array([[[0], [2]], [[1], [1]], [[3], [0]]], np.int32)
    yield sample(Gather(batched, (1, 1, 2)), floats(3, 4, 2), per_row, label="batched")
    yield sample(Gather(_rows(2), (1, 3)), ints(7, 3), rows)


def _scatters() -> Iterator[Sample]:
    rows = np.array([[4], [0], [6], [2]], np.int32)
    outside = np.array([[-1], [3], [9], [5]], np.int32)
    repeated = np.array([[2], [0], [2], [6], [2]], np.int32)
    by_row = ScatterDimensionNumbers((1,), (0,), (0,))
    by_window = ScatterDimensionNumbers((1, 2), (), (0, 1))
    clip, drop = GatherScatterMode.CLIP, GatherScatterMode.FILL_OR_DROP
    starts = np.array([[0, 1], [4, 0]], np.int32)
    for op in (Scatter, ScatterAdd, ScatterMul, ScatterMin, ScatterMax):
        for mode in (clip, drop):
            yield sample(
                op(by_row, unique_indices=True, mode=mode), floats(7, 3), outside, floats(4, 3, seed=1),
                label=f"{mode.value}",
            )  # fmt: skip
        yield sample(op(by_row, unique_indices=True), ints(6, 3) % 5, rows[:3], ints(3, 3, seed=1) % 7)
        yield sample(op(by_window, unique_indices=True), floats(7, 4), starts, floats(2, 2, 3, seed=1), label="windows")
    for op in (ScatterAdd, ScatterMin, ScatterMax):
        yield sample(op(by_row), floats(7, 3), repeated, floats(5, 3, seed=1), label="repeated")
    batched = ScatterDimensionNumbers((2,), (1,), (1,), (0,), (0,))
    per_row = np.array([[[0], [2]], [[1], [1]], [[3], [0]]], np.int32)
    yield sample(ScatterAdd(batched), floats(3, 4, 2), per_row, floats(3, 2, 2, seed=1), label="batched")


def _bits() -> Iterator[Sample]:
    key = np.array([7, 1 << 31], np.uint32)
    for shape in ((7,), (5, 3), (6, 4), (3, 2, 5), ()):
        yield sample(RandomBits(shape, 32), key, label="x".join(map(str, shape)))
    yield sample(RandomBits((5, 3), 8), key, label="8")
    state = np.array([[1, 2], [2**32 - 3, 2**32 - 1], [2**32 - 1, 3]], np.uint32)  # counters overflow
    yield sample(RngBitGenerator("PHILOX", (8, 3), np.dtype(np.uint32)), state, label="three words")
    yield sample(RngBitGenerator("THREE_FRY", (9, 4), np.dtype(np.uint16)), state[:2], label="two words")


def windowed_samples() -> list[Sample]:
    """All of them."""
    return [*_windows(), *_convolutions(), *_dynamic(), *_gathers(), *_scatters(), *_bits()]
