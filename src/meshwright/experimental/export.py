"""``jax.experimental.export``, with functions of exported programs. Now: ``meshwright.export``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.api.export import Exported, deserialize, export

__all__ = ["Exported", "call", "call_exported", "deserialize", "export", "serialize"]


def serialize(exported: Exported, vjp_order: int = 0) -> bytearray:
    """Now: ``exported.serialize()``."""
    return exported.serialize(vjp_order)


def call(exported: Exported) -> Callable[..., Any]:
    """Now: ``exported.call``."""
    return exported.call


call_exported = call
