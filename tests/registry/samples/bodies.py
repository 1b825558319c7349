"""Samples of ops with functions of scalars of their own, and of comparison by total order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.tracing import trace_to_jaxpr
from meshwright.ops.elementwise.bitcast import BitcastWidth
from meshwright.ops.elementwise.chlo import MulHi
from meshwright.ops.elementwise.table import abs_, add, ge, gt, log, mul, select, sub
from meshwright.ops.elementwise.table import exp as exp_
from meshwright.ops.elementwise.total_order import CompareTotal
from meshwright.ops.indexing.gather_add import ScatterDimensionNumbers
from meshwright.ops.indexing.gather_scatter import ScatterBody
from meshwright.ops.random.bit_generator import Philox4x32
from meshwright.ops.reduce.associative import AssociativeScan, LinearRecurrence
from meshwright.ops.reduce.body import ReduceBody
from meshwright.ops.scalar_body import Map
from meshwright.ops.sort.sorting import SortBody
from meshwright.ops.window.body import ReduceWindowBody, SelectAndScatterBody
from samples.sample import Sample, floats, ints, sample

F32, I32 = np.dtype(np.float32), np.dtype(np.int32)


def body(fun: Callable[..., Any], *dtypes: np.dtype) -> ClosedJaxpr:
    """A function of scalars as a jaxpr."""
    return trace_to_jaxpr(lambda *xs: list(fun(*xs)), [ShapedArray((), d) for d in dtypes], "body")


def _farther(a: Any, i: Any, b: Any, j: Any) -> list[Any]:
    """Of two (value, position) pairs the one farther from zero, the first of equal ones."""
    first = ge(abs_(a), abs_(b))
    return [select(first, a, b), select(first, i, j)]


#: pairs that keep the one farther from zero; log-sum-exp; affine functions one after the other (does not commute)
FARTHER = body(_farther, F32, I32, F32, I32)
LOG_SUM = body(lambda a, b: [log(add(exp_(a), exp_(b)))], F32, F32)
AFFINE = body(lambda a, s, b, t: [mul(a, b), add(mul(s, b), t)], F32, F32, F32, F32)
BY_SIZE = body(lambda a, b, i, j: [gt(abs_(a), abs_(b))], F32, F32, I32, I32)
LOWEST = np.float32(-1e30)
ZERO, ONE, NONE = np.float32(0), np.float32(1), np.int32(-1)


def body_samples() -> Iterator[Sample]:
    """All samples of this file."""
    yield from _reductions()
    yield from _windows()
    yield from _rest()


def _reductions() -> Iterator[Sample]:
    pair = floats(7, 5), ints(7, 5)
    for axes in ((0,), (1,), (0, 1)):
        yield _sample(ReduceBody(axes, FARTHER), *pair, ZERO, NONE, label=str(axes))
    # These initial values change the result: they have to count once.
    yield _sample(ReduceBody((0,), LOG_SUM), floats(5, 4), np.float32(1.5), label="start")
    yield _sample(ReduceBody((0,), AFFINE), floats(6, 3), floats(6, 3, seed=1), np.float32(2), np.float32(-3))
    for axis, reverse in ((0, False), (0, True), (1, False)):
        label = f"{axis}-{reverse}"
        yield _sample(AssociativeScan(LOG_SUM, axis, reverse), floats(7, 4), label=label)
        yield _sample(
            AssociativeScan(AFFINE, axis, reverse), floats(7, 5), floats(7, 5, seed=1), label=f"affine {label}"
        )
        yield _sample(AssociativeScan(FARTHER, axis, reverse), floats(7, 5), ints(7, 5), label=f"c {label}")
        matrix = (floats(6, 3, seed=i) for i in range(3))
        op = LinearRecurrence(((0, 0), (1, 0), (1, 1)), axis, reverse)
        yield _sample(op, *matrix, floats(6, 3, seed=4), floats(6, 3, seed=5), label=label)


def _windows() -> Iterator[Sample]:
    ones = (1, 1)
    for sizes, strides, pads, base, window in (
        ((2, 1), ones, ((0, 0), (0, 0)), ones, ones),
        ((3, 1), (2, 1), ((1, 1), (0, 0)), ones, ones),
        ((2, 2), ones, ((1, 0), (0, 1)), ones, (2, 1)),
        ((2, 1), ones, ((0, 1), (0, 0)), (2, 1), ones),
    ):
        op = ReduceWindowBody(sizes, strides, pads, base, window, FARTHER)
        yield _sample(op, floats(7, 3), ints(7, 3), ZERO, NONE, label=f"{sizes}{strides}{window}{base}")
    choice = body(lambda a, b: [ge(abs_(a), abs_(b))], F32, F32)
    scatter = SelectAndScatterBody((1, 2), (1, 2), ((0, 0), (0, 0)), ones, ones, choice, body(_larger, F32, F32))
    yield _sample(scatter, floats(5, 6), floats(5, 3, seed=1), LOWEST)


def _larger(a: Any, b: Any) -> list[Any]:
    return [select(gt(abs_(a), abs_(b)), a, b)]


def _rest() -> Iterator[Sample]:
    yield _sample(Map(body(lambda a, b: [mul(a, b), sub(a, b)], F32, F32)), floats(5, 3), floats(5, 3, seed=1))
    for dim in (0, 1):
        for stable in (True, False):
            op = SortBody(dim, BY_SIZE, stable)
            yield _sample(op, floats(7, 5), ints(7, 5), label=f"{dim}-{stable}")
    rows = ScatterDimensionNumbers((1,), (0,), (0,))
    index = np.array([[3], [0], [9], [5]], np.int32)
    yield _sample(ScatterBody(rows, computation=body(_larger, F32, F32)), floats(7, 3), index, floats(4, 3, seed=1))
    operands = floats(7, 3), ints(7, 3), index, floats(4, 3, seed=1), ints(4, 3, seed=2)
    yield _sample(ScatterBody(rows, computation=FARTHER), *operands)
    special = np.array([[0.0, -0.0, np.nan], [-np.nan, 1, -1], [np.inf, -np.inf, 0]], np.float32)
    for direction in ("LT", "EQ", "GE"):
        yield _sample(CompareTotal(direction), special, special[::-1].copy(), label=direction)

    yield _sample(BitcastWidth(np.dtype(np.uint8)), floats(5, 3))
    yield _sample(BitcastWidth(np.dtype(np.float32)), ints(7, 2).astype(np.int16))
    yield _sample(MulHi(), ints(5, 3) * 1234567, ints(5, 3, seed=1) * 7654321)
    words = [ints(5, 3, seed=i).astype(np.uint32) for i in range(6)]
    yield _sample(Philox4x32(), *words)


def _sample(op: Any, *args: Any, label: str = "") -> Sample:
    return sample(op, *args, label=label, smooth=False)
