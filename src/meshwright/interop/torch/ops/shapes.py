"""Ops that move elements, or say how they are counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.errors import RuleError
from meshwright.interop.torch.dtypes import common_dtype
from meshwright.interop.torch.promotion import cast
from meshwright.interop.torch.registry import register
from meshwright.ops.indexing.gather_add import missing


def dims_of(dim: Any, ndim: int) -> tuple[int, ...]:
    """Dimensions as numbers that count from the front; None and an empty list are all. A scalar has none to name."""
    if ndim == 0 or dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(ndim))
    return tuple(d % ndim for d in ((dim,) if isinstance(dim, int) else dim))


# --- sizes --------------------------------------------------------------------------------------------------
@register("aten.view", "aten._unsafe_view", "aten.view_copy", "aten._reshape_copy")
def view(self: Any, size: Sequence[int]) -> Any:
    return mnp.reshape(self, tuple(size))


register("aten.reshape")(lambda self, shape: mnp.reshape(self, tuple(shape)))


@register("aten.flatten.using_ints")
def flatten(self: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    if self.ndim == 0:
        return self.reshape(1)
    start, end = start_dim % self.ndim, end_dim % self.ndim
    shape = self.shape
    return self.reshape(*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :])


@register("aten.unflatten.int")
def unflatten(self: Any, dim: int, sizes: Sequence[int]) -> Any:
    dim %= self.ndim
    known = math.prod(s for s in sizes if s != -1)
    sizes = [self.shape[dim] // known if s == -1 else s for s in sizes]
    return self.reshape(*self.shape[:dim], *sizes, *self.shape[dim + 1 :])


@register("aten.expand", "aten.expand_copy", "aten.broadcast_to")
def expand(self: Any, size: Sequence[int]) -> Any:
    missing = len(size) - self.ndim
    own = (1,) * missing + self.shape
    return mnp.broadcast_to(self, tuple(o if s == -1 else s for s, o in zip(size, own)))


register("aten.expand_as")(lambda self, other: mnp.broadcast_to(self, other.shape))
register("aten.view_as", "aten.reshape_as")(lambda self, other: self.reshape(other.shape))


@register("aten.broadcast_tensors")
def broadcast_tensors(tensors: Sequence[Any]) -> Any:
    return list(mnp.broadcast_arrays(*tensors))


@register("aten.squeeze", "aten.squeeze_copy")
def squeeze(self: Any, dim: Any = None) -> Any:
    dims = range(self.ndim) if dim is None else dims_of(dim, self.ndim) if dim != [] else ()
    return mnp.squeeze(self, tuple(d for d in dims if self.ndim and self.shape[d] == 1))


@register("aten.unsqueeze", "aten.unsqueeze_copy")
def unsqueeze(self: Any, dim: int) -> Any:
    return mnp.expand_dims(self, dim)


@register("aten.resize")
def resize(self: Any, size: Sequence[int]) -> Any:
    count = math.prod(size)
    if count > self.size:
        raise RuleError(f"{count} elements of {self.size} have no values; give them (torch.cat, torch.zeros)")
    return self.reshape(-1)[:count].reshape(tuple(size))


@register("aten.sum_to_size")
def sum_to_size(self: Any, size: Sequence[int]) -> Any:
    lead = self.ndim - len(size)
    ones = tuple(d for d, (s, n) in enumerate(zip(size, self.shape[lead:]), lead) if s == 1 and n != 1)
    return self.sum((*range(lead), *ones), keepdims=True).reshape(tuple(size)) if lead or ones else self


# --- order --------------------------------------------------------------------------------------------------
@register("aten.permute", "aten.permute_copy")
def permute(self: Any, dims: Sequence[int]) -> Any:
    return mnp.transpose(self, dims_of(dims, self.ndim))


@register("aten.transpose.int", "aten.swapdims", "aten.transpose_copy")
def transpose(self: Any, dim0: int, dim1: int) -> Any:
    return mnp.swapaxes(self, dim0, dim1) if self.ndim else self


register("aten.swapaxes")(lambda self, axis0, axis1: mnp.swapaxes(self, axis0, axis1))
register("aten.t", "aten.numpy_T", "aten.t_copy")(lambda self: mnp.transpose(self))
register("aten.mT")(lambda self: mnp.swapaxes(self, -1, -2))
register("aten.adjoint", "aten.mH", "aten.matrix_H")(lambda self: mnp.conj(mnp.swapaxes(self, -1, -2)))


@register("aten.movedim", "aten.moveaxis")
def movedim(self: Any, source: Any, destination: Any) -> Any:
    return mnp.moveaxis(self, source, destination)


register("aten.flip")(lambda self, dims: mnp.flip(self, dims_of(dims, self.ndim)) if len(dims) else self)
register("aten.fliplr")(lambda self: mnp.fliplr(self))
register("aten.rot90")(lambda self, k=1, dims=(0, 1): mnp.rot90(self, k, tuple(dims)))


@register("aten.roll")
def roll(self: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    if not len(dims):
        return mnp.roll(self, shifts[0])
    return mnp.roll(self, tuple(shifts), tuple(dims))


@register("aten.tril")
def tril(self: Any, diagonal: int = 0) -> Any:
    return mnp.tril(self, diagonal)


@register("aten.triu")
def triu(self: Any, diagonal: int = 0) -> Any:
    return mnp.triu(self, diagonal)


register("aten.linalg_diagonal")(lambda A, offset=0, dim1=-2, dim2=-1: mnp.diagonal(A, offset, dim1, dim2))


@register("aten.diagonal", "aten.diagonal_copy")
def diagonal(self: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return mnp.diagonal(self, offset, dim1, dim2)


@register("aten.diag")
def diag(self: Any, diagonal: int = 0) -> Any:
    return mnp.diag(self, diagonal)


# --- parts --------------------------------------------------------------------------------------------------
def _range(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    first, last, _ = slice(start, end).indices(size)
    return first, max(first, last)


@register("aten.slice", "aten.slice_copy")
def slice_(self: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    dim %= self.ndim
    first, last = _range(self.shape[dim], start, end)
    return lax.slice_in_dim(self, first, last, step, dim)


def from_front(position: Any, size: int) -> Any:
    """A position that may be counted from behind."""
    return mnp.where(position < 0, position + size, position)


def if_within(at: Any, length: int, size: int, x: Any) -> Any:
    """``x`` if ``length`` elements of ``size`` begin at a position; if not, where torch has others or raises, what is
    seen, NaN."""
    return mnp.where((at >= 0) & (at <= size - length), x, missing(x.dtype))


@register("aten.narrow", "aten.narrow_copy")
def narrow(self: Any, dim: int, start: int, length: int) -> Any:
    if not isinstance(start, int):
        size, dim = self.shape[dim], dim % self.ndim
        at = from_front(start, size)
        return if_within(at, length, size, lax.dynamic_slice_in_dim(self, at, length, dim))
    first = start % self.shape[dim] if start < 0 else start
    return lax.slice_in_dim(self, first, first + length, 1, dim % self.ndim)


@register("aten.select.int", "aten.select_copy")
def select(self: Any, dim: int, index: Any) -> Any:
    if not isinstance(index, int):
        return mnp.take(self, index, dim)
    return lax.index_in_dim(self, index % self.shape[dim], dim % self.ndim, keepdims=False)


@register("aten.unbind.int", "aten.unbind_copy")
def unbind(self: Any, dim: int = 0) -> list[Any]:
    return [select(self, dim, i) for i in range(self.shape[dim])]


@register("aten.split.Tensor", "aten.split_copy", "aten.unsafe_split.Tensor")
def split(self: Any, split_size: int, dim: int = 0) -> list[Any]:
    size = self.shape[dim]
    starts = range(0, size, split_size) if size else (0,)
    return [slice_(self, dim, i, min(i + split_size, size)) for i in starts]


@register("aten.split_with_sizes", "aten.split_with_sizes_copy", "aten.unsafe_split_with_sizes")
def split_with_sizes(self: Any, split_sizes: Sequence[int], dim: int = 0) -> list[Any]:
    ends = [sum(split_sizes[: i + 1]) for i in range(len(split_sizes))]
    return [slice_(self, dim, end - n, end) for n, end in zip(split_sizes, ends)]


register("aten.split.sizes")(lambda self, split_size, dim=0: split_with_sizes(self, split_size, dim))


@register("aten.chunk", "aten.unsafe_chunk")
def chunk(self: Any, chunks: int, dim: int = 0) -> list[Any]:
    return split(self, max(1, -(-self.shape[dim] // chunks)), dim)


@register("aten.tensor_split.sections")
def tensor_split(self: Any, sections: int, dim: int = 0) -> list[Any]:
    return mnp.array_split(self, sections, dim)


@register("aten.tensor_split.indices")
def tensor_split_indices(self: Any, indices: Sequence[int], dim: int = 0) -> list[Any]:
    return mnp.split(self, list(indices), dim)


@register("aten.unfold")
def unfold(self: Any, dimension: int, size: int, step: int) -> Any:
    """Windows of ``size`` along a dimension, each a row of a new last dimension."""
    if self.ndim == 0:
        return mnp.broadcast_to(self, (size,))
    return mnp.moveaxis(_windows(self, dimension % self.ndim, size, step), dimension % self.ndim, -1)


def _windows(x: Any, dim: int, size: int, step: int, dilation: int = 1) -> Any:
    """For each place in a window, and then for each window along a dimension, the element there."""
    count = (x.shape[dim] - (size - 1) * dilation - 1) // step + 1
    rows = mnp.arange(size)[:, None] * dilation + mnp.arange(count) * step
    return mnp.take(x, rows, dim, mode="clip")


@register("aten.im2col")
def im2col(
    self: Any, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Any:
    """What each window sees, taken and not made by a convolution, in which NaN times 0 would be NaN."""
    *lead, channels, _, _ = self.shape
    (p, q), n = padding, self.ndim
    x = lax.pad(self, cast(0, self.dtype), [(0, 0, 0)] * (n - 2) + [(p, p, 0), (q, q, 0)])
    for d, *how in zip((n - 1, n - 2), kernel_size[::-1], stride[::-1], dilation[::-1]):
        x = _windows(x, d, *how)
    size, count = math.prod(kernel_size), x.shape[-3] * x.shape[-1]
    return mnp.swapaxes(x, -3, -2).reshape(*lead, channels * size, count)


# --- joining ------------------------------------------------------------------------------------------------
@register("aten.cat", "aten.concat", "aten.concatenate")
def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    kept = [t for t in tensors if t.shape != (0,)] or list(tensors)  # an empty vector joins anything
    dtype = common_dtype(*tensors)
    return mnp.concatenate([cast(t, dtype) for t in kept], dim)


@register("aten.stack")
def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    dtype = common_dtype(*tensors)
    return mnp.stack([cast(t, dtype) for t in tensors], dim)


register("aten.hstack")(lambda tensors: mnp.hstack(list(tensors)))
register("aten.vstack")(lambda tensors: mnp.vstack(list(tensors)))


@register("aten.repeat")
def repeat(self: Any, repeats: Sequence[int]) -> Any:
    return mnp.tile(self, tuple(repeats))


register("aten.tile")(lambda self, dims: mnp.tile(self, tuple(dims)))


@register("aten.repeat_interleave.Tensor")
def repeated_numbers(repeats: Any, output_size: int | None = None) -> Any:
    """Each number as often as ``repeats`` says, ``output_size`` in all; one past the last where there are fewer."""
    ends = mnp.cumsum(repeats)
    return cast(mnp.searchsorted(ends, mnp.arange(output_size, dtype=ends.dtype), side="right"), repeats.dtype)


@register("aten.repeat_interleave.self_int")
def repeat_interleave(self: Any, repeats: int, dim: int | None = None, output_size: int | None = None) -> Any:
    return mnp.repeat(self, repeats, dim)  # output_size is what follows from the others


@register("aten.meshgrid")
def meshgrid(tensors: Sequence[Any]) -> Any:
    return list(mnp.meshgrid(*tensors, indexing="ij"))


register("aten.meshgrid.indexing")(lambda tensors, indexing: list(mnp.meshgrid(*tensors, indexing=indexing)))


@register("aten.cartesian_prod")
def cartesian_prod(tensors: Sequence[Any]) -> Any:
    grid = mnp.meshgrid(*tensors, indexing="ij")
    return mnp.stack([g.ravel() for g in grid], -1) if len(tensors) > 1 else tensors[0]


# --- padding ------------------------------------------------------------------------------------------------
def pairs(pad: Sequence[int], ndim: int) -> list[tuple[int, int]]:
    """Torch lists (low, high) from the last dimension on."""
    given = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    return [(0, 0)] * (ndim - len(given)) + given[::-1]


@register("aten.constant_pad_nd")
def constant_pad(self: Any, pad: Sequence[int], value: Any = 0) -> Any:
    config = [(low, high, 0) for low, high in pairs(pad, self.ndim)]
    return lax.pad(self, cast(value, self.dtype), config)


_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _padded(self: Any, pad: Sequence[int], mode: str) -> Any:
    """Negative widths take away: of what is repeated in a circle before, of mirrors behind."""
    widths = pairs(pad, self.ndim)
    less = [(min(low, 0), min(high, 0), 0) for low, high in widths]
    more = [(max(low, 0), max(high, 0)) for low, high in widths]
    crop = lambda x: lax.pad(x, cast(0, x.dtype), less) if any(map(any, less)) else x  # noqa: E731
    if mode == "circular":
        return mnp.pad(crop(self), more, _MODES[mode])
    return crop(mnp.pad(self, more, _MODES[mode]))


for _dims in "123":
    register(f"aten.reflection_pad{_dims}d")(lambda self, padding: _padded(self, padding, "reflect"))
    register(f"aten.replication_pad{_dims}d")(lambda self, padding: _padded(self, padding, "replicate"))
register("aten._pad_circular")(lambda self, pad: _padded(self, pad, "circular"))


@register("aten.pad")
def pad_any(self: Any, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Any:
    return constant_pad(self, pad, value or 0) if mode == "constant" else _padded(self, pad, mode)


@register("aten.pixel_shuffle")
def pixel_shuffle(self: Any, upscale_factor: int) -> Any:
    r = upscale_factor
    *lead, c, h, w = self.shape
    cut = self.reshape(*lead, c // r**2, r, r, h, w)
    n = len(lead)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return cut.transpose(order).reshape(*lead, c // r**2, h * r, w * r)


@register("aten.pixel_unshuffle")
def pixel_unshuffle(self: Any, downscale_factor: int) -> Any:
    r = downscale_factor
    *lead, c, h, w = self.shape
    cut = self.reshape(*lead, c, h // r, r, w // r, r)
    n = len(lead)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return cut.transpose(order).reshape(*lead, c * r**2, h // r, w // r)


@register("aten.channel_shuffle", "aten.native_channel_shuffle")
def channel_shuffle(self: Any, groups: int) -> Any:
    n, c, *rest = self.shape
    return self.reshape(n, groups, c // groups, *rest).swapaxes(1, 2).reshape(self.shape)
