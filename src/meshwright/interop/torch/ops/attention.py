"""Attention, kept whole (torch's own decomposition depends on the device, and fails on some masks)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from meshwright import numpy as mnp
from meshwright.core import dtypes
from meshwright.interop.torch.ops.randomness import dropped
from meshwright.interop.torch.promotion import cast
from meshwright.interop.torch.registry import register
from meshwright.nn import normalization


def _grouped(query: Any, key: Any, enable_gqa: bool) -> tuple[Any, int]:
    """Queries with the heads that share a key head in a dimension of their own, and how many share one."""
    if not enable_gqa or (heads := query.shape[-3]) == (key_heads := key.shape[-3]):
        return query, 1
    *lead, _, length, width = query.shape
    return query.reshape(*lead, key_heads, heads // key_heads, length, width), heads // key_heads


def _masked(logits: Any, mask: Any, is_causal: bool, group: int) -> tuple[Any, Any]:
    """Logits with the mask applied, and which rows see something (None: all)."""
    if is_causal:
        rows, columns = logits.shape[-2:]
        mask = mnp.tril(mnp.ones((rows, columns), bool))
    if mask is None:
        return logits, None
    if group > 1 and mask.ndim > 2:
        mask = (
            mask[..., None, :, :]
            if mask.shape[-3] == 1
            else mask.reshape(*mask.shape[:-3], -1, group, *mask.shape[-2:])
        )
    if mask.dtype != bool:  # of a row that is -inf throughout, softmax and its derivative are NaN
        seen = mnp.any(mask != -mnp.inf, -1, keepdims=True)
        return logits + cast(mnp.where(seen, mask, 0), logits.dtype), seen
    least = float(mnp.finfo(logits.dtype).min)
    return mnp.where(mask, logits, least), None if is_causal else mnp.any(mask, -1, keepdims=True)


@register("aten.scaled_dot_product_attention", random=True)
def scaled_dot_product(
    query: Any, key: Any, value: Any, draw: Callable[[], Any], attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """``softmax(query key^T * scale + mask) value``, over any leading dimensions; logits have 32 bits at least."""
    dtype = query.dtype
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    grouped, group = _grouped(query, key, enable_gqa)
    keys, values = (x[..., None, :, :] if group > 1 else x for x in (key, value))
    if dtypes.bit_width(dtype) < 32:  # a logit of half width is off by more than its softmax shows
        logits = mnp.matmul(grouped, mnp.swapaxes(keys, -1, -2), preferred_element_type=dtypes.float32) * factor
    else:
        logits = mnp.matmul(grouped * cast(factor, dtype), mnp.swapaxes(keys, -1, -2))
    logits, seen = _masked(logits, attn_mask, is_causal, group)
    weights = normalization.softmax(logits, axis=-1)
    weights = weights if seen is None else mnp.where(seen, weights, 0)
    weights = dropped(cast(weights, dtype), dropout_p, draw) if dropout_p > 0 else cast(weights, dtype)
    out = mnp.matmul(weights, values)
    return out.reshape(*query.shape[:-1], value.shape[-1]) if group > 1 else out
