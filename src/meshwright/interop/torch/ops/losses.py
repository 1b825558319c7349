"""Losses that torch does not write in terms of other ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.core import dtypes
from meshwright.interop.torch.ops.elementwise import absolute
from meshwright.interop.torch.promotion import cast, promoted, to_float
from meshwright.interop.torch.registry import register
from meshwright.nn import activations, normalization
from meshwright.scipy.special import xlogy
from meshwright.transforms.custom_jvp import custom_jvp

#: torch's numbers for ``reduction``
NONE, MEAN, SUM = 0, 1, 2


def _reduced(x: Any, reduction: int) -> Any:
    if reduction == NONE:
        return x
    return mnp.mean(x) if reduction == MEAN else mnp.sum(x)


def _picked(x: Any, target: Any) -> Any:
    """``x[i, target[i], ...]``, by a sum, so that a split class dimension stays split."""
    classes = lax.broadcasted_iota(target.dtype, x.shape, 1)
    return mnp.sum(mnp.where(classes == mnp.expand_dims(target, 1), x, 0), 1)


def _is_class(target: Any, x: Any) -> Any:
    """Whether targets are some; torch raises for others, which no program can: they give NaN, which is seen."""
    return (target >= 0) & (target < x.shape[1])


def _nll(log_probs: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> tuple[Any, Any]:
    single = log_probs.ndim == 1
    if single:
        log_probs, target = log_probs[None], target[None]
    used = target != ignore_index
    safe = mnp.where(used, target, 0)
    weights = mnp.ones_like(used, log_probs.dtype) if weight is None else mnp.take(weight, safe, 0)
    weights = mnp.where(used, weights, 0)
    loss = mnp.where(_is_class(safe, log_probs), -_picked(log_probs, safe) * weights, mnp.nan)
    total = mnp.sum(weights)
    if reduction == NONE:
        return loss[0] if single else loss, total
    return _of_total(mnp.sum(loss), total) if reduction == MEAN else mnp.sum(loss), total


def _of_total(loss: Any, total: Any) -> Any:
    """The mean; where nothing counts NaN, with a derivative of 0, as torch's: such a batch trains nothing."""
    return mnp.where(total == 0, mnp.nan, loss / mnp.where(total == 0, 1, total))


@register("aten.nll_loss_nd", "aten.nll_loss", "aten.nll_loss2d")
def nll_loss(self: Any, target: Any, weight: Any = None, reduction: int = MEAN, ignore_index: int = -100) -> Any:
    return _nll(self, target, weight, reduction, ignore_index)[0]


