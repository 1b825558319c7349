"""Losses of sequences, whose export torch does not know: one op of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from meshwright.errors import ArgumentError
from meshwright.interop.torch.derivatives import connected
from meshwright.interop.torch.overrides import known, overrides, unrecorded

_LIBRARY = torch.library.Library("meshwright", "FRAGMENT")
_LIBRARY.define(
    "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, SymInt longest, "
    "int blank, int reduction, bool zero_infinity) -> Tensor"
)


@torch.library.register_fake("meshwright::ctc_loss", lib=_LIBRARY)
def _types(log_probs: torch.Tensor, *args: Any) -> torch.Tensor:
    return log_probs.new_empty(log_probs.shape[1:-1] if args[5] == 0 else ())


connected("meshwright::ctc_loss", _LIBRARY)


@overrides(torch.nn.functional.ctc_loss)
def named_ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: str = "mean", zero_infinity: bool = False,
) -> torch.Tensor:  # fmt: skip
    number = torch.nn._reduction.get_enum(reduction)
    return ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, number, zero_infinity)


@overrides(torch.ctc_loss)
def ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: int = 1, zero_infinity: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Torch's function. Lengths that are known now are checked now; those that are not and do not fit give NaN."""
    if log_probs.dtype not in (torch.float32, torch.float64):
        raise ArgumentError(f"ctc_loss: expected log_probs of 32 or 64 bits, as torch does, got {log_probs.dtype}")
    steps, batch, classes = log_probs.shape if log_probs.ndim == 3 else (log_probs.shape[0], 1, log_probs.shape[1])
    if not 0 <= blank < classes:
        raise ArgumentError(f"ctc_loss: blank must be in the label range [0, {classes}), got {blank}")
    longest, counts = targets.shape[-1], _numbers(target_lengths)
    _check("input_lengths", _numbers(input_lengths), batch, steps)
    _check("target_lengths", counts, batch, longest)
    if counts is None:
        longest = longest if targets.ndim == 2 else torch.sym_min(longest, steps + 1)
    elif targets.ndim == 1 and sum(counts) != longest:
        raise ArgumentError(f"ctc_loss: target_lengths {counts} are of {sum(counts)} targets, but {longest} are given")
    else:
        longest = max(counts)
    lengths = [n if isinstance(n, torch.Tensor) else torch.tensor(n) for n in (input_lengths, target_lengths)]
    return torch.ops.meshwright.ctc_loss(log_probs, targets.long(), *lengths, longest, blank, reduction, zero_infinity)  # type: ignore[no-any-return]


def _numbers(lengths: Any) -> list[int] | None:
    if not isinstance(lengths, torch.Tensor):
        return list(lengths)
    if lengths.is_floating_point():
        raise ArgumentError(f"ctc_loss: expected lengths of an integer type, got {lengths.dtype}")
    values = known(lengths)
    if values is None:
        return None
    with unrecorded():
        return values.reshape(-1).tolist()  # type: ignore[no-any-return]


def _check(name: str, lengths: Sequence[int] | None, batch: int, most: int) -> None:
    if lengths is None:
        return
    if len(lengths) != batch:
        raise ArgumentError(f"ctc_loss: expected {name} of {batch} sequences, got {len(lengths)}")
    if not all(0 <= n <= most for n in lengths):
        raise ArgumentError(f"ctc_loss: expected {name} between 0 and {most}, got {lengths}")
