"""Order: sorts, the largest, positions in sorted values, histograms of fixed size."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.interop.torch.dtypes import array_dtype
from meshwright.interop.torch.ops.reductions import evenly
from meshwright.interop.torch.promotion import cast
from meshwright.interop.torch.registry import register
from meshwright.transforms.vmap import vmap


def _index(x: Any) -> Any:
    return cast(x, array_dtype(torch.int64))


def _sorted(x: Any, dim: int, descending: bool) -> tuple[Any, Any]:
    if x.ndim == 0:
        return x, mnp.zeros((), array_dtype(torch.int64))
    at = mnp.argsort(x, dim, stable=True, descending=descending)
    return mnp.take_along_axis(x, at, dim), _index(at)


@register("aten.sort", "aten.sort.stable")
def sort(self: Any, dim: int = -1, descending: bool = False, stable: bool | None = None) -> tuple[Any, Any]:
    return _sorted(self, dim, descending)


@register("aten.argsort", "aten.argsort.stable")
def argsort(self: Any, dim: int = -1, descending: bool = False, stable: bool | None = None) -> Any:
    return _sorted(self, dim, descending)[1]


register("aten.msort")(lambda self: _sorted(self, 0, False)[0])


@register("aten.nonzero_static")
def nonzero_static(self: Any, size: int, fill_value: int = -1) -> Any:
    """The positions of the first ``size`` elements that are not 0, a row each; rows that are left are filled."""
    if self.ndim == 0:  # of which a row has no numbers
        return _index(mnp.zeros((size, 0), int))
    return _index(mnp.stack(mnp.nonzero(self, size=size, fill_value=fill_value), -1))


@register("aten.topk")
def topk(self: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Any, Any]:
    if self.ndim == 0:
        return _sorted(self, 0, False)
    last = mnp.moveaxis(self, dim, -1)
    if largest:
        values, at = lax.top_k(last, k)
    else:
        at = mnp.argsort(last, -1, stable=True)[..., :k]
        values = mnp.take_along_axis(last, at, -1)
    return mnp.moveaxis(values, -1, dim), _index(mnp.moveaxis(at, -1, dim))


@register("aten.kthvalue")
def kthvalue(self: Any, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    if self.ndim == 0:
        return _sorted(self, dim, False)
    values, at = _sorted(self, dim, False)
    parts = [lax.slice_in_dim(x, k - 1, k, axis=dim % self.ndim) for x in (values, at)]
    return tuple(parts) if keepdim else tuple(mnp.squeeze(x, dim) for x in parts)  # type: ignore[return-value]


# --- medians: of two in the middle the lower one ------------------------------------------------------------
def _middle(x: Any, dim: int, missing: bool) -> Any:
    """Which of the sorted elements is the median, one along ``dim``: NaN are last, and without ``missing`` ones are
    what the median of such elements is."""
    size = x.shape[dim]
    nans = mnp.sum(mnp.isnan(x), dim, keepdims=True)
    return (size - nans - 1).clip(0) // 2 if missing else mnp.where(nans > 0, size - nans, (size - 1) // 2)


def _median(missing: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def of_all(self: Any) -> Any:
        flat = lax.stop_gradient(self.ravel())
        return evenly(self, _along(flat, 0)[0].reshape(())) if self.size else mnp.asarray(math.nan, self.dtype)

    def _along(x: Any, dim: int) -> tuple[Any, Any]:
        place = _middle(lax.stop_gradient(x), dim, missing)
        return tuple(mnp.take_along_axis(v, place, dim) for v in _sorted(x, dim, False))  # type: ignore[return-value]

    def along(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
        if self.ndim == 0:
            return _sorted(self, 0, False)
        parts = _along(self, dim)
        return parts if keepdim else tuple(mnp.squeeze(x, dim) for x in parts)  # type: ignore[return-value]

    return of_all, along


for _name, _missing in (("median", False), ("nanmedian", True)):
    _of_all, _of_dim = _median(_missing)
    register(f"aten.{_name}.default")(_of_all)
    register(f"aten.{_name}.dim")(_of_dim)


@register("aten.mode")
def mode(self: Any, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    """The most frequent value, of several the least, and where it is last."""
    if self.ndim == 0:
        return _sorted(self, 0, False)
    at = mnp.argsort(lax.stop_gradient(self), dim, stable=True)
    values = mnp.moveaxis(mnp.take_along_axis(lax.stop_gradient(self), at, dim), dim, -1)
    edge = mnp.ones((*values.shape[:-1], 1), bool)
    differs = values[..., 1:] != values[..., :-1]
    place = mnp.arange(values.shape[-1])
    first = lax.cummax(mnp.where(mnp.concatenate([edge, differs], -1), place, 0), values.ndim - 1)
    length = mnp.where(mnp.concatenate([differs, edge], -1), place - first + 1, 0)  # of runs, at their ends
    last = mnp.moveaxis(mnp.argmax(length, -1)[..., None], -1, dim)
    index = mnp.take_along_axis(at, last, dim)
    parts = mnp.take_along_axis(self, index, dim), _index(index)
    return parts if keepdim else tuple(mnp.squeeze(x, dim) for x in parts)  # type: ignore[return-value]


@register("aten.searchsorted")
def searchsorted(
    sorted_sequence: Any, self: Any, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Any = None,
) -> Any:  # fmt: skip
    if sorter is not None:
        sorted_sequence = mnp.take_along_axis(sorted_sequence, sorter, -1)
    find: Callable[..., Any] = partial(mnp.searchsorted, side=side or ("right" if right else "left"))
    for _ in sorted_sequence.shape[:-1]:  # each row has its own values
        find = vmap(find)
    positions = find(sorted_sequence, self)
    return _index(positions)


@register("aten.bucketize")
def bucketize(self: Any, boundaries: Any, out_int32: bool = False, right: bool = False) -> Any:
    return searchsorted(boundaries, self, out_int32, right)


@register("aten.histogram")
def histogram(self: Any, bins: Any, range: Any = None, weight: Any = None, density: bool = False) -> tuple[Any, Any]:
    x = self.ravel()
    low, high = range or ((mnp.min(x), mnp.max(x)) if x.size else (0.0, 1.0))
    if isinstance(bins, int):  # the middle of equal elements, as torch has it
        is_one = low == high
        low, high = mnp.where(is_one, low - 0.5, low), mnp.where(is_one, high + 0.5, high)
        bins = mnp.linspace(low, high, bins + 1, dtype=self.dtype)
    counts, edges = mnp.histogram(x, bins, weights=None if weight is None else weight.ravel(), density=density)
    return cast(counts, self.dtype), edges


@register("aten.histc")
def histc(self: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """Elements in equal parts of ``[min, max]``; equal bounds stand for the least and largest element."""
    x = self.ravel()
    least = min == max and x.size > 0
    low, high = (mnp.min(x), mnp.max(x)) if least else (cast(min, x.dtype), cast(max, x.dtype))
    is_one = low == high
    low, high = mnp.where(is_one, low - 1, low), mnp.where(is_one, high + 1, high)
    place = mnp.floor((x - low) * bins / (high - low)).astype(np.int32)
    place = mnp.where(x == high, bins - 1, place)
    inside = (x >= low) & (x <= high)
    return mnp.zeros(bins, x.dtype).at[mnp.where(inside, place, bins)].add(cast(1, x.dtype), mode="drop")
