"""Depthwise convolutions as sums of shifted slices, on CPUs.

If each feature is convolved separately, there is no matrix product, and XLA's CPU kernels take 5 to 100 times as long
as necessary. The result is a sum over kernel taps of a slice of the operand times one weight per feature, which
compiles to one vectorized loop. If the operand is dilated (the gradient of strides), each phase of the result has its
own taps. The kernel gradient is, for each tap, a sum of products over all rows: eight parts of the rows are added
first, which is vectorized too, and then the remaining ones. Measured in float32, CPU time of one thread in
milliseconds:

===========================  =====  ======  =====  ======  =====  ======
image, kernel, stride        here   before  its gradient   the kernel's
===========================  =====  ======  =====  ======  =====  ======
``(4, 56, 56, 96)``, 3, 1      2.6    32.4    2.3    33.1    5.0    50.6
``(4, 56, 56, 96)``, 3, 2      0.7     9.8    0.4   100.3    1.8     7.5
``(4, 14, 14, 576)``, 3, 1     0.6    12.8    0.7    12.8    1.2     9.3
``(1, 56, 56, 96)``, 7, 1      1.8    19.7    1.5    19.0    2.3    22.4
``(4, 28, 28, 240)``, 5, 2     0.8     8.8    0.5   127.9    2.0     9.0
===========================  =====  ======  =====  ======  =====  ======

Padding is multiplied as zeros, so that an infinite weight gives NaN there, as in XLA's kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np

from meshwright.ir.jaxpr import JaxprEqn
from meshwright.ir.tracing import typeof
from meshwright.ops.control.markers import OptimizationBarrier
from meshwright.ops.elementwise.table import add, mul, scalar_like
from meshwright.ops.products.conv_op import ConvGeneralDilated
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, reduce_sum
from meshwright.ops.shape.rearrange import reshape, transpose
from meshwright.ops.shape.slice_pad import concatenate, pad, slice_, slice_in_dim
from meshwright.ops.window.geometry import WindowDim

#: the maximum number of taps
_MOST = 64
#: number of multiply-adds below which this is not faster
_LARGE = 1 << 14
#: number of parts of the rows that are added up first
_PARTS = 8


def by_taps(op: ConvGeneralDilated, eqn: JaxprEqn) -> Any:
    """A function that computes a depthwise convolution, or its kernel gradient, tap by tap; None for others."""
    (x, y), out = (a.aval for a in eqn.invars), eqn.outvars[0].aval
    if x.dtype not in (np.float32, np.float64) or out.dtype != x.dtype:
        return None
    lspec, rspec, ospec = op.dimension_numbers
    windows = op.windows(y.shape)
    if 0 in (*x.shape, *y.shape, *out.shape) or prod(w.size for w in windows) * out.size < _LARGE:
        return None
    if op.batch_group_count == 1 and 1 < op.feature_group_count == x.shape[lspec[1]] == y.shape[rspec[0]]:
        fits = prod(w.size for w in windows) <= _MOST and all(1 in (w.stride, w.base_dilation) for w in windows)
        return _of_taps if fits else None
    if op.feature_group_count == 1 and 1 < op.batch_group_count == x.shape[lspec[0]] == y.shape[rspec[0]]:
        fits = prod(out.shape[d] for d in ospec[2:]) <= _MOST and all(w.base_dilation == 1 for w in windows)
        return _of_sums if fits else None
    return None


# --- the convolution ----------------------------------------------------------------------------------------
def _of_taps(op: ConvGeneralDilated, x: Any, y: Any) -> list[Any]:
    lspec, _, ospec = op.dimension_numbers
    windows, out = op.windows(typeof(y).shape), op.infer(typeof(x), typeof(y))
    counts = [-(-out.shape[d] // w.base_dilation) for d, w in zip(ospec[2:], windows)]
    seen = [sorted({row for r in range(w.base_dilation) for _, row in _taps(w, r)} or {0}) for w in windows]
    config = [(0, 0, 0)] * len(lspec)
    for d, rows, n, w in zip(lspec[2:], seen, counts, windows):
        config[d] = (-rows[0], rows[-1] + (n - 1) * w.stride + 1 - typeof(x).shape[d], 0)
    (x,) = OptimizationBarrier().bind(pad(x, scalar_like(0, x), config))
    phases = []
    for phase in product(*(range(w.base_dilation) for w in windows)):
        taps = product(*(_taps(w, r) for w, r in zip(windows, phase)))
        terms = (
            mul(*_term(op, x, y, [k for k, _ in tap], [row - s[0] for (_, row), s in zip(tap, seen)], counts))
            for tap in taps
        )
        phases.append(_sum(terms, x, op, counts))
    value = phases[0] if len(phases) == 1 else _interleaved(phases, lspec, windows, counts, out.shape, ospec)
    return [transpose(value, [lspec[ospec.index(d)] for d in range(len(ospec))])]


def _taps(window: WindowDim, phase: int) -> Iterator[tuple[int, int]]:
    """The kernel positions of results ``phase, phase + base_dilation, ...``, and the row of each for the first one."""
    for k in range(window.size):
        row, rest = divmod(phase + k * window.window_dilation - window.low, window.base_dilation)
        if not rest:
            yield k, row


def _term(
    op: ConvGeneralDilated, x: Any, y: Any, tap: Sequence[int], rows: Sequence[int], counts: Sequence[int]
) -> tuple[Any, Any]:
    """The operand elements under a tap for each result, and the weights of the tap broadcast to them."""
    lspec, rspec, _ = op.dimension_numbers
    starts, limits, strides = [0] * len(lspec), list(typeof(x).shape), [1] * len(lspec)
    for d, row, n, stride in zip(lspec[2:], rows, counts, op.window_strides):
        starts[d], limits[d], strides[d] = row, row + (n - 1) * stride + 1, stride
    seen = slice_(x, starts, limits, strides)
    first, last = [0] * len(rspec), list(typeof(y).shape)
    for d, k in zip(rspec[2:], tap):
        first[d], last[d] = k, k + 1
    weights = reshape(slice_(y, first, last, [1] * len(rspec)), (typeof(y).shape[rspec[0]],))
    return seen, broadcast_in_dim(weights, typeof(seen).shape, (lspec[1],))


def _sum(terms: Iterator[Any], x: Any, op: ConvGeneralDilated, counts: Sequence[int]) -> Any:
    total = None
    for term in terms:
        total = term if total is None else add(total, term)
    if total is None:  # with strides larger than the kernel, some rows are in no window
        shape = list(typeof(x).shape)
        for d, n in zip(op.dimension_numbers.lhs_spec[2:], counts):
            shape[d] = n
        total = broadcast_in_dim(scalar_like(0, x), shape, ())
    return total


def _interleaved(
    phases: Sequence[Any], lspec: Sequence[int], windows: Sequence[WindowDim], counts: Sequence[int],
    out: Sequence[int], ospec: Sequence[int],
) -> Any:  # fmt: skip
    """The rows of all phases interleaved, cut to the shape of the result."""
    dilations = [w.base_dilation for w in windows]
    shape = typeof(phases[0]).shape
    every = reshape(concatenate([reshape(p, (1, *shape)) for p in phases], 0), (*dilations, *shape))
    order: list[int] = []
    for d in range(len(shape)):
        order.append(len(dilations) + d)
        order += [lspec[2:].index(d)] if d in lspec[2:] else []
    joined = list(shape)
    limits = list(shape)
    for i, d in enumerate(lspec[2:]):
        joined[d], limits[d] = counts[i] * dilations[i], out[ospec[2 + i]]
    return slice_(reshape(transpose(every, order), joined), [0] * len(shape), limits, [1] * len(shape))


# --- the gradient of its kernel -----------------------------------------------------------------------------
def _of_sums(op: ConvGeneralDilated, x: Any, y: Any) -> list[Any]:
    """The kernel gradient: features are batch groups, and windows are as large as the image."""
    lspec, rspec, ospec = op.dimension_numbers
    windows, out = op.windows(typeof(y).shape), op.infer(typeof(x), typeof(y))
    x = transpose(x, (lspec[1], *lspec[2:], lspec[0]))
    y = transpose(y, (rspec[1], *rspec[2:], rspec[0]))
    (x,) = OptimizationBarrier().bind(
        pad(x, scalar_like(0, x), [(0, 0, 0), *((w.low, w.high, 0) for w in windows), (0, 0, 0)])
    )
    batch, *_, features = typeof(y).shape
    sums = []
    for place in product(*(range(out.shape[d]) for d in ospec[2:])):
        starts = [0, *(n * w.stride for n, w in zip(place, windows)), 0]
        limits = [batch, *(s + w.extent for s, w in zip(starts[1:], windows)), features]
        rows = slice_(x, starts, limits, [1, *(w.window_dilation for w in windows), 1])
        sums.append(_summed(mul(rows, y)))
    where = (*ospec[2:], ospec[0], ospec[1])
    value = reshape(concatenate(sums, 0), [out.shape[d] for d in where])
    return [transpose(value, [where.index(d) for d in range(len(where))])]


def _summed(x: Any) -> Any:
    """The sum over all dimensions but features, the last: first of eight parts of the rows, then over their rows."""
    *before, columns, features = typeof(x).shape
    x = reshape(x, (prod(before), columns * features))
    each, rest = divmod(prod(before), _PARTS)
    if each > 1:
        parts = [slice_in_dim(x, n * each, (n + 1) * each) for n in range(_PARTS)]
        total = reduce(add, parts)
        x = concatenate([total, slice_in_dim(x, _PARTS * each, _PARTS * each + rest)], 0) if rest else total
    (x,) = OptimizationBarrier().bind(x)
    return reduce_sum(reshape(x, (typeof(x).shape[0] * columns, features)), (0,))
