"""Every op, with all its rules in one place; :func:`register_all` imports those that nothing has needed yet.

``segment_sum``, ``segment_prod``, ``segment_max`` and ``segment_min`` are found here, too, where JAX has them.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages
from typing import Any

_SEGMENTS = ("segment_max", "segment_min", "segment_prod", "segment_sum")


def __getattr__(name: str) -> Any:
    if name in _SEGMENTS:  # made of the array library, which is made of ops
        return getattr(import_module("meshwright.numpy.segments"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register_all() -> None:
    """Import every module of this package: each registers its ops and how they are read."""
    for module in walk_packages(__path__, f"{__name__}."):
        import_module(module.name)
