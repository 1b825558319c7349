"""What draws numbers: each op takes a key of its own, derived from the one that the model is called with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from meshwright import lax, random
from meshwright import numpy as mnp
from meshwright.interop.torch.dtypes import array_dtype
from meshwright.interop.torch.promotion import cast
from meshwright.interop.torch.registry import register

Draw = Callable[[], Any]


def _float(dtype: Any, like: Any = None) -> Any:
    if dtype is not None:
        return array_dtype(dtype)
    return array_dtype(torch.get_default_dtype()) if like is None else like.dtype


def dropped(x: Any, p: float, draw: Draw, shape: Sequence[int] | None = None) -> Any:
    """Each element (or with ``shape`` each slice) 0 with probability ``p``, else divided by ``1 - p``."""
    if p == 0:
        return x
    if p == 1:
        return x * 0
    keep = random.bernoulli(draw(), 1 - p, tuple(x.shape if shape is None else shape))
    return mnp.where(keep, x / (1 - p), 0)


@register("aten.dropout", random=True)
def dropout(input: Any, p: float, train: bool, draw: Draw) -> Any:
    return dropped(input, p, draw) if train else input


@register("aten.native_dropout", random=True)
def native_dropout(input: Any, p: float, train: bool | None, draw: Draw) -> tuple[Any, Any]:
    if not train or p == 0:
        return input, mnp.ones(input.shape, bool)
    if p == 1:
        return input * 0, mnp.zeros(input.shape, bool)
    keep = random.bernoulli(draw(), 1 - p, input.shape)
    return mnp.where(keep, input / (1 - p), 0), keep


@register("aten.feature_dropout", random=True)
def feature_dropout(input: Any, p: float, train: bool, draw: Draw) -> Any:
    return dropped(input, p, draw, (*input.shape[:2], *(1,) * (input.ndim - 2))) if train else input


@register("aten.alpha_dropout", random=True)
def alpha_dropout(input: Any, p: float, train: bool, draw: Draw) -> Any:
    if not train or p == 0:
        return input
    if p == 1:
        return input * 0
    low = -1.7580993408473766
    keep = random.bernoulli(draw(), 1 - p, input.shape)
    a = ((1 - p) * (1 + p * low**2)) ** -0.5
    return mnp.where(keep, input, low) * a - p * a * low


@register("aten.rrelu_with_noise_functional", random=True)
def rrelu(
    self: Any, noise: Any, draw: Draw, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False
) -> tuple[Any, Any]:
    """The slope of what is negative is drawn, or else the mean one; the second result is of use to torch alone."""
    slope = random.uniform(draw(), self.shape, self.dtype, lower, upper) if training else (lower + upper) / 2
    return mnp.where(self > 0, self, self * slope), noise


@register("aten.rand", random=True)
def rand(size: Sequence[int], draw: Draw, dtype: Any = None) -> Any:
    return random.uniform(draw(), tuple(size), _float(dtype))


@register("aten.randn", random=True)
def randn(size: Sequence[int], draw: Draw, dtype: Any = None) -> Any:
    return random.normal(draw(), tuple(size), _float(dtype))


@register("aten.rand_like", random=True)
def rand_like(self: Any, draw: Draw, dtype: Any = None) -> Any:
    return random.uniform(draw(), self.shape, _float(dtype, self))


@register("aten.randn_like", random=True)
def randn_like(self: Any, draw: Draw, dtype: Any = None) -> Any:
    return random.normal(draw(), self.shape, _float(dtype, self))


@register("aten.uniform", random=True)
def uniform(self: Any, draw: Draw, to: float = 1, **bounds: Any) -> Any:
    low = bounds.get("from", 0)
    return random.uniform(draw(), self.shape, self.dtype, low, to)


@register("aten.normal_functional", random=True)
def normal(self: Any, draw: Draw, mean: float = 0, std: float = 1) -> Any:
    return random.normal(draw(), self.shape, self.dtype) * std + mean


@register("prims.normal", random=True)
def normal_of_shape(
    shape: Sequence[int], draw: Draw, mean: float, std: float, dtype: Any, requires_grad: bool = False
) -> Any:
    return random.normal(draw(), tuple(shape), _float(dtype)) * std + mean


@register("aten.exponential", random=True)
def exponential(self: Any, draw: Draw, lambd: float = 1) -> Any:
    return random.exponential(draw(), self.shape, self.dtype) / lambd


@register("aten._standard_gamma", random=True)
def standard_gamma(self: Any, draw: Draw) -> Any:
    return random.gamma(draw(), self, dtype=self.dtype)


@register("aten._sample_dirichlet", random=True)
def dirichlet(self: Any, draw: Draw) -> Any:
    return random.dirichlet(draw(), self, dtype=self.dtype)


@register("aten.poisson", random=True)
def poisson(self: Any, draw: Draw) -> Any:
    """NaN where torch raises an error, and for rates whose variates integers may not hold."""
    rate = lax.stop_gradient(self)
    drawn = cast(random.poisson(draw(), rate), self.dtype)
    return mnp.where((rate >= 0) & (rate < 2**30), drawn, math.nan)


@register("aten.binomial", random=True)
def binomial(count: Any, prob: Any, draw: Draw) -> Any:
    """NaN where torch raises an error."""
    return random.binomial(draw(), lax.stop_gradient(count), lax.stop_gradient(prob), dtype=count.dtype)


@register("aten.bernoulli.default", random=True)
def bernoulli(self: Any, draw: Draw) -> Any:
    return cast(random.bernoulli(draw(), self), self.dtype)


@register("aten.bernoulli.p", random=True)
def bernoulli_p(self: Any, draw: Draw, p: float = 0.5) -> Any:
    return cast(random.bernoulli(draw(), p, self.shape), self.dtype)


@register("aten.randint", random=True)
def randint(high: int, size: Sequence[int], draw: Draw, dtype: Any = None) -> Any:
    return randint_low(0, high, size, draw, dtype)


@register("aten.randint.low", random=True)
def randint_low(low: int, high: int, size: Sequence[int], draw: Draw, dtype: Any = None) -> Any:
    return _whole(draw(), size, low, high, array_dtype(dtype or torch.int64))


def _whole(key: Any, shape: Sequence[int], low: Any, high: Any, dtype: Any) -> Any:
    """Whole numbers, of a dtype that may be one of floats."""
    drawn = dtype if mnp.issubdtype(dtype, mnp.integer) else array_dtype(torch.int64)
    return cast(random.randint(key, tuple(shape), low, high, drawn), dtype)


@register("aten.randint_like", random=True)
def randint_like(self: Any, high: Any, draw: Draw, low: Any = 0, dtype: Any = None) -> Any:
    return _whole(draw(), self.shape, low, high, array_dtype(dtype) if dtype else self.dtype)


@register("aten.randperm", random=True)
def randperm(n: int, draw: Draw, dtype: Any = None) -> Any:
    return cast(random.permutation(draw(), n), array_dtype(dtype or torch.int64))


@register("aten.multinomial", random=True)
def multinomial(self: Any, num_samples: int, draw: Draw, replacement: bool = False) -> Any:
    logits = mnp.log(self)
    shape = (*self.shape[:-1], num_samples)
    out = (
        random.categorical(draw(), logits[..., None, :], -1, shape)
        if replacement
        else _without(logits, num_samples, draw)
    )
    return cast(out, array_dtype(torch.int64))


def _without(logits: Any, count: int, draw: Draw) -> Any:
    """The classes of the largest ``count`` perturbed logits (Gumbel top-k)."""
    noisy = logits + random.gumbel(draw(), logits.shape, logits.dtype)
    return mnp.argsort(noisy, -1, descending=True)[..., :count]
