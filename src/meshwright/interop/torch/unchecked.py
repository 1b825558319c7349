"""Looks at values while a module is exported: what is the same in every call is known, and torch's own looks, to check
arguments or to choose a quicker way to the same, are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributions import Distribution
from torch.nn.modules import transformer

from meshwright.interop.torch.overrides import known, overrides, unrecorded


@contextmanager
def values_not_asked_for() -> Iterator[None]:
    """Within, distributions are made of any parameters, as under ``torch.compile``, but for those that are told to
    validate theirs; masks of ``nn.Transformer`` are applied as they are, and not looked at for being causal."""
    validated, is_causal = Distribution._validate_args, transformer._detect_is_causal_mask
    Distribution.set_default_validate_args(False)
    transformer._detect_is_causal_mask = _as_told  # type: ignore[assignment]
    try:
        yield
    finally:
        Distribution.set_default_validate_args(validated)
        transformer._detect_is_causal_mask = is_causal


def _number(read: Callable[[torch.Tensor], Any]) -> None:
    @overrides(read)
    def number(self: torch.Tensor) -> Any:
        """The number that a tensor holds, if it is the same in every call."""
        value = known(self) if self.numel() == 1 else None
        if value is None:
            return read(self)
        with unrecorded():
            return read(value)


for _read in (torch.Tensor.item, torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__):
    _number(_read)


def _as_told(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True
