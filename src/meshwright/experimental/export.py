"""``jax.experimental.export``, whose functions take what is exported. Today's way: ``meshwright.export``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.api.export import Exported, deserialize, export

__all__ = ["Exported", "call", "call_exported", "deserialize", "export", "serialize"]


def serialize(exported: Exported, vjp_order: int = 0) -> bytearray:
    """Today: ``exported.serialize()``."""
    return exported.serialize(vjp_order)


def call(exported: Exported) -> Callable[..., Any]:
    """Today: ``exported.call``."""
    return exported.call


call_exported = call
