"""``meshwright.lax``: the ops and collectives, without the array library's broadcasting and promotion."""

from __future__ import annotations

__all__ = [name for name in dir() if not name.startswith("_") and name != "annotations"]
