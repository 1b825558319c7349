"""Checks that were made when the module was exported: nothing is left of them to compute."""

from __future__ import annotations

from typing import Any

from meshwright.interop.torch.registry import register


@register(
    "aten._assert_tensor_metadata", "aten._assert_async", "aten._assert_scalar", "aten.sym_constrain_range",
    "aten.sym_constrain_range_for_size",
)  # fmt: skip
def checked_before(*args: Any, **kwargs: Any) -> None:
    return None
