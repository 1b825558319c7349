"""Elements written to, or combined with, those at positions along one dimension."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from meshwright import numpy as mnp
from meshwright.core import dtypes
from meshwright.interop.torch.ops.indexing import grid
from meshwright.interop.torch.promotion import cast
from meshwright.interop.torch.registry import register
from meshwright.transforms.custom_jvp import custom_jvp


def _scattered(self: Any, dim: int, index: Any, src: Any, how: str) -> Any:
    if self.ndim == 0:
        return getattr(self.reshape(1).at[index.reshape(-1)], how)(cast(src, self.dtype)).reshape(())
    if not isinstance(src, (int, float, complex, bool)) and src.ndim:
        src = _read(src, index)
    return getattr(self.at[grid(index, dim % self.ndim)], how)(cast(src, self.dtype))


def _read(src: Any, index: Any) -> Any:
    """What of ``src`` has an index."""
    return src[tuple(slice(0, n) for n in index.shape)]


@register("aten.scatter.src")
def scatter(self: Any, dim: int, index: Any, src: Any) -> Any:
    return _scattered(self, dim, index, src, "set")


register("aten.scatter.value")(lambda self, dim, index, value: _scattered(self, dim, index, value, "set"))
register("aten.scatter_add")(lambda self, dim, index, src: _scattered(self, dim, index, src, "add"))
_HOW = {"sum": "add", "add": "add", "prod": "multiply", "multiply": "multiply", "amax": "max", "amin": "min"}
register("aten.scatter.reduce")(lambda self, dim, index, src, reduce: _scattered(self, dim, index, src, _HOW[reduce]))
register("aten.scatter.value_reduce")(
    lambda self, dim, index, value, reduce: _scattered(self, dim, index, value, _HOW[reduce])
)


# --- reductions ---------------------------------------------------------------------------------------------
_START: dict[str, Callable[[np.dtype], Any]] = {
    "sum": lambda dtype: 0,
    "prod": lambda dtype: 1,
    "mean": lambda dtype: 0,
    "amax": lambda dtype: _bounds(dtype)[0],
    "amin": lambda dtype: _bounds(dtype)[1],
}


def _bounds(dtype: np.dtype) -> tuple[Any, Any]:
    """The least and the largest element of a dtype."""
    if dtypes.is_inexact(dtype):
        return -math.inf, math.inf
    return (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtypes.is_integer(dtype) else (False, True)


@register("aten.scatter_reduce.two")
def scatter_reduce(self: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True) -> Any:
    if self.ndim == 0:
        one = (x.reshape(-1) for x in (self, index, src))
        return scatter_reduce(next(one), 0, next(one), next(one), reduce, include_self).reshape(())
    given = _read(src, index) if src.ndim else src
    function = _reduced_with_slopes if reduce in _SLOPES else _reduced
    return function(self, given, index, dim % self.ndim, reduce, include_self)


def _reduced(self: Any, src: Any, index: Any, dim: int, reduce: str, include_self: bool) -> Any:
    if not include_self:
        self = mnp.where(_touched(self, index, dim), mnp.full_like(self, _START[reduce](self.dtype)), self)
    if reduce != "mean":
        return _scattered(self, dim, index, src, _HOW[reduce])
    counts = _scattered(mnp.full(self.shape, int(include_self)), dim, index, 1, "add")
    divide = mnp.floor_divide if self.dtype.kind in "iu" else mnp.divide
    return divide(_scattered(self, dim, index, src, "add"), mnp.maximum(counts, 1).astype(self.dtype))


def _touched(self: Any, index: Any, dim: int) -> Any:
    """Where an index points to."""
    return _scattered(mnp.zeros(self.shape, bool), dim, index, True, "set")


@partial(custom_jvp, nondiff_argnums=(3, 4, 5))
def _reduced_with_slopes(self: Any, src: Any, index: Any, dim: int, reduce: str, include_self: bool) -> Any:
    """:func:`_reduced`, with torch's derivative."""
    return _reduced(self, src, index, dim, reduce, include_self)


@_reduced_with_slopes.defjvp
def _reduced_jvp(dim: int, reduce: str, include_self: bool, primals: Any, tangents: Any) -> tuple[Any, Any]:
    (self, src, index), (of_self, of_src, _) = primals, tangents
    how = dim, reduce, include_self
    out = _reduced_with_slopes(self, src, index, *how)
    by_self, by_src = _SLOPES[reduce](out, self, src, index, *how)
    if not include_self:
        of_self = mnp.where(_touched(self, index, dim), 0, of_self)
    return out, _scattered(of_self * by_self, dim, index, of_src * by_src, "add")


def _of_extremes(out: Any, self: Any, src: Any, index: Any, dim: int, *how: Any) -> tuple[Any, Any]:
    """All that equal the extreme have the same part, also ``self`` where it is not included; where nothing does, since
    it is NaN, NaN."""
    others = grid(index, dim)
    is_self, is_src = cast(self == out, self.dtype), cast(src == out[others], self.dtype)
    count = _scattered(is_self, dim, index, is_src, "add")
    return is_self / count, is_src / count[others]


def _of_product(out: Any, self: Any, src: Any, index: Any, dim: int, *how: Any) -> tuple[Any, Any]:
    """The product divided by a factor, and for a factor that is the only 0 that of the others."""
    others = grid(index, dim)
    nonzero = mnp.where(self == 0, 1, self)
    by_self = _reduced_with_slopes(nonzero, src, index, dim, *how) / nonzero
    is_zero = src == 0
    zeros = _scattered(mnp.zeros(self.shape, int), dim, index, cast(is_zero, np.dtype(np.int32)), "add")
    is_only = is_zero & (zeros[others] == 1)
    without = _reduced_with_slopes(self, mnp.where(is_only, 1, src), index, dim, *how)
    by_src = mnp.where(is_only, without[others], out[others] / mnp.where(is_zero, 1, src))
    return by_self, by_src


_SLOPES = {"amax": _of_extremes, "amin": _of_extremes, "prod": _of_product}


@register("aten.index_reduce")
def index_reduce(self: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
    along = [1] * source.ndim
    if along:
        along[dim] = -1
    return scatter_reduce(self, dim, mnp.broadcast_to(index.reshape(along), source.shape), source, reduce, include_self)
