"""What people took from ``jax.interpreters``: the names for many devices, at the paths that they had."""

from __future__ import annotations

import importlib
from types import ModuleType

_SUBMODULES = ("pxla", "sharded_jit")

__all__: list[str] = []


def __getattr__(name: str) -> ModuleType:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_SUBMODULES)}. Ops have their rules as "
        "methods here, see docs/architecture.md"
    )


def __dir__() -> list[str]:
    return [*globals(), *_SUBMODULES]
