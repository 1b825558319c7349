"""``flex_attention`` in ops: its functions of scores and positions mapped over all of these, as torch does eagerly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention import flex_attention as module

import meshwright.numpy as mnp
from meshwright.interop.torch.ops.indexing import index_put
from meshwright.interop.torch.overrides import overrides
from meshwright.interop.torch.registry import register
from meshwright.interop.torch.transformations import in_ops

#: what begins it, as a module and a name in it
ATTENTION = ((module, "_validate_device"),)


@overrides(torch.ops.higher_order.flex_attention)
def flex_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Any, block_mask: Sequence[Any],
    scale: float, kernel_options: Any, score_mod_other_buffers: Sequence[Any] = (),
    mask_mod_other_buffers: Sequence[Any] = (),
) -> Any:  # fmt: skip
    """The result, and the logarithm to base 2 of the sum, and of the largest, of the exponentials of scores.

    As where torch runs it eagerly, the mask is that of its function; which blocks the mask leaves is of no matter."""
    count = len(score_mod_other_buffers)

    def attended(query: Any, key: Any, value: Any, *buffers: Any) -> Any:
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, 1).expand(query.shape[0], -1, -1, -1) for x in (key, value))
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        scores = query.to(dtype) @ key.to(dtype).mT * scale
        places = [torch.arange(n) for n in scores.shape]
        with TransformGetItemToIndex():
            mask = _mapped(block_mask[-1], (), buffers[count:])(*places, *buffers[count:])
            scores = _mapped(score_mod, (0,), buffers[:count])(scores, *places, *buffers[:count])
        scores = scores.to(dtype).masked_fill(~mask, -torch.inf)
        weights = torch.ops.aten._safe_softmax(scores, -1).to(query.dtype)
        return weights @ value.to(query.dtype), scores.logsumexp(-1) / math.log(2), scores.amax(-1) / math.log(2)

    return in_ops(attended, query, key, value, *score_mod_other_buffers, *mask_mod_other_buffers)


def _mapped(function: Any, given: tuple[Any, ...], buffers: Sequence[Any]) -> Any:
    """A function of a score, if ``given``, and of four positions and buffers, mapped over all positions."""
    for i in reversed(range(4)):
        axes = [0 if j == i else None for j in range(4)]
        function = torch.vmap(function, (*given, *axes, *(None for _ in buffers)))
    return function


@register("flex_lib.zeros_and_scatter")
def zeros_and_scatter(shape: Sequence[int], indices: Sequence[Any], vals: Any) -> Any:
    """The derivative of picking elements."""
    return index_put(mnp.zeros(tuple(shape), vals.dtype), indices, vals, accumulate=True)


@contextmanager
def derivatives_of_attention() -> Iterator[None]:
    """Within, ``flex_attention`` is not refused because torch has no derivative of it on CPUs."""
    check = module._validate_device
    module._validate_device = lambda *_: None  # type: ignore[assignment]
    try:
        yield
    finally:
        module._validate_device = check
