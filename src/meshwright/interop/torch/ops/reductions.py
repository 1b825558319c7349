"""Sums, means, extremes, norms, and running ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.core import dtypes
from meshwright.interop.torch.dtypes import array_dtype
from meshwright.interop.torch.ops.elementwise import absolute, logaddexp
from meshwright.interop.torch.ops.shapes import dims_of
from meshwright.interop.torch.promotion import cast, in_single, promoted, to_float
from meshwright.interop.torch.registry import register
from meshwright.nn import normalization
from meshwright.transforms.custom_jvp import custom_jvp

Dims = int | Sequence[int] | None


def _integers_widened(x: Any, dtype: Any) -> Any:
    """Sums of bools and integers are of 64 bits (or what stands for those here)."""
    if dtype is not None:
        return cast(x, array_dtype(dtype))
    return x if dtypes.is_inexact(x.dtype) else cast(x, array_dtype(torch.int64))


def _reduction(function: Callable[..., Any], prepare: Callable[..., Any]) -> Callable[..., Any]:
    def rule(self: Any, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
        x = prepare(self, dtype)
        out = function(x, axis=dims_of(dim, x.ndim), keepdims=keepdim)
        return out if dtype is None else cast(out, array_dtype(dtype))

    return rule


def _float(x: Any, dtype: Any) -> Any:
    return x if dtype is None else cast(x, array_dtype(dtype))


register("aten.sum")(_reduction(mnp.sum, _integers_widened))
register("aten.prod")(_reduction(mnp.prod, _integers_widened))
register("aten.mean")(_reduction(mnp.mean, _float))
register("aten.nansum")(_reduction(mnp.nansum, _integers_widened))
register("aten.nanmean")(_reduction(mnp.nanmean, _float))
register("aten.amax")(_reduction(mnp.max, lambda x, dtype: x))
register("aten.amin")(_reduction(mnp.min, lambda x, dtype: x))
register("aten.any")(_reduction(mnp.any, lambda x, dtype: x != 0))
register("aten.all")(_reduction(mnp.all, lambda x, dtype: x != 0))
register("aten.count_nonzero")(_reduction(lambda x, axis, keepdims: mnp.count_nonzero(x, axis), lambda x, dtype: x))
register("aten.logsumexp", "aten.special_logsumexp")(_reduction(normalization.logsumexp, lambda x, d: to_float(x)))


def _extreme(whole: Callable[..., Any], position: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def along(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
        if self.ndim == 0:
            return self, mnp.zeros((), array_dtype(torch.int64))
        at = position(self, axis=dim, keepdims=True)
        value = mnp.take_along_axis(self, at, dim)
        at = cast(at, array_dtype(torch.int64))
        return (value, at) if keepdim else (mnp.squeeze(value, dim), mnp.squeeze(at, dim))

    return lambda self: evenly(self, whole(lax.stop_gradient(self))), along


@custom_jvp
def evenly(x: Any, value: Any) -> Any:
    """``value``, one of ``x``. All elements that equal it have the same part in its derivative, as torch has it."""
    return value


@evenly.defjvp
def _evenly_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    x, value = primals
    chosen = (x == value) | (mnp.isnan(x) & mnp.isnan(value))
    return value, mnp.sum(mnp.where(chosen, tangents[0], 0)) / mnp.sum(chosen).astype(value.dtype)


for _name, _whole, _where in (("max", mnp.max, mnp.argmax), ("min", mnp.min, mnp.argmin)):
    _of_all, _along = _extreme(_whole, _where)
    register(f"aten.{_name}.default")(_of_all)
    register(f"aten.{_name}.dim")(_along)


@register("aten.aminmax")
def aminmax(self: Any, dim: int | None = None, keepdim: bool = False) -> tuple[Any, Any]:
    dims = dims_of(dim, self.ndim)
    return mnp.min(self, dims, keepdims=keepdim), mnp.max(self, dims, keepdims=keepdim)


def _position(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(self: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        return cast(function(self, axis=dim if self.ndim else None, keepdims=keepdim), array_dtype(torch.int64))

    return rule


register("aten.argmax")(_position(mnp.argmax))
register("aten.argmin")(_position(mnp.argmin))


# --- spread -------------------------------------------------------------------------------------------------
def variance(x: Any, dim: Dims, correction: float, keepdim: bool) -> tuple[Any, Any]:
    dims = dims_of(dim, x.ndim)
    count = int(np.prod([x.shape[d] for d in dims], dtype=int))
    mean = mnp.mean(x, dims, keepdims=True)
    off = x - mean
    squares = mnp.real(off * mnp.conj(off)) if dtypes.is_complex(x.dtype) else off * off
    free = count - correction
    out = mnp.sum(squares, dims, keepdims=keepdim) / np.asarray(free if free > 0 else 0, squares.dtype)
    return out, mean if keepdim else mnp.squeeze(mean, dims)


@register("aten.var.correction")
@in_single
def var(self: Any, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> Any:
    return variance(self, dim, 1 if correction is None else correction, keepdim)[0]


@register("aten.std.correction")
@in_single
def std(self: Any, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> Any:
    return safe_sqrt(var(self, dim, correction, keepdim))


@register("aten.var_mean.correction")
@in_single
def var_mean(self: Any, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> Any:
    return variance(self, dim, 1 if correction is None else correction, keepdim)


@register("aten.std_mean.correction")
@in_single
def std_mean(self: Any, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> Any:
    out, mean = variance(self, dim, 1 if correction is None else correction, keepdim)
    return safe_sqrt(out), mean


for _name, _rule in (("var", var), ("std", std), ("var_mean", var_mean), ("std_mean", std_mean)):
    register(f"aten.{_name}.default")(lambda self, unbiased=True, rule=_rule: rule(self, None, int(unbiased)))
    register(f"aten.{_name}.dim")(
        lambda self, dim, unbiased=True, keepdim=False, rule=_rule: rule(self, dim, int(unbiased), keepdim)
    )


def safe_sqrt(x: Any) -> Any:
    """The root, whose derivative at 0 is 0 as torch's of norms and deviations."""
    return _zero_or(x, mnp.sqrt)


