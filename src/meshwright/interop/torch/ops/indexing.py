"""Reading and writing at positions: indices, gather, embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.core.avals import Typed
from meshwright.errors import RuleError
from meshwright.interop.torch.ops.reductions import lengths_to_offsets
from meshwright.interop.torch.ops.shapes import from_front, if_within
from meshwright.interop.torch.promotion import cast, is_one
from meshwright.interop.torch.registry import register
from meshwright.transforms.custom_vjp import custom_vjp


# --- advanced indices ---------------------------------------------------------------------------------------
def _where(indices: Sequence[Any]) -> tuple[Any, ...]:
    """NumPy's index for torch's list, in which None takes a whole dimension."""
    return tuple(slice(None) if i is None else i for i in indices)


def _with_truths(indices: Sequence[Any]) -> list[Any]:
    """Torch's list with truth values for bytes, which are masks."""
    return [i != 0 if i is not None and i.dtype == np.uint8 else i for i in indices]


def _mask(indices: Sequence[Any]) -> Any:
    masks = [i for i in indices if i is not None and i.dtype == bool]
    return masks[0] if masks else None


@register("aten._unsafe_index")
def unsafe_index(self: Any, indices: Sequence[Any]) -> Any:
    """Elements at positions that are known to be inside."""
    return self[_where(indices)]


@register("aten.index")
def index(self: Any, indices: Sequence[Any]) -> Any:
    """Positions outside, for which torch raises, no program can refuse: they give NaN, which is seen."""
    if _mask(_with_truths(indices)) is not None:
        raise RuleError(
            "x[mask] has as many elements as the mask has true ones, which no program of fixed shapes can say; use "
            "torch.where, or multiply by the mask"
        )
    return self.at[_where(indices)].get(mode="fill")


