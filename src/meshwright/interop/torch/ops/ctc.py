"""The loss of connectionist temporal classification (Graves et al. 2006, section 4), a scan over time.

A path through the labels passes a state for each label and for the blanks around them. ``alpha[t, s]`` is the log of
the probability of all beginnings of paths that are in state ``s`` at time ``t``.
"""

from __future__ import annotations

from typing import Any

from meshwright import numpy as mnp
from meshwright.interop.torch.ops.loops import scan
from meshwright.interop.torch.ops.losses import MEAN, NONE
from meshwright.interop.torch.registry import register
from meshwright.transforms.autodiff import stop_gradient
from meshwright.transforms.custom_jvp import custom_jvp


@register("meshwright.ctc_loss")
def ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, longest: int, blank: int = 0,
    reduction: int = MEAN, zero_infinity: bool = False,
) -> Any:  # fmt: skip
    """Minus the log of the probability of each target.

    Args:
      log_probs: ``[time, batch, classes]``, or ``[time, classes]`` of one example.
      targets: labels, ``[batch, length]`` or those of all examples, one after another.
      longest: how many labels of a target are looked at: all, or one more than a path of this time can pass.

    Where lengths do not fit the arrays, losses are NaN.
    """
    single = log_probs.ndim == 2
    if single:
        log_probs = log_probs[:, None]
    frames, counts = (mnp.reshape(n, -1) for n in (input_lengths, target_lengths))
    labels = _padded(targets, counts, longest, log_probs.shape[1])
    loss = _losses(log_probs, labels, frames, mnp.minimum(counts, longest), blank, zero_infinity)
    fits = (frames >= 0) & (frames <= log_probs.shape[0]) & (counts >= 0)
    fits &= counts <= targets.shape[1] if targets.ndim == 2 else mnp.sum(counts) == targets.size
    loss = mnp.where(fits, loss, mnp.nan)
    if reduction == NONE:
        return loss[0] if single else loss
    if reduction == MEAN:
        return mnp.mean(loss / mnp.maximum(counts, 1).astype(loss.dtype))
    return mnp.sum(loss)


def _padded(targets: Any, counts: Any, longest: int, batch: int) -> Any:
    """The labels, ``[batch, longest]``; anything past the end of a target."""
    if targets.ndim == 2:
        return targets[:, :longest]
    if longest == 0:
        return mnp.zeros((batch, 0), targets.dtype)
    starts = mnp.cumsum(counts) - counts
    return mnp.take(targets, starts[:, None] + mnp.arange(longest), mode="clip")


# --- states -------------------------------------------------------------------------------------------------
def _states(labels: Any, counts: Any, blank: int) -> tuple[Any, Any, Any]:
    """Of the states ``[batch, 2 + 2 * longest]``: their labels, which are there, which may follow that before the last.

    The first stands before time begins and emits nothing; then blanks and labels alternate.
    """
    batch, longest = labels.shape
    s = mnp.arange(2 * longest + 2) - 1
    there = (s >= 0) & (s <= 2 * counts[:, None])
    blanks = mnp.full((batch, longest + 1, 1), blank, labels.dtype)
    after = mnp.concatenate([mnp.expand_dims(labels, 2), blanks[:, 1:]], 2).reshape(batch, -1)
    emitted = mnp.concatenate([blanks[:, 0], blanks[:, 0], after], 1)
    before = mnp.concatenate([blanks[:, 0], blanks[:, 0], emitted[:, :-2]], 1)
    skips = (s == 1) | ((s > 1) & (emitted != before))
    return mnp.where(there, emitted, 0), there, skips


def _losses(log_probs: Any, labels: Any, frames: Any, counts: Any, blank: int, zero_infinity: bool) -> Any:
    emitted, there, skips = _states(labels, counts, blank)
    scores = mnp.take_along_axis(log_probs, emitted[None], 2)
    scores = mnp.where(there, scores, -mnp.inf)
    running = mnp.arange(log_probs.shape[0])[:, None] < frames  # [time, batch]
    start = mnp.where(mnp.arange(emitted.shape[1]) == 0, 0, mnp.full(emitted.shape, -mnp.inf, log_probs.dtype))

    def step(alpha: Any, now: tuple[Any, Any]) -> tuple[Any, None]:
        score, runs = now
        skipped = mnp.where(skips, _later(alpha, 2), -mnp.inf)
        reached = _log_sum(alpha, _later(alpha, 1), skipped) + score
        return mnp.where(runs[:, None], reached, alpha), None

    alpha, _ = scan(step, start, (scores, running))
    ends = mnp.take_along_axis(alpha, 2 * counts[:, None] + mnp.arange(2), 1, mode="clip")
    loss = -_log_sum(ends[:, 0], ends[:, 1])
    if zero_infinity:
        running = running & (loss != mnp.inf)
        loss = mnp.where(loss == mnp.inf, 0, loss)
    return _of_logits(loss, log_probs, running)


def _later(alpha: Any, by: int) -> Any:
    return mnp.pad(alpha[:, :-by], ((0, 0), (by, 0)), constant_values=-mnp.inf)


def _log_sum(*terms: Any) -> Any:
    """The log of the sum of exponentials; of nothing but -inf -inf, with a derivative of 0."""
    top = terms[0]
    for term in terms[1:]:
        top = mnp.maximum(top, term)
    top = stop_gradient(mnp.where(top == -mnp.inf, 0, top))
    total = mnp.exp(terms[0] - top)
    for term in terms[1:]:
        total = total + mnp.exp(term - top)
    return mnp.where(total == 0, -mnp.inf, mnp.log(mnp.where(total == 0, 1, total)) + top)


# --- the gradient -------------------------------------------------------------------------------------------
@custom_jvp
def _of_logits(loss: Any, log_probs: Any, running: Any) -> Any:
    """``loss``, with a derivative that has the probabilities themselves added, as torch has it.

    Behind ``log_softmax`` that makes no difference: its derivative takes out what is added to all classes alike in
    proportion to their probabilities. The gradient of ``log_probs`` itself is that of the logits.
    """
    return loss


@_of_logits.defjvp
def _of_logits_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    loss, log_probs, running = primals
    moved, moved_probs, _ = tangents
    slope = mnp.where((loss == mnp.inf)[:, None], mnp.nan, mnp.exp(log_probs))  # no path: no direction
    slope = mnp.where(running[..., None], slope, 0)
    return loss, moved + mnp.sum(slope * moved_probs, (0, 2))