def _zero_or(x: Any, function: Callable[[Any], Any], at_zero: float = 0) -> Any:
    """``function(x)``, but ``at_zero`` where ``x`` is 0, with a derivative of 0."""
    return mnp.where(x == 0, at_zero, function(mnp.where(x == 0, 1, x)))


# --- norms --------------------------------------------------------------------------------------------------
@register("aten.linalg_vector_norm")
def vector_norm(self: Any, ord: float = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return _vector_norm(_float(self, dtype), ord, dim, keepdim)


@in_single
def _vector_norm(x: Any, ord: float, dim: Dims, keepdim: bool) -> Any:
    dims = dims_of(dim, x.ndim)
    size = absolute(x)
    if ord == float("inf"):
        return mnp.max(size, dims, keepdims=keepdim)
    if ord == float("-inf"):
        return mnp.min(size, dims, keepdims=keepdim)
    if ord == 0:
        return mnp.sum(x != 0, dims, keepdims=keepdim).astype(size.dtype)
    if ord == 1:
        return mnp.sum(size, dims, keepdims=keepdim)
    if ord == 2:
        squares = mnp.real(x * mnp.conj(x)) if dtypes.is_complex(x.dtype) else x * x
        return safe_sqrt(mnp.sum(squares, dims, keepdims=keepdim))
    power = size**ord if ord >= 1 else _zero_or(size, lambda x: x**ord, 0 if ord > 0 else math.inf)
    return _zero_or(mnp.sum(power, dims, keepdims=keepdim), lambda x: x ** (1 / ord))


@register("aten.norm")
def norm(self: Any, p: float | None = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return vector_norm(self, 2 if p is None else p, dim, keepdim, dtype)


@register("aten.dist")
def dist(self: Any, other: Any, p: float = 2) -> Any:
    return vector_norm(self - other, p)


@register("aten.cosine_similarity")
@in_single
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """Lengths are those of the broadcast operands; that they are at least ``eps`` is no part of the derivative."""
    given = mnp.broadcast_arrays(*map(to_float, promoted(x1, x2)))
    lengths = [vector_norm(x, 2, dim, keepdim=True) for x in given]
    units = [x / (n + lax.stop_gradient(mnp.maximum(n, eps) - n)) for x, n in zip(given, lengths)]
    return mnp.sum(units[0] * units[1], dims_of(dim, units[0].ndim))


# --- distances ----------------------------------------------------------------------------------------------
@custom_jvp
def _largest(size: Any) -> Any:
    """The largest along the last dimension. In torch's derivative of distances all that equal it count in full."""
    return mnp.max(size, -1)


@_largest.defjvp
def _largest_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    out = _largest(*primals)
    return out, mnp.sum(mnp.where(primals[0] == out[..., None], tangents[0], 0), -1)


def _distance(off: Any, p: float) -> Any:
    return _largest(absolute(off)) if p == float("inf") and off.shape[-1] else vector_norm(off, p, -1)


@register("aten._cdist_forward")
def cdist(x1: Any, x2: Any, p: float, compute_mode: int | None = None) -> Any:
    """Distances of each row to each; ``compute_mode`` is how torch makes them."""
    return _distance(x1[..., :, None, :] - x2[..., None, :, :], p)


@register("aten._euclidean_dist")
def euclidean(x1: Any, x2: Any) -> Any:
    """Distances of each row to each, by a product: as exact as torch's, which does so for many rows."""
    squares = [mnp.sum(x * x, -1) for x in (x1, x2)]
    total = squares[0][..., :, None] + squares[1][..., None, :] - 2 * (x1 @ mnp.swapaxes(x2, -1, -2))
    return safe_sqrt(mnp.maximum(total, 0))


@register("aten._pdist_forward")
def pdist(self: Any, p: float = 2) -> Any:
    """Distances of each row to those after it."""
    first, second = np.triu_indices(self.shape[0], 1)
    return _distance(self[first] - self[second], p)


# --- running ------------------------------------------------------------------------------------------------
def _running(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(self: Any, dim: int, dtype: Any = None) -> Any:
        x = _integers_widened(self, dtype)
        return function(x, dim % x.ndim) if x.ndim else x

    return rule


def _running_logsumexp(x: Any, dim: int) -> Any:
    """Of complex numbers one after another, as in torch: the order says by which multiples of 2 pi i it is off the
    principal value."""
    if not dtypes.is_complex(x.dtype) or not x.shape[dim]:
        return lax.cumlogsumexp(x, dim)
    rows = mnp.moveaxis(x, dim, 0)

    def step(total: Any, row: Any) -> tuple[Any, Any]:
        total = logaddexp(row, total)
        return total, total

    _, after = lax.scan(step, rows[0], rows[1:])
    return mnp.moveaxis(mnp.concatenate([rows[:1], after]), 0, dim)


register("aten.cumsum")(_running(mnp.cumsum))
register("aten.cumprod")(_running(mnp.cumprod))
register("aten.logcumsumexp")(_running(_running_logsumexp))


def _running_extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(self: Any, dim: int) -> tuple[Any, Any]:
        if self.ndim == 0:
            return self, mnp.zeros((), array_dtype(torch.int64))
        dim %= self.ndim
        fixed = cast(self, dtypes.int32) if self.dtype == bool else lax.stop_gradient(self)
        place = lax.broadcasted_iota(array_dtype(torch.int64), self.shape, dim)
        is_new = (fixed == function(fixed, dim)) | mnp.isnan(fixed)
        at = lax.cummax(mnp.where(is_new, place, 0), dim)
        return mnp.take_along_axis(self, at, dim), at  # of equals the last, in derivatives

    return rule


register("aten.cummax")(_running_extreme(lax.cummax))
register("aten.cummin")(_running_extreme(lax.cummin))


@register("aten.diff")
def diff(self: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    return mnp.diff(self, n, dim, prepend, append)


def lengths_to_offsets(offsets: Any, size: int) -> Any:
    """For each of ``size`` elements the number of the segment it is in; ``offsets`` say where these begin."""
    return mnp.searchsorted(offsets, mnp.arange(size, dtype=offsets.dtype), side="right") - 1
