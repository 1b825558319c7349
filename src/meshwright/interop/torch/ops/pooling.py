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
from meshwright.errors import RuleError
from meshwright.interop.torch.dtypes import array_dtype
from meshwright.interop.torch.ops.convolution import _each
from meshwright.interop.torch.ops.elementwise import cast
from meshwright.interop.torch.registry import register


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
    def _avg(
        self: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Any:  # fmt: skip
        args = stride, padding, ceil_mode, count_include_pad, divisor_override
        return _typed_like(avg_pool(self, kernel_size, *args, n), self)

    @register(f"aten.adaptive_avg_pool{n}d", f"aten._adaptive_avg_pool{n}d")
    def _adaptive_avg(self: Any, output_size: Any) -> Any:
        return adaptive_avg_pool(self, _sizes(self, output_size, n), n)

    @register(f"aten.adaptive_max_pool{n}d")
    def _adaptive_max(self: Any, output_size: Any) -> Any:
        sizes = _sizes(self, output_size, n)
        inner = self.shape[self.ndim - n :]
        if any(i % o for i, o in zip(inner, sizes)):
            raise RuleError(f"adaptive_max_pool: {inner} does not divide into {sizes}; use sizes that do")
        kernel = [i // o for i, o in zip(inner, sizes)]
        return with_indices(self, kernel, kernel, 0, 1, False, n)


def _typed_like(x: Any, like: Any) -> Any:
    return cast(x, like.dtype)


def with_indices(self: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, n: int) -> Any:
    """Maxima, and where in the flat spatial dimensions the first of each window is."""
    out = max_pool(self, kernel, stride, padding, dilation, ceil, n)
    lead, sizes = self.shape[: self.ndim - n], self.shape[self.ndim - n :]
    window, strides, pads, dilations = _windows(self, kernel, stride, padding, dilation, ceil, n)
    taps = _taps(sizes, out.shape[-n:], window[-n:], strides[-n:], pads[-n:], dilations[-n:])
    flat = self.reshape(*lead, -1)
    seen = mnp.where(taps >= 0, flat[..., np.maximum(taps, 0)], _least(self.dtype))
    first = mnp.argmax(lax.stop_gradient(seen), -1)
    index = mnp.take_along_axis(mnp.broadcast_to(taps, seen.shape), first[..., None], -1)[..., 0]
    return out, cast(index, array_dtype(torch.int64))


def _taps(sizes: Any, outs: Any, window: Any, strides: Any, pads: Any, dilations: Any) -> np.ndarray:
    """The flat position that each output's window sees at each of its elements; -1 for padding."""
    n = len(sizes)
    flat, inside = np.zeros((), np.int32), np.ones((), bool)
    for d, (size, out, k, t, (low, _), step) in enumerate(zip(sizes, outs, window, strides, pads, dilations)):
        at = np.arange(out)[:, None] * t - low + np.arange(k) * step
        shape = [1] * (2 * n)
        shape[d], shape[n + d] = out, k
        flat = flat * size + at.reshape(shape)
        inside = inside & ((at >= 0) & (at < size)).reshape(shape)
    taps = np.where(inside, flat, -1)
    return taps.reshape(*outs, -1).astype(np.int32)


def _sizes(x: Any, output_size: Any, n: int) -> tuple[int, ...]:
    given = _each(output_size, n)
    return tuple(s if o is None else o for o, s in zip(given, x.shape[x.ndim - n :]))


@cache
def _averages(size: int, out: int) -> np.ndarray:
    """``[size, out]``: the share of each row in each mean."""
    starts, ends = np.arange(out) * size // out, -(-(np.arange(1, out + 1) * size) // out)
    row = np.arange(size)[:, None]
    return ((row >= starts) & (row < ends)) / (ends - starts)


def adaptive_avg_pool(x: Any, sizes: tuple[int, ...], n: int) -> Any:
    """Means over parts of equal size, or, where sizes do not divide, over parts that overlap."""
    for d, out in zip(range(x.ndim - n, x.ndim), sizes):
        size = x.shape[d]
        if out == 1:
            x = mnp.mean(x, d, keepdims=True)
        elif size % out == 0:
            x = mnp.mean(x.reshape(*x.shape[:d], out, size // out, *x.shape[d + 1 :]), d + 1)
        else:
            share = mnp.asarray(_averages(size, out)).astype(x.dtype)
            x = mnp.moveaxis(mnp.tensordot(x, share, ((d,), (0,))), -1, d)
    return x


for _n in (1, 2, 3):
    _register(_n)


# --- resampling ---------------------------------------------------------------------------------------------
def _nearest(x: Any, sizes: Sequence[int], exact: float) -> Any:
    n = len(sizes)
    for d, out in zip(range(x.ndim - n, x.ndim), sizes):
        size = x.shape[d]
        if out != size:
            at = np.minimum(np.floor((np.arange(out) + exact) * (size / out)).astype(np.int32), size - 1)
            x = mnp.repeat(x, out // size, d) if out % size == 0 else mnp.take(x, at, d)
    return x


def _scaled(x: Any, size: Any, factors: Any, n: int) -> list[int]:
    return list(size) if size is not None else [int(s * f) for s, f in zip(x.shape[x.ndim - n :], factors)]


for _n in (1, 2, 3):
    register(f"aten.upsample_nearest{_n}d.vec")(
        lambda input, output_size, scale_factors, n=_n: _nearest(
            input, _scaled(input, output_size, scale_factors, n), 0
        )
    )
    register(f"aten.upsample_nearest{_n}d.default")(lambda self, output_size: _nearest(self, output_size, 0))