@register("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def nll_loss_forward(self: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> tuple[Any, Any]:
    return _nll(self, target, weight, reduction, ignore_index)


@register("aten.cross_entropy_loss")
def cross_entropy(
    self: Any, target: Any, weight: Any = None, reduction: int = MEAN, ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    axis = 0 if self.ndim == 1 else 1
    log_probs = normalization.log_softmax(self, axis=axis)
    if dtypes.is_inexact(target.dtype):
        log_probs, target = promoted(log_probs, target)
        return _soft_cross_entropy(log_probs, target, weight, reduction, label_smoothing, axis)
    if label_smoothing == 0:
        return nll_loss(log_probs, target, weight, reduction, ignore_index)
    if axis == 0:
        log_probs, target = log_probs[None], target[None]
    hard, total = _nll(log_probs, target, weight, NONE, ignore_index)
    scaled = log_probs if weight is None else log_probs * _class_weights(weight, log_probs, 1)
    smooth = -mnp.where(target != ignore_index, mnp.sum(scaled, 1), 0)
    classes = log_probs.shape[1]
    if reduction == NONE:
        mixed = hard * (1 - label_smoothing) + smooth * (label_smoothing / classes)
        return mixed[0] if axis == 0 else mixed
    parts = mnp.sum(hard) * (1 - label_smoothing) + mnp.sum(smooth) * (label_smoothing / classes)
    return _of_total(parts, total) if reduction == MEAN else parts


def _class_weights(weight: Any, like: Any, axis: int) -> Any:
    return weight.reshape([-1 if d == axis else 1 for d in range(like.ndim)])


def _soft_cross_entropy(log_probs: Any, target: Any, weight: Any, reduction: int, smoothing: float, axis: int) -> Any:
    classes = log_probs.shape[axis]
    target = target if smoothing == 0 else target * (1 - smoothing) + smoothing / classes
    terms = log_probs * target if weight is None else log_probs * target * _class_weights(weight, log_probs, axis)
    loss = -mnp.sum(terms, axis)
    return mnp.sum(loss) / (log_probs.size // classes) if reduction == MEAN else _reduced(loss, reduction)


@register("aten.mse_loss")
def mse_loss(self: Any, target: Any, reduction: int = MEAN) -> Any:
    off = mnp.subtract(*promoted(self, target))
    return _reduced(off * off, reduction)


@register("aten.l1_loss")
def l1_loss(self: Any, target: Any, reduction: int = MEAN) -> Any:
    return _reduced(absolute(mnp.subtract(*promoted(self, target))), reduction)


@register("aten.smooth_l1_loss")
def smooth_l1_loss(self: Any, target: Any, reduction: int = MEAN, beta: float = 1.0) -> Any:
    if beta == 0:
        return l1_loss(self, target, reduction)
    off = mnp.subtract(*promoted(self, target))
    size = mnp.abs(off)
    return _reduced(_squared_if(~(size >= beta), off, 0.5 / beta, size - 0.5 * beta), reduction)


def _squared_if(is_near: Any, off: Any, factor: float, far: Any) -> Any:
    """``off * off * factor`` or ``far``; infinite differences are not squared, whose derivative would be NaN."""
    near = mnp.where(is_near, off, 0)
    return mnp.where(is_near, near * near * factor, far)


@register("aten.huber_loss")
def huber_loss(self: Any, target: Any, reduction: int = MEAN, delta: float = 1.0) -> Any:
    off = mnp.subtract(*promoted(self, target))
    size = mnp.abs(off)
    loss = _squared_if(~(size > delta), off, 0.5, delta * (size - 0.5 * delta))
    return _reduced(cast(loss, self.dtype), reduction)


@register("aten.soft_margin_loss")
def soft_margin_loss(self: Any, target: Any, reduction: int = MEAN) -> Any:
    x, target = promoted(self, target)
    return _reduced(cast(mnp.log1p(mnp.exp(-target * x)), self.dtype), reduction)


@register("aten.binary_cross_entropy")
def binary_cross_entropy(self: Any, target: Any, weight: Any = None, reduction: int = MEAN) -> Any:
    p = to_float(self)
    return _weighted(_bernoulli(p, cast(target, p.dtype)), weight, p.dtype, reduction)


def _weighted(loss: Any, weight: Any, dtype: np.dtype, reduction: int) -> Any:
    """A loss of torch's that is multiplied in its place, and has a dtype of its own."""
    return _reduced(cast(loss if weight is None else loss * weight, dtype), reduction)


@custom_jvp
def _bernoulli(p: Any, target: Any) -> Any:
    """Logarithms end at -100, and the derivative's divisor at 1e-12, as in torch."""
    return _cross(target, *_logarithms(p))


@_bernoulli.defjvp
def _bernoulli_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (p, target), (dp, dtarget) = primals, tangents
    one, zero = _logarithms(p)
    slope = (p - target) / mnp.maximum(p * (1 - p), cast(1e-12, p.dtype))
    return _cross(target, one, zero), slope * dp + (zero - one) * dtarget


def _cross(target: Any, one: Any, zero: Any) -> Any:
    """The cross entropy of ``target`` with what has the logarithms ``one``, and ``zero`` of the opposite."""
    return (target - 1) * zero - target * one


def _logarithms(p: Any) -> list[Any]:
    return [mnp.maximum(mnp.log(x), cast(-100.0, x.dtype)) for x in (p, 1 - p)]


@register("aten.binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    self: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = MEAN
) -> Any:
    target = to_float(target)
    factor = 1 if pos_weight is None else (pos_weight - 1) * target + 1
    loss = (1 - target) * self - factor * activations.log_sigmoid(self)
    return _weighted(loss, weight, target.dtype, reduction)


@register("aten.multilabel_margin_loss")
def multilabel_margin_loss(self: Any, target: Any, reduction: int = MEAN) -> Any:
    """Of each example the labels before the first -1 count. (Torch's decomposition lets the others count, too.)"""
    x, labels = (mnp.atleast_2d(a) for a in (self, target))
    classes = mnp.arange(x.shape[1], dtype=labels.dtype)
    counts = mnp.cumsum(labels == -1, 1) == 0
    labels = mnp.where(counts, labels, 0)
    own = mnp.take_along_axis(x, labels, 1)
    is_target = mnp.any(counts[..., None] & (labels[..., None] == classes), 1)
    margins = 1 - own[..., None] + x[:, None]  # [example, label, class]
    used = counts[..., None] & ~is_target[:, None] & (margins > 0)
    loss = mnp.sum(mnp.where(used, margins, 0), (1, 2)) / x.shape[1]
    return _reduced(loss if self.ndim == 2 else loss[0], reduction)


@register("aten.kl_div")
def kl_div(self: Any, target: Any, reduction: int = MEAN, log_target: bool = False) -> Any:
    if log_target:
        return _reduced(mnp.exp(target) * (target - self), reduction)
    return _reduced(xlogy(target, target) - target * self, reduction)
