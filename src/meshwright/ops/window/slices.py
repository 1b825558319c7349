"""Windows as slices: one strided slice per position in a window, and the sum that is their transpose."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import reduce
from typing import Any

from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import add, scalar_like
from meshwright.ops.shape.slice_pad import pad, slice_
from meshwright.ops.window.geometry import WindowDim


def window_slices(x: Any, windows: Sequence[WindowDim], fill: Any) -> list[Any]:
    """For each position in the window, row-major, the operand's elements at that position of all windows."""
    shape = typeof(x).shape
    rows = [w.output_size(n) for w, n in zip(windows, shape)]
    x = pad(x, fill, [(w.low, w.high, w.base_dilation - 1) for w in windows])
    strides = [w.stride for w in windows]
    slices = []
    for offset in window_offsets(windows):
        starts = [o if m else 0 for o, m in zip(offset, rows)]
        limits = [o + (m - 1) * s + 1 if m else 0 for o, m, s in zip(offset, rows, strides)]
        slices.append(slice_(x, starts, limits, strides))
    return slices


def window_unslice(parts: Sequence[Any], windows: Sequence[WindowDim], shape: Sequence[int]) -> Any:
    """The transpose of :func:`window_slices`: the sum of the contributions of all positions."""
    zero = scalar_like(0, parts[0])
    terms = []
    for part, offset in zip(parts, window_offsets(windows)):
        config = []
        for m, n, o, w in zip(typeof(part).shape, shape, offset, windows):
            start, rows = (o, (m - 1) * w.stride + 1) if m else (0, 0)
            config.append((start, w.padded_size(n) - start - rows, w.stride - 1))
        terms.append(pad(part, zero, config))
    total = pad(reduce(add, terms), zero, [(-w.low, -w.high, 0) for w in windows])
    return slice_(total, [0] * len(windows), typeof(total).shape, [w.base_dilation for w in windows])


def window_offsets(windows: Sequence[WindowDim]) -> list[tuple[int, ...]]:
    """The positions in a window, row-major."""
    return list(itertools.product(*(range(0, w.extent, w.window_dilation) for w in windows)))
