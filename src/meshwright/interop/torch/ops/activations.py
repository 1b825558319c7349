"""Activations, with torch's derivatives where they bend."""

from __future__ import annotations

from typing import Any

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.core import dtypes
from meshwright.interop.torch.promotion import cast, in_single
from meshwright.interop.torch.registry import register
from meshwright.nn import activations


@register("aten.gelu")
def gelu(self: Any, approximate: str = "none") -> Any:
    return activations.gelu(self, approximate=approximate == "tanh")


@register("aten.elu")
@in_single
def elu(self: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    safe = mnp.where(self > 0, 0, self)
    return mnp.where(self > 0, self * scale, mnp.expm1(safe * input_scale) * (alpha * scale))


@register("aten.celu")
def celu(self: Any, alpha: float = 1) -> Any:
    return elu(self, alpha, 1, 1 / alpha)


@register("aten.selu")
def selu(self: Any) -> Any:
    return elu(self, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@register("aten.leaky_relu")
@in_single
def leaky_relu(self: Any, negative_slope: float = 0.01) -> Any:
    return mnp.where(self > 0, self, self * negative_slope)


@register("aten.prelu", "aten._prelu_kernel")
def prelu(self: Any, weight: Any) -> Any:
    if weight.ndim == 1 and self.ndim > 1 and weight.shape[0] > 1:
        weight = weight.reshape(weight.shape[0], *(1,) * (self.ndim - 2))
    return mnp.where(self > 0, self, weight * self)


@register("aten.softplus")
@in_single
def softplus(self: Any, beta: float = 1, threshold: float = 20) -> Any:
    large = self * beta > threshold
    safe = mnp.where(large, 0, self) * beta
    return mnp.where(large, self, mnp.log1p(mnp.exp(safe)) / beta)


@register("aten.hardtanh")
def hardtanh(self: Any, min_val: float = -1, max_val: float = 1) -> Any:
    """The derivative at the bounds is 0, as in torch. Integers have whole bounds."""
    min_val, max_val = (b if dtypes.is_inexact(self.dtype) else int(b) for b in (min_val, max_val))
    inside = (self > min_val) & (self < max_val)
    return mnp.where(inside, self, lax.stop_gradient(mnp.clip(self, min_val, max_val)))


register("aten.relu6")(lambda self: hardtanh(self, 0, 6))


@register("aten.hardsigmoid")
def hardsigmoid(self: Any) -> Any:
    return hardtanh(self + 3, 0, 6) / 6


@register("aten.hardswish")
def hardswish(self: Any) -> Any:
    inside = (self > -3) & (self < 3)
    safe = mnp.where(inside, self, 0)
    return mnp.where(inside, safe * (safe + 3) / 6, mnp.where(self <= -3, self * 0, self))


@register("aten.threshold")
def threshold(self: Any, threshold: Any, value: Any) -> Any:
    return mnp.where(self <= threshold, cast(value, self.dtype), self)


@register("aten.softshrink")
def softshrink(self: Any, lambd: float = 0.5) -> Any:
    shrunk = self - mnp.where(self > 0, lambd, -lambd).astype(self.dtype)
    return mnp.where((self >= -lambd) & (self <= lambd), mnp.zeros_like(self), shrunk)


@register("aten.hardshrink")
def hardshrink(self: Any, lambd: float = 0.5) -> Any:
    return mnp.where((self >= -lambd) & (self <= lambd), mnp.zeros_like(self), self)


@register("aten.glu")
def glu(self: Any, dim: int = -1) -> Any:
    a, b = mnp.split(self, 2, dim)
    return a * activations.sigmoid(b)
