"""Normalizations and softmax. Statistics of 16-bit floats are made in 32 bits, as torch does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.core import dtypes
from meshwright.errors import RuleError
from meshwright.interop.torch.dtypes import array_dtype
from meshwright.interop.torch.promotion import cast
from meshwright.interop.torch.registry import register
from meshwright.nn import normalization
from meshwright.transforms.custom_jvp import custom_jvp


def _wide(x: Any) -> Any:
    return cast(x, dtypes.float32) if dtypes.bit_width(x.dtype) < 32 else x


# --- softmax ------------------------------------------------------------------------------------------------
def _softmax(function: Any) -> Any:
    def rule(self: Any, dim: int, dtype: Any = None, half_to_float: bool = False) -> Any:
        x = self if dtype is None else cast(self, array_dtype(dtype))
        return cast(function(_wide(x), axis=dim), x.dtype) if x.ndim else function(x[None], axis=0)[0]

    return rule


register("aten.softmax", "aten._softmax", "aten.special_softmax")(_softmax(normalization.softmax))
register("aten.log_softmax", "aten._log_softmax")(_softmax(normalization.log_softmax))


@register("aten._safe_softmax")
def safe_softmax(self: Any, dim: int, dtype: Any = None) -> Any:
    """Rows that are -inf throughout give zeros, and have zeros for derivatives."""
    empty = mnp.all(self == -mnp.inf, dim, keepdims=True)
    out = _softmax(normalization.softmax)(mnp.where(empty, 0, self), dim, dtype)
    return mnp.where(empty, 0, out)


# --- of one example -----------------------------------------------------------------------------------------
def _moments(x: Any, dims: tuple[int, ...], eps: float) -> tuple[Any, Any, Any]:
    """``x`` normalized over ``dims``, the mean, and one over the deviation."""
    mean = mnp.mean(x, dims, keepdims=True)
    off = x - mean
    rstd = lax.rsqrt(mnp.mean(off * off, dims, keepdims=True) + eps)
    return off * rstd, mean, rstd


def _as_given(statistics: Sequence[Any], x: Any, *parameters: Any) -> list[Any]:
    """Statistics in the dtype that torch returns them in: that of the parameters, if there are any, else of ``x``."""
    dtype = next((v.dtype for v in parameters if v is not None), x.dtype)
    return [cast(s, dtype) for s in statistics]


def _affine(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _last(x: Any, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(x.ndim - len(shape), x.ndim))


@register("aten.native_layer_norm")
def native_layer_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Any, Any, Any]:
    out, mean, rstd = _moments(_wide(input), _last(input, normalized_shape), eps)
    return cast(_affine(out, weight, bias), input.dtype), *_as_given((mean, rstd), input, weight, bias)


@register("aten.layer_norm")
def layer_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    return native_layer_norm(input, normalized_shape, weight, bias, eps)[0]


@register("aten.rms_norm")
def rms_norm(input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    x = _wide(input)
    eps = float(mnp.finfo(x.dtype).eps) if eps is None else eps
    out = x * lax.rsqrt(mnp.mean(x * x, _last(x, normalized_shape), keepdims=True) + eps)
    return cast(out if weight is None else out * weight, input.dtype)


@register("aten.group_norm")
def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    return grouped(input, num_groups, weight, bias, eps)[0]


def grouped(x: Any, groups: int, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
    n, c, *rest = x.shape
    cut = _wide(x).reshape(n, groups, c // groups, *rest)
    out, mean, rstd = _moments(cut, tuple(range(2, cut.ndim)), eps)
    sizes = (c, *(1,) * len(rest))
    weight, bias = (None if v is None else v.reshape(sizes) for v in (weight, bias))
    return cast(_affine(out.reshape(x.shape), weight, bias), x.dtype), *(v.reshape(n, groups) for v in (mean, rstd))


@register("aten.native_group_norm")
def native_group_norm(
    input: Any, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Any, Any, Any]:
    out, *statistics = grouped(input, group, weight, bias, eps)
    return out, *_as_given(statistics, input, weight, bias)


# --- of a batch ---------------------------------------------------------------------------------------------
def _per_feature(v: Any, ndim: int) -> Any:
    return None if v is None else v.reshape(-1, *(1,) * (ndim - 2))


def _batch_dims(x: Any) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _of_batch(x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
    """``x`` normalized by the mean and (biased) variance of each feature, which are returned, too."""
    ones = mnp.ones(x.shape[1], _wide(x).dtype)
    weight, bias = (ones if weight is None else weight), (0 * ones if bias is None else bias)
    out, mean, var = _affine_of_batch(_wide(x), weight, bias, eps)
    return cast(out, x.dtype), mean, var


@partial(custom_jvp, nondiff_argnums=(3,))
def _affine_of_batch(x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
    """The result, with a derivative whose transpose takes two sums over the batch, of ``ct`` and of ``ct * normalized``
    (Ioffe and Szegedy 2015, section 3); that of the formula below takes five."""
    mean = mnp.mean(x, _batch_dims(x))
    off = x - _per_feature(mean, x.ndim)
    var = mnp.mean(off * off, _batch_dims(x))
    normalized = off * _per_feature(lax.rsqrt(var + eps), x.ndim)
    return normalized * _per_feature(weight, x.ndim) + _per_feature(bias, x.ndim), mean, var


@_affine_of_batch.defjvp
def _affine_of_batch_jvp(eps: float, primals: Any, tangents: Any) -> tuple[Any, Any]:
    (x, weight, bias), (dx, dweight, dbias) = primals, tangents
    wide, dims = partial(_per_feature, ndim=x.ndim), _batch_dims(x)
    out, mean, var = _affine_of_batch(x, weight, bias, eps)
    scale = lax.rsqrt(var + eps)
    normalized, moved = (x - wide(mean)) * wide(scale), dx * wide(scale)
    by_mean, by_scale = mnp.mean(moved, dims), mnp.mean(normalized * moved, dims)
    slope, shift = dweight - weight * by_scale, dbias - weight * by_mean
    dout = moved * wide(weight) + normalized * wide(slope) + wide(shift)
    return (out, mean, var), (dout, by_mean / scale, 2 * by_scale / (scale * scale))


def _normalized(x: Any, mean: Any, var: Any, weight: Any, bias: Any, eps: float) -> Any:
    mean, scale = _per_feature(mean, x.ndim), _per_feature(lax.rsqrt(var + eps), x.ndim)
    out = (_wide(x) - mean) * scale
    return cast(_affine(out, _per_feature(weight, x.ndim), _per_feature(bias, x.ndim)), x.dtype)


def _no_statistics(like: Any) -> tuple[Any, Any]:
    """What torch returns for those of a batch where it takes the running ones."""
    return (mnp.zeros(0, like.dtype),) * 2


@register("aten._native_batch_norm_legit_functional")
def batch_norm_functional(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    """The result, mean and one over deviation of the batch, and the running statistics after it."""
    if not training:
        out = _normalized(input, running_mean, running_var, weight, bias, eps)
        return out, *_no_statistics(running_mean), running_mean, running_var
    out, mean, var = _of_batch(input, weight, bias, eps)
    count = input.size // input.shape[1]
    new = [lax.stop_gradient(v) for v in (mean, var * (count / max(count - 1, 1)))]
    moved = [cast(old * (1 - momentum) + v * momentum, old.dtype) for old, v in zip((running_mean, running_var), new)]
    kept = _as_given((mean, lax.rsqrt(var + eps)), input, weight, bias, running_mean)
    return out, *kept, *moved


@register("aten._native_batch_norm_legit_no_training")
def batch_norm_inference(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> tuple[Any, ...]:
    return _normalized(input, running_mean, running_var, weight, bias, eps), *_no_statistics(running_mean)


@register("aten._native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    input: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    out, mean, var = _of_batch(input, weight, bias, eps)
    return out, *_as_given((mean, lax.rsqrt(var + eps)), input, weight, bias)


@register("aten.batch_norm")
def batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float, eps: float
) -> Any:
    if training:
        return batch_norm_no_stats(input, weight, bias, True, momentum, eps)[0]
    return _normalized(input, running_mean, running_var, weight, bias, eps)


@register("aten.instance_norm")
def instance_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, use_input_stats: bool, momentum: float,
    eps: float,
) -> Any:  # fmt: skip
    if not use_input_stats:
        return _normalized(input, running_mean, running_var, weight, bias, eps)
    if running_mean is not None or running_var is not None:
        raise RuleError(
            "aten.instance_norm: running statistics that this op writes to; call torch.nn.functional.instance_norm"
        )
    out, _, _ = _moments(_wide(input), tuple(range(2, input.ndim)), eps)
    return cast(_affine(out, _per_feature(weight, input.ndim), _per_feature(bias, input.ndim)), input.dtype)