@register("aten.index_put", "aten._unsafe_index_put", "aten._index_put_impl")
def index_put(self: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    values, indices = cast(values, self.dtype), _with_truths(indices)
    mask = _mask(indices)
    if mask is None:
        where = self.at[_where(indices)]
        return where.add(values) if accumulate else where.set(values)
    lead = next(i for i, index in enumerate(indices) if index is not None)
    values, varies = _per_element(values, mask.ndim, self.ndim - lead - mask.ndim)
    if varies or any(i is not None for i in indices[lead + 1 :]):
        raise RuleError(
            "x[mask] = values needs one value for all that the mask picks, since the number of these is not known"
        )
    mask = mask.reshape(*mask.shape, *(1,) * (self.ndim - lead - mask.ndim))
    return mnp.where(mask, self + values if accumulate else values, self)


def _per_element(values: Any, picked: int, trail: int) -> tuple[Any, bool]:
    """What is written where a mask of ``picked`` dimensions is true, in place of rows for all elements that it picks;
    and whether there is more than one row."""
    if values.ndim <= trail:
        return values, False
    lead, count = values.shape[: values.ndim - trail - 1], values.shape[values.ndim - trail - 1]
    if count != 1:
        return values, True
    return values.reshape(*lead, *(1,) * picked, *values.shape[values.ndim - trail :]), False


# --- one dimension ------------------------------------------------------------------------------------------
def grid(index: Any, dim: int) -> tuple[Any, ...]:
    """The index of each element of ``index`` in an array where ``index`` says the position along ``dim``."""
    sizes = index.shape
    return tuple(
        index if d == dim else mnp.arange(n).reshape([n if e == d else 1 for e in range(len(sizes))])
        for d, n in enumerate(sizes)
    )


@register("aten.gather")
def gather(self: Any, dim: int, index: Any) -> Any:
    if self.ndim == 0:
        return mnp.broadcast_to(self, index.shape)
    if index.size == 0:
        return mnp.zeros(index.shape, self.dtype)
    dim %= self.ndim
    others = all(n == m for d, (n, m) in enumerate(zip(self.shape, index.shape)) if d != dim)
    return mnp.take_along_axis(self, index, dim) if others else self[grid(index, dim)]


@register("aten.take_along_dim")
def take_along_dim(self: Any, indices: Any, dim: int | None = None) -> Any:
    if dim is None:
        self, indices, dim = self.ravel(), indices.ravel(), 0
    return mnp.take_along_axis(self, indices, dim)


register("aten.take")(lambda self, index: mnp.take(self.ravel(), index))


@register("aten.put")
def put(self: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """Elements at positions of the flattened array."""
    to, values = self.ravel().at[index.ravel()], source.ravel()
    return (to.add(values) if accumulate else to.set(values)).reshape(self.shape)


@register("aten.index_select")
def index_select(self: Any, dim: int, index: Any) -> Any:
    return mnp.take(self, index.reshape(-1), dim) if self.ndim else self


def _written(how: str, self: Any, dim: int, index: Any, source: Any) -> Any:
    """Slices at positions of one dimension set, or added to; a scalar has one slice."""
    if self.ndim == 0:
        return _written(how, self.reshape(1), 0, index.reshape(-1), source.reshape(-1)).reshape(())
    return getattr(self.at[(slice(None),) * (dim % self.ndim) + (index,)], how)(source)


@register("aten.index_add")
def index_add(self: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Any:
    return _written("add", self, dim, index, source if is_one(alpha) else source * alpha)


register("aten.index_copy")(partial(_written, "set"))


@register("aten.index_fill")
def index_fill(self: Any, dim: int, index: Any, value: Any) -> Any:
    return _written("set", self, dim, index, cast(value, self.dtype))


# --- parts written ------------------------------------------------------------------------------------------
@register("aten.slice_scatter")
def slice_scatter(self: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    if step == 1 and (isinstance(start, Typed) or isinstance(end, Typed)):  # of the length that the source has
        size, dim = self.shape[dim], dim % self.ndim
        at = from_front(0 if start is None else start, size)
        written = lax.dynamic_update_slice_in_dim(self, cast(src, self.dtype), at, dim)
        return if_within(at, src.shape[dim], size, written)
    where = (slice(None),) * (dim % self.ndim) + (slice(start, end, step),)
    return self.at[where].set(cast(src, self.dtype))


@register("aten.select_scatter")
def select_scatter(self: Any, src: Any, dim: int, index: int) -> Any:
    return self.at[(slice(None),) * (dim % self.ndim) + (index,)].set(cast(src, self.dtype))


@register("aten.diagonal_scatter")
def diagonal_scatter(self: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    front = mnp.moveaxis(self, (dim1, dim2), (0, 1))
    rows = mnp.arange(src.shape[-1]) + max(-offset, 0)
    columns = mnp.arange(src.shape[-1]) + max(offset, 0)
    written = front.at[rows, columns].set(mnp.moveaxis(src, -1, 0))
    return mnp.moveaxis(written, (0, 1), (dim1, dim2))


@register("aten.masked_scatter")
def masked_scatter(self: Any, mask: Any, source: Any) -> Any:
    self, mask = mnp.broadcast_arrays(self, mask)
    taken = mnp.cumsum(mask.ravel().astype(np.int32)) - 1
    values = mnp.take(source.ravel(), mnp.clip(taken, 0, source.size - 1)).reshape(self.shape)
    return mnp.where(mask, values, self)


# --- embeddings ---------------------------------------------------------------------------------------------
def _with_slope(x: Any, slope: Any) -> Any:
    """``x``, whose derivative is multiplied by ``slope``."""
    return _sloped(x, lax.stop_gradient(slope))


@custom_vjp
def _sloped(x: Any, slope: Any) -> Any:
    return x


def _sloped_forward(x: Any, slope: Any) -> Any:
    return x, slope


def _sloped_backward(slope: Any, g: Any) -> Any:
    return g * slope, mnp.zeros_like(slope)


_sloped.defvjp(_sloped_forward, _sloped_backward)


@register("aten.embedding")
def embedding(
    weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    """``padding_idx`` and ``scale_grad_by_freq`` change only the derivative; ``sparse`` only how it is stored.

    Positions outside, for which torch raises, no program can refuse: they give NaN, which is seen.
    """
    rows = weight.at[indices].get(mode="fill", wrap_negative_indices=False)
    if padding_idx >= 0:
        rows = mnp.where((indices == padding_idx)[..., None], lax.stop_gradient(rows), rows)
    if scale_grad_by_freq:
        counts = mnp.zeros(weight.shape[0], rows.dtype).at[indices.ravel()].add(1)
        rows = _with_slope(rows, (1 / counts[indices])[..., None] + mnp.zeros_like(lax.stop_gradient(rows)))
    return rows


@register("aten.embedding_renorm")
def embedding_renorm(self: Any, indices: Any, max_norm: float, norm_type: float) -> Any:
    """The rows at indices scaled down to ``max_norm``, if they are longer."""
    rows = mnp.linalg.norm(self, norm_type, -1, keepdims=True)
    taken = mnp.zeros(self.shape[0], bool).at[indices.ravel()].set(True)
    return mnp.where(taken[:, None] & (rows > max_norm), self * (max_norm / (rows + 1e-7)), self)


@register("aten.embedding_bag", "aten.embedding_bag.padding_idx", "aten._embedding_bag")
def embedding_bag(
    weight: Any, indices: Any, offsets: Any, scale_grad_by_freq: bool = False, mode: int = 0, sparse: bool = False,
    per_sample_weights: Any = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> Any:  # fmt: skip
    """Sums (mode 0), means (1) or maxima (2) of the rows of each bag; with three results that only torch uses."""
    bags = offsets.shape[0] - int(include_last_offset)
    bag = lengths_to_offsets(offsets[:bags], indices.shape[0])
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0] if padding_idx < 0 else padding_idx
    rows = embedding(weight, indices, -1, scale_grad_by_freq)
    counted = indices != padding if padding_idx is not None and padding >= 0 else mnp.ones(indices.shape, bool)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    counts = mnp.zeros(bags, np.int32).at[bag].add(counted.astype(np.int32))
    if mode == 2:
        least = mnp.where(counted[:, None], rows, -math.inf)
        out = mnp.full((bags, weight.shape[1]), -math.inf, rows.dtype).at[bag].max(least)
        out = mnp.where((counts > 0)[:, None], out, 0)
    else:
        out = mnp.zeros((bags, weight.shape[1]), rows.dtype).at[bag].add(mnp.where(counted[:, None], rows, 0))
        out = out / mnp.maximum(counts, 1).astype(out.dtype)[:, None] if mode == 1 else out
    return out, bag, counts, counts
