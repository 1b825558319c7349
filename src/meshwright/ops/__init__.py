"""Every op, with all its rules in one place; importing this package registers them all.

``segment_sum``, ``segment_prod``, ``segment_max`` and ``segment_min`` are found here, too, where JAX has them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_SEGMENTS = ("segment_max", "segment_min", "segment_prod", "segment_sum")


def __getattr__(name: str) -> Any:
    if name in _SEGMENTS:  # made of the array library, which is made of ops
        return getattr(import_module("meshwright.numpy.segments"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
