"""Convolutions of every kind: features are dimension 1 in torch, kernels are ``[out, in, ...]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.interop.torch.registry import register


def _each(value: Any, n: int) -> tuple[int, ...]:
    """One number for each spatial dimension."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * n if len(values) == 1 else values


def _with_bias(out: Any, bias: Any) -> Any:
    return out if bias is None else out + bias.reshape(-1, *(1,) * (out.ndim - 2))


def forward(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:  # fmt: skip
    """``padding`` is numbers, or the word ``"same"`` or ``"valid"``."""
    n = weight.ndim - 2
    batched = x.ndim == weight.ndim
    dilation = _each(dilation, n)
    if isinstance(padding, str):
        spans = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, weight.shape[2:])]
        pads = [(s // 2, s - s // 2) for s in spans]
    else:
        pads = [(p, p) for p in _each(padding, n)]
    out = lax.conv_general_dilated(
        x if batched else x[None], weight, _each(stride, n), pads, rhs_dilation=dilation, feature_group_count=groups
    )
    return _with_bias(out, bias) if batched else _with_bias(out, bias)[0]


def transposed(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any
) -> Any:
    """The gradient of a convolution by its input; the kernel is ``[in, out / groups, ...]``."""
    n = weight.ndim - 2
    batched = x.ndim == weight.ndim
    dilation, stride = _each(dilation, n), _each(stride, n)
    sizes = zip(weight.shape[2:], dilation, _each(padding, n), _each(output_padding, n))
    pads = [(d * (k - 1) - p, d * (k - 1) - p + extra) for k, d, p, extra in sizes]
    c, out_group, *window = weight.shape
    kernel = weight.reshape(groups, c // groups, out_group, *window).swapaxes(1, 2)
    kernel = mnp.flip(kernel.reshape(groups * out_group, c // groups, *window), tuple(range(2, n + 2)))
    out = lax.conv_general_dilated(
        x if batched else x[None], kernel, (1,) * n, pads, lhs_dilation=stride, rhs_dilation=dilation,
        feature_group_count=groups,
    )  # fmt: skip
    return _with_bias(out, bias) if batched else _with_bias(out, bias)[0]


@register(*(f"aten.conv{n}d{kind}" for n in "123" for kind in ("", ".padding")))
def conv(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    return forward(input, weight, bias, stride, padding, dilation, groups)


@register("aten.conv_tbc")
def conv_of_time_first(self: Any, weight: Any, bias: Any, pad: int = 0) -> Any:
    """Over time, which is dimension 0 of the input and of the kernel, ``[window, in, out]``."""
    out = forward(mnp.moveaxis(self, 0, 2), weight.transpose(2, 1, 0), bias, 1, pad, 1, 1)
    return mnp.moveaxis(out, 2, 0)


@register(*(f"aten.conv_transpose{kind}" for kind in ("1d", "2d.input", "3d.input")))
def conv_transpose(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    return transposed(input, weight, bias, stride, padding, output_padding, groups, dilation)


@register("aten.convolution", "aten._convolution")
def convolution(
    input: Any, weight: Any, bias: Any, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int, benchmark: bool = False, deterministic: bool = False,
    allow_tf32: bool = False,
) -> Any:  # fmt: skip
    if transposed:
        return conv_transpose(input, weight, bias, stride, padding, output_padding, groups, dilation)
    return forward(input, weight, bias, stride, padding, dilation, groups)
