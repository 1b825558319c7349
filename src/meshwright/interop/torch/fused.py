"""Ops of torch's that stand for many, written out where torch has no decomposition: of lists of tensors, which its
optimizers use (``_foreach_add``), of a whole layer of a transformer's encoder, outside of training, and of a loss of
products that is computed in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

Function = Callable[..., Any]


def written(name: str) -> Function | None:
    """How an op is written in others; None if it is none of these."""
    if name == "aten._transformer_encoder_layer_fwd.default":
        return encoder_layer
    if name.startswith("torch_nn._linear_cross_entropy_batch_chunked"):
        return chunked_losses if "no_reduction" in name else reduced_losses
    _, _, base = name.partition("aten._foreach_")
    function = _of_one(base.partition(".")[0])
    return function and partial(_each, function)


# --- lists of tensors ---------------------------------------------------------------------------------------
def _each(function: Function, *args: Any, **options: Any) -> list[Any]:
    count = next(len(a) for a in args if isinstance(a, (list, tuple)))
    return [function(*(a[i] if isinstance(a, (list, tuple)) else a for a in args), **options) for i in range(count)]


def _of_one(name: str) -> Function | None:
    """What an op of lists does with each tensor."""
    return _OTHERS.get(name) or (getattr(torch, name) if name in _SAME else None)


#: those that are functions of torch's by their names
_SAME = frozenset(
    "abs acos add asin atan ceil clamp_max clamp_min clone cos cosh div erf erfc exp expm1 floor frac lerp lgamma log "
    "log10 log1p log2 max mm mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc".split()
)
_OTHERS: dict[str, Function] = {
    "addcmul": lambda x, y, z, value=1: torch.addcmul(x, y, z, value=value),
    "addcdiv": lambda x, y, z, value=1: torch.addcdiv(x, y, z, value=value),
    "copy": torch.ops.aten.copy.default,
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "norm": lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype),
    "zero": torch.zeros_like,
}


# --- layers of encoders -------------------------------------------------------------------------------------
def encoder_layer(
    src: torch.Tensor, embed_dim: int, num_heads: int, qkv_weight: torch.Tensor, qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor, proj_bias: torch.Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: torch.Tensor, norm_bias_1: torch.Tensor, norm_weight_2: torch.Tensor, norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor, ffn_bias_1: torch.Tensor, ffn_weight_2: torch.Tensor, ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None, mask_type: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """``TransformerEncoderLayer`` of a batch; a mask is, by its type, of rows and columns (0), columns that are
    padding (1), or heads, rows and columns (2)."""

    def attention(x: torch.Tensor) -> torch.Tensor:
        qkv = F.linear(x, qkv_weight, qkv_bias).unflatten(-1, (3, num_heads, embed_dim // num_heads))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        logits = (query / math.sqrt(embed_dim // num_heads)) @ key.mT
        if mask is not None:
            hidden = mask[:, None, None] if mask_type == 1 else mask
            logits = logits.masked_fill(hidden.bool(), -math.inf)  # as there, whatever numbers a float mask has
        heads = logits.softmax(-1) @ value
        return F.linear(heads.transpose(1, 2).flatten(-2), proj_weight, proj_bias)

    def rows(x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    norms = (norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)
    first, second = (lambda x, n=n: F.layer_norm(x, (embed_dim,), *n, eps) for n in norms)
    if norm_first:
        x = src + attention(first(src))
        return x + rows(second(x))
    x = first(src + attention(src))
    return second(x + rows(x))


# --- losses of products -------------------------------------------------------------------------------------
def chunked_losses(
    input: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, bias: torch.Tensor | None,
    of_classes: torch.Tensor | None, ignore_index: int, *chunks: Any, reduction: str = "none", smoothing: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """``linear_cross_entropy``, of each row; in which chunks it is computed is of no matter."""
    logits = F.linear(input, weight, bias)
    return F.cross_entropy(logits, target, of_classes, None, ignore_index, None, reduction, smoothing)


def reduced_losses(
    input: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, bias: torch.Tensor | None,
    of_classes: torch.Tensor | None, reduction: str, ignore_index: int, smoothing: float, *others: Any,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """The loss, and gradients that torch computes with it, for its own derivative."""
    given = input, weight, target, bias, of_classes, ignore_index
    loss = chunked_losses(*given, reduction=reduction, smoothing=smoothing)
    nothing = input.new_zeros(0)
    return loss, nothing, nothing.clone(), nothing.clone()
