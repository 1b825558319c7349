"""Pooling over windows, and to given sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.core import dtypes
from meshwright.errors import RuleError
from meshwright.interop.torch.dtypes import array_dtype
from meshwright.interop.torch.ops.convolution import _each
from meshwright.interop.torch.promotion import cast, in_single
from meshwright.interop.torch.registry import register
from meshwright.transforms.custom_jvp import custom_jvp


def _end(size: int, window: int, stride: int, pad: int, ceil: bool) -> int:
    """How far to pad behind, so that windows are as many as torch has: with ``ceil`` also one that only begins in."""
    span = size + 2 * pad - window
    count = (-(-span // stride) if ceil else span // stride) + 1
    if ceil and (count - 1) * stride >= size + pad:
        count -= 1
    return (count - 1) * stride + window - size - pad


def _windows(x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, n: int) -> tuple[Any, ...]:
    kernel, padding, dilation = (_each(v, n) for v in (kernel, padding, dilation))
    stride = _each(stride, n) if stride not in (None, [], ()) else kernel
    lead = (1,) * (x.ndim - n)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
    sizes = x.shape[x.ndim - n :]
    pads = [(p, _end(s, k, t, p, ceil)) for s, k, t, p in zip(sizes, spans, stride, padding)]
    return (*lead, *kernel), (*lead, *stride), ((0, 0),) * len(lead) + tuple(pads), (*lead, *dilation)


def _least(dtype: np.dtype) -> Any:
    return np.asarray(-math.inf if dtype.kind not in "iu" else np.iinfo(dtype).min, dtype)


def max_pool(self: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, n: int) -> Any:
    window, strides, pads, dilations = _windows(self, kernel, stride, padding, dilation, ceil, n)
    return lax.reduce_window(self, _least(self.dtype), lax.max, window, strides, pads, window_dilation=dilations)


def avg_pool(
    self: Any, kernel: Any, stride: Any, padding: Any, ceil: bool, include: bool, divisor: int | None, n: int
) -> Any:
    window, strides, pads, _ = _windows(self, kernel, stride, padding, 1, ceil, n)
    total = lax.reduce_window(self, np.asarray(0, self.dtype), lax.add, window, strides, pads)
    if divisor is not None:
        return total / divisor
    return total / _counts(
        self.shape[self.ndim - n :], window[-n:], strides[-n:], pads[-n:], _each(padding, n), include
    )


def _counts(sizes: Any, window: Any, strides: Any, pads: Any, padding: Any, include: bool) -> np.ndarray:
    """How many elements each window has: with ``include`` those of the (symmetric) padding are some."""
    per_dim = []
    for size, k, t, (low, high), p in zip(sizes, window, strides, pads, padding):
        starts = np.arange((size + low + high - k) // t + 1) * t - low
        first, last = (-p, size + p) if include else (0, size)
        per_dim.append(np.minimum(starts + k, last) - np.maximum(starts, first))
    out = per_dim[0]
    for counts in per_dim[1:]:
        out = out[..., None] * counts
    return out.astype(np.float32)


def _register(n: int) -> None:
    @register(f"aten.max_pool{n}d")
    def _max(
        self: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        return max_pool(self, kernel_size, stride, padding, dilation, ceil_mode, n)

    @register(f"aten.max_pool{n}d_with_indices")
    def _max_with_indices(
        self: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        return with_indices(self, kernel_size, stride, padding, dilation, ceil_mode, n)

    @register(f"aten.avg_pool{n}d")
    @in_single
    def _avg(
        self: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Any:  # fmt: skip
        args = stride, padding, ceil_mode, count_include_pad, divisor_override
        return _typed_like(avg_pool(self, kernel_size, *args, n), self)

    @register(f"aten.adaptive_avg_pool{n}d", f"aten._adaptive_avg_pool{n}d")
    @in_single
    def _adaptive_avg(self: Any, output_size: Any) -> Any:
        return adaptive_avg_pool(self, _sizes(self, output_size, n), n)

    @register(f"aten.adaptive_max_pool{n}d")
    def _adaptive_max(self: Any, output_size: Any) -> Any:
        sizes = _sizes(self, output_size, n)
        inner = self.shape[self.ndim - n :]
        if 0 in sizes or any(i % o for i, o in zip(inner, sizes)):
            return _of_taps(self, _taps(inner, [_parts(i, o) for i, o in zip(inner, sizes)]), n)
        kernel = [i // o for i, o in zip(inner, sizes)]
        return with_indices(self, kernel, kernel, 0, 1, False, n)


def _typed_like(x: Any, like: Any) -> Any:
    return cast(x, like.dtype)


def with_indices(self: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, n: int) -> Any:
    """Maxima, and where in the flat spatial dimensions the first of each window is."""
    out = max_pool(self, kernel, stride, padding, dilation, ceil, n)
    windows = [d[-n:] for d in _windows(self, kernel, stride, padding, dilation, ceil, n)]
    at = [
        np.arange(count)[:, None] * t - low + np.arange(k) * step
        for count, k, t, (low, _), step in zip(out.shape[-n:], *windows)
    ]
    return out, _of_taps(self, _taps(self.shape[self.ndim - n :], at), n)[1]


def _of_taps(x: Any, taps: np.ndarray, n: int) -> tuple[Any, Any]:
    """Maxima of what windows see, and where: the first of each, but the last NaN."""
    flat = x.reshape(*x.shape[: x.ndim - n], -1)
    seen = mnp.where(taps >= 0, flat[..., np.maximum(taps, 0)], _least(x.dtype))
    return _first_largest(seen, taps)


def _first_largest(seen: Any, taps: Any) -> tuple[Any, Any]:
    """Of what windows see at places, -1 for none: the largest, and the place of the first of these, or the last NaN."""
    fixed, place = lax.stop_gradient(seen), np.arange(taps.shape[-1], dtype=np.int32)
    is_largest = (fixed == mnp.max(fixed, -1, keepdims=True)) & (taps >= 0)
    rank = mnp.where(is_largest, -place, -place.size)
    if dtypes.is_inexact(seen.dtype):
        rank = mnp.where(mnp.isnan(fixed), place + 1, rank)
    first = mnp.argmax(rank, -1)[..., None]
    index = mnp.take_along_axis(mnp.broadcast_to(taps, seen.shape), first, -1)[..., 0]
    return mnp.take_along_axis(seen, first, -1)[..., 0], cast(index, array_dtype(torch.int64))


def _taps(sizes: Sequence[int], at: Sequence[np.ndarray]) -> np.ndarray:
    """The flat position that each output's window sees at each of its elements; -1 for padding.

    ``at`` is ``[outputs, elements]`` of each dimension: where it is read."""
    n = len(sizes)
    flat, inside = np.zeros((), np.int32), np.ones((), bool)
    for d, (size, where) in enumerate(zip(sizes, at)):
        shape = [1] * (2 * n)
        shape[d], shape[n + d] = where.shape
        flat = flat * size + where.reshape(shape)
        inside = inside & ((where >= 0) & (where < size)).reshape(shape)
    taps = np.where(inside, flat, -1)
    return taps.reshape(*taps.shape[:n], -1).astype(np.int32)


def _parts(size: int, out: int) -> np.ndarray:
    """``[out, rows]``: the rows that parts of a dimension have; -1 where another part has more."""
    starts, ends = _bounds(size, out)
    rows = starts[:, None] + np.arange((ends - starts).max())
    return np.where(rows < ends[:, None], rows, -1)


def _sizes(x: Any, output_size: Any, n: int) -> tuple[int, ...]:
    given = _each(output_size, n)
    return tuple(s if o is None else o for o, s in zip(given, x.shape[x.ndim - n :]))


def _bounds(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """Where parts of a dimension start and end."""
    return np.arange(out) * size // out, -(-(np.arange(1, out + 1) * size) // out)


@cache
def _averages(size: int, out: int) -> np.ndarray:
    """``[size, out]``: the share of each row in each mean."""
    starts, ends = _bounds(size, out)
    row = np.arange(size)[:, None]
    return ((row >= starts) & (row < ends)) / (ends - starts)


def adaptive_avg_pool(x: Any, sizes: tuple[int, ...], n: int) -> Any:
    """Means over parts of equal size, or, where sizes do not divide, over parts that overlap."""
    if not dtypes.is_inexact(x.dtype):
        raise RuleError(f"there are no means of {x.dtype} over parts, in torch neither; convert it to float32")
    for d, out in zip(range(x.ndim - n, x.ndim), sizes):
        size = x.shape[d]
        if out == 1:
            x = mnp.mean(x, d, keepdims=True)
        elif out and size % out == 0:
            x = mnp.mean(x.reshape(*x.shape[:d], out, size // out, *x.shape[d + 1 :]), d + 1)
        else:
            share = mnp.asarray(_averages(size, out)).astype(x.dtype)
            share = share.reshape(*share.shape, *[1] * (x.ndim - d - 1))
            # not a product: what a part does not hold may be infinite
            x = mnp.sum(mnp.where(share == 0, 0, mnp.expand_dims(x, d + 1) * share), d)
    return x


for _n in (1, 2, 3):
    _register(_n)


# --- windows at random places -------------------------------------------------------------------------------
def _starts(size: int, out: int, window: int, drawn: Any) -> Any:
    """Where ``out`` windows of a dimension begin, in steps that differ by one, for a number between 0 and 1."""
    last = size - window
    if out == 1:
        return mnp.full((*drawn.shape, 1), last, np.int32)
    step = cast(np.asarray(last / (out - 1)), drawn.dtype)
    places = (mnp.arange(out).astype(drawn.dtype) + drawn[..., None]) * step
    starts = mnp.trunc(places) - mnp.trunc(drawn[..., None] * step)
    return mnp.where(mnp.arange(out) == out - 1, last, starts).astype(np.int32)


def _fractional_max_pool(x: Any, window: Sequence[int], sizes: Sequence[int], drawn: Any, places: Any) -> Any:
    """Maxima and where they are. ``places``: which of the numbers drawn is for which dimension."""
    n = len(window)
    lead, inner = x.shape[: x.ndim - n], x.shape[x.ndim - n :]
    drawn = mnp.broadcast_to(drawn, (*drawn.shape[: drawn.ndim - 1], n)).reshape(*lead, n)
    flat: Any = np.zeros((), np.int32)
    for d, (size, out, k) in enumerate(zip(inner, sizes, window)):
        rows = _starts(size, out, k, drawn[..., places[d]])[..., None] + np.arange(k, dtype=np.int32)
        shape = [1] * (2 * n)
        shape[d], shape[n + d] = out, k
        flat = flat * size + rows.reshape(*lead, *shape)
    taps = flat.reshape(*lead, math.prod(sizes), math.prod(window))
    seen = mnp.take_along_axis(x.reshape(*lead, 1, -1), taps, -1)
    out, index = _first_largest(seen, taps)
    return out.reshape(*lead, *sizes), index.reshape(*lead, *sizes)


@register("aten.fractional_max_pool2d")
def fractional_max_pool2d(self: Any, kernel_size: Any, output_size: Any, random_samples: Any) -> tuple[Any, Any]:
    return _fractional_max_pool(self, _each(kernel_size, 2), _each(output_size, 2), random_samples, (1, 0))


@register("aten.fractional_max_pool3d")
def fractional_max_pool3d(self: Any, kernel_size: Any, output_size: Any, random_samples: Any) -> tuple[Any, Any]:
    return _fractional_max_pool(self, _each(kernel_size, 3), _each(output_size, 3), random_samples, (0, 1, 2))


# --- undone -------------------------------------------------------------------------------------------------
@custom_jvp
def _placed(x: Any, index: Any, like: Any) -> Any:
    """Rows with the elements of ``x`` at the places of ``index``, and 0 elsewhere. In torch's derivative all elements
    that have the same place count, not only the one that is there."""
    return _written(x, index, like, "set")


@_placed.defjvp
def _placed_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    _, index, like = primals
    return _placed(*primals), _written(tangents[0], index, like, "add")


def _written(x: Any, index: Any, like: Any, how: str) -> Any:
    rows = mnp.arange(x.shape[0])[:, None]
    return getattr(mnp.zeros_like(like, x.dtype).at[rows, index], how)(x)


def _max_unpool(self: Any, indices: Any, output_size: Sequence[int]) -> Any:
    lead = self.shape[: self.ndim - len(output_size)]
    count = math.prod(lead)
    like = mnp.zeros((count, math.prod(output_size)), self.dtype)
    return _placed(self.reshape(count, -1), indices.reshape(count, -1), like).reshape(*lead, *output_size)


register("aten.max_unpool2d")(_max_unpool)


@register("aten.max_unpool3d")
def max_unpool3d(self: Any, indices: Any, output_size: Sequence[int], stride: Any, padding: Any) -> Any:
    """``stride`` and ``padding`` are what the size was made of."""
    return _max_unpool(self, indices, output_size)
