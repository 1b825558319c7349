"""New tensors: filled, counting, like others. What torch leaves uninitialized is zeros."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from meshwright import numpy as mnp
from meshwright.core import dtypes
from meshwright.interop.torch.dtypes import array_dtype
from meshwright.interop.torch.promotion import cast
from meshwright.interop.torch.registry import register


def dtype_of(value: Any, dtype: Any) -> np.dtype:
    """``dtype``, or what torch makes of a Python number without one."""
    if dtype is not None:
        return array_dtype(dtype)
    if isinstance(value, bool):
        return dtypes.bool_
    return array_dtype(torch.int64 if isinstance(value, int) else torch.get_default_dtype())


@register("aten.full")
def full(size: Any, fill_value: Any, dtype: Any = None) -> Any:
    return mnp.full(tuple(size), fill_value, dtype_of(fill_value, dtype))


@register("aten.full_like")
def full_like(self: Any, fill_value: Any, dtype: Any = None) -> Any:
    return mnp.full(self.shape, fill_value, self.dtype if dtype is None else array_dtype(dtype))


@register("aten.new_full")
def new_full(self: Any, size: Any, fill_value: Any, dtype: Any = None) -> Any:
    return mnp.full(tuple(size), fill_value, self.dtype if dtype is None else array_dtype(dtype))


@register("aten.fill")
def fill(self: Any, value: Any) -> Any:
    return mnp.broadcast_to(mnp.asarray(value).astype(self.dtype), self.shape)


def _constants(name: str, value: int) -> None:
    register(f"aten.{name}")(lambda size, dtype=None: full(size, float(value), dtype))
    register(f"aten.{name}_like")(lambda self, dtype=None: full_like(self, value, dtype))
    register(f"aten.new_{name}")(lambda self, size, dtype=None: new_full(self, size, value, dtype))


for _name, _value in (("zeros", 0), ("ones", 1), ("empty", 0)):
    _constants(_name, _value)
register("aten.zero")(lambda self: mnp.zeros_like(self))


@register("aten._new_zeros_with_same_feature_meta")
def zero_tangent(self: Any, other: Any, self_num_batch_dims: int = 0) -> Any:
    """What forward mode takes for the tangent of ``other``: batched as ``self`` is."""
    return mnp.zeros((*self.shape[:self_num_batch_dims], *other.shape), other.dtype)


@register("aten.empty_strided", "aten.empty_permuted")
def empty(size: Any, dtype: Any = None) -> Any:
    return full(size, 0.0, dtype)


@register("aten.new_empty_strided")
def new_empty(self: Any, size: Any, dtype: Any = None) -> Any:
    return new_full(self, size, 0, dtype)


@register("aten.scalar_tensor")
def scalar_tensor(s: Any, dtype: Any = None) -> Any:
    return mnp.full((), s, dtype_of(0.0, dtype))


@register("aten.arange")
def arange(end: Any, dtype: Any = None) -> Any:
    return arange_step(0, end, 1, dtype)


register("aten.arange.start")(lambda start, end, dtype=None: arange_step(start, end, 1, dtype))


@register("aten.arange.start_step")
def arange_step(start: Any, end: Any, step: Any = 1, dtype: Any = None) -> Any:
    if isinstance(dtype, torch.dtype) and not (dtype.is_floating_point or dtype.is_complex):
        start, end, step = map(int, (start, end, step))
    whole = all(isinstance(x, int) for x in (start, end, step))
    return mnp.asarray(np.arange(start, end, step)).astype(dtype_of(0 if whole else 0.0, dtype))


@register("aten.range")
def closed_range(start: Any, end: Any, dtype: Any = None) -> Any:
    return closed_range_step(start, end, 1, dtype)


@register("aten.range.step")
def closed_range_step(start: Any, end: Any, step: Any = 1, dtype: Any = None) -> Any:
    """With its end, where a step reaches that; floats, unless a dtype is given."""
    count = math.floor((end - start) / step) + 1
    return mnp.asarray(start + step * np.arange(count)).astype(dtype_of(0.0, dtype))


@register("aten.linspace")
def linspace(start: Any, end: Any, steps: int, dtype: Any = None) -> Any:
    kind = dtype_of(0.0, dtype)
    if not dtypes.is_integer(kind):
        return mnp.linspace(start, end, steps, dtype=kind)
    start, end = (int(x) if isinstance(x, (int, float)) else cast(x, kind) for x in (start, end))
    lib = np if isinstance(start, int) and isinstance(end, int) else mnp
    at, step = lib.arange(steps), (end - start) / max(steps - 1, 1)
    values = lib.where(at < max(steps // 2, 1), start + step * at, end - step * (steps - 1 - at))
    return mnp.asarray(lib.trunc(values)).astype(kind)  # from both ends, towards 0


@register("aten.eye")
def eye(n: int, dtype: Any = None) -> Any:
    return mnp.eye(n, dtype=dtype_of(0.0, dtype))


register("aten.eye.m")(lambda n, m, dtype=None: mnp.eye(n, m, dtype=dtype_of(0.0, dtype)))


def _triangle_indices(function: Any) -> Any:
    def rule(row: int, col: int, offset: int = 0, dtype: Any = None) -> Any:
        given = dtype if isinstance(dtype, torch.dtype) else None  # the schema's own default is a number
        return mnp.asarray(np.stack(function(row, offset, col))).astype(dtype_of(0, given))

    return rule


register("aten.tril_indices")(_triangle_indices(np.tril_indices))
register("aten.triu_indices")(_triangle_indices(np.triu_indices))


def _window(window_length: int, periodic: bool, dtype: Any, function: Callable[[np.ndarray], np.ndarray]) -> Any:
    """A function of x = 0 … 2π, without its last value where the window is periodic."""
    x = 2 * math.pi * np.arange(window_length) / max(window_length - (not periodic), 1)
    values = function(x) if window_length != 1 else np.ones(1)
    return mnp.asarray(values).astype(dtype_of(0.0, dtype))


@register("aten.hamming_window")
def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, dtype: Any = None
) -> Any:
    return _window(window_length, periodic, dtype, lambda x: alpha - beta * np.cos(x))


@register("aten.blackman_window")
def blackman_window(window_length: int, periodic: bool = True, dtype: Any = None) -> Any:
    return _window(window_length, periodic, dtype, lambda x: 0.42 - 0.5 * np.cos(x) + 0.08 * np.cos(2 * x))


@register("aten.bartlett_window")
def bartlett_window(window_length: int, periodic: bool = True, dtype: Any = None) -> Any:
    return _window(window_length, periodic, dtype, lambda x: 1 - np.abs(x / math.pi - 1))


@register("aten.kaiser_window")
def kaiser_window(window_length: int, periodic: bool = True, beta: float = 12.0, dtype: Any = None) -> Any:
    def shape(x: np.ndarray) -> np.ndarray:
        return np.asarray(np.i0(beta * np.sqrt(1 - (x / math.pi - 1) ** 2)) / np.i0(beta))

    return _window(window_length, periodic, dtype, shape)


@register("aten.one_hot")
def one_hot(self: Any, num_classes: int = -1) -> Any:
    return (self[..., None] == mnp.arange(num_classes, dtype=self.dtype)).astype(array_dtype(torch.int64))
