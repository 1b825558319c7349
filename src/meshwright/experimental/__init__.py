"""What ``jax.experimental`` has and is here: the modules, and what had its older home there."""

from __future__ import annotations

import importlib
from types import ModuleType

from meshwright.api.callbacks import io_callback
from meshwright.sharding import PartitionSpec

_SUBMODULES = ("checkify", "export", "maps", "mesh_utils", "multihost_utils", "pjit", "shard_alike", "shard_map")

__all__ = ["PartitionSpec", "io_callback"]


def __getattr__(name: str) -> ModuleType:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_SUBMODULES)}")


def __dir__() -> list[str]:
    return [*globals(), *_SUBMODULES]
