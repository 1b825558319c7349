"""Values rounded to the integers of a scale, as in training that is aware of quantization.

Rounding has no useful derivative. Torch's is that of the identity where a value has an integer, and 0 elsewhere.
"""

from __future__ import annotations

from typing import Any

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.core import dtypes
from meshwright.interop.torch.promotion import cast
from meshwright.interop.torch.registry import register
from meshwright.transforms.custom_jvp import custom_jvp


def _integers(x: Any, scale: Any, zero_point: Any) -> Any:
    """The integers of values, as floats, not yet limited. Zero points that are floats are rounded with the values."""
    scaled = mnp.multiply(x, 1 / scale)
    if dtypes.is_inexact(zero_point.dtype):
        return mnp.round(zero_point + scaled)
    return mnp.round(scaled) + cast(zero_point, scaled.dtype)


@custom_jvp
def _rounded(x: Any, scale: Any, zero_point: Any, low: Any, high: Any, factor: Any) -> Any:
    """The value of the nearest integer of ``scale`` between two limits."""
    whole = mnp.clip(_integers(x, scale, zero_point), low, high)
    return cast((whole - zero_point) * scale, x.dtype)


@_rounded.defjvp
def _(primals: Any, tangents: Any) -> Any:
    """Scales and zero points that are learned have the derivatives of Jain et al. (2020), times ``factor``."""
    x, scale, zero_point, low, high, factor = primals
    out = _rounded(*primals)
    whole = _integers(x, scale, zero_point)
    fits = (whole >= low) & (whole <= high)
    by_scale = mnp.where(fits, (out - x) / scale, mnp.clip(whole, low, high) - zero_point)
    moved = mnp.where(fits, tangents[0], 0) + by_scale * factor * tangents[1]
    if dtypes.is_inexact(zero_point.dtype):
        moved = moved + mnp.where(fits, 0, -scale) * factor * tangents[2]
    return out, cast(moved, out.dtype)


def _quantized(x: Any, scale: Any, zero_point: Any, low: int, high: int, axis: int | None, factor: float = 0.0) -> Any:
    shape = [1] * x.ndim
    if axis is not None:
        shape[axis] = x.shape[axis]
    scale, zero_point = (mnp.asarray(s).reshape(shape) for s in (scale, zero_point))
    limits = (mnp.asarray(n, scale.dtype) for n in (low, high, factor))
    return _rounded(x, cast(scale, mnp.promote_types(scale.dtype, dtypes.float32)), zero_point, *limits)


@register("aten.fake_quantize_per_tensor_affine")
def per_tensor(self: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> Any:
    scale = mnp.asarray(scale, dtypes.float32) if isinstance(scale, float) else lax.stop_gradient(scale)
    return _quantized(self, scale, zero_point, quant_min, quant_max, None)


@register("aten.fake_quantize_per_channel_affine")
def per_channel(self: Any, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int) -> Any:
    scale, zero_point = map(lax.stop_gradient, (scale, zero_point))
    return _quantized(self, scale, zero_point, quant_min, quant_max, axis)


@register("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def per_tensor_if(
    self: Any, scale: Any, zero_point: Any, fake_quant_enabled: Any, quant_min: int, quant_max: int
) -> tuple[Any, Any]:
    """With what fits, which only torch's backward asks for."""
    fits = mnp.abs(_integers(self, scale, zero_point) - (quant_min + quant_max) / 2) <= (quant_max - quant_min) / 2
    is_on = fake_quant_enabled.reshape(-1)[0] != 0
    out = per_tensor(self, scale, zero_point, quant_min, quant_max)
    return mnp.where(is_on, out, self), fits | ~is_on


@register("aten.fake_quantize_per_tensor_affine_cachemask")
def per_tensor_with_mask(self: Any, scale: float, zero_point: int, quant_min: int, quant_max: int) -> tuple[Any, Any]:
    whole = _integers(self, mnp.asarray(scale, dtypes.float32), mnp.asarray(zero_point))
    return per_tensor(self, scale, zero_point, quant_min, quant_max), (whole >= quant_min) & (whole <= quant_max)


def _whole_zero_point(zero_point: Any, low: int, high: int) -> Any:
    """Learned zero points are rounded within the limits; their derivative is that of the identity."""
    return zero_point + lax.stop_gradient(mnp.clip(mnp.round(zero_point), low, high) - zero_point)


@register("aten._fake_quantize_learnable_per_tensor_affine")
def learned_per_tensor(
    self: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Any:
    return learned_per_channel(self, scale, zero_point, None, quant_min, quant_max, grad_factor)


@register("aten._fake_quantize_learnable_per_channel_affine")
def learned_per_channel(
    self: Any, scale: Any, zero_point: Any, axis: int | None, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Any:
    zero_point = _whole_zero_point(zero_point, quant_min, quant_max)
    return _quantized(self, scale, zero_point, quant_min, quant_max, axis, grad_factor)
