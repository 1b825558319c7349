"""What ``jax.experimental`` has and is here: the modules, and what had its older home there."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from types import ModuleType

from meshwright.api.callbacks import io_callback
from meshwright.core.options import enable_x64
from meshwright.sharding import PartitionSpec

_SUBMODULES = ("checkify", "export", "maps", "mesh_utils", "multihost_utils", "pjit", "shard_alike", "shard_map")

__all__ = ["PartitionSpec", "disable_x64", "enable_x64", "io_callback"]


def disable_x64() -> AbstractContextManager[None]:
    """``meshwright.enable_x64(False)``, which is today's way."""
    return enable_x64(False)


def __getattr__(name: str) -> ModuleType:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_SUBMODULES)}")


def __dir__() -> list[str]:
    return [*globals(), *_SUBMODULES]
