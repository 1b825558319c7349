"""``jax.scipy``'s functions: what SciPy adds to NumPy, for arrays and tracers. Submodules are imported when used."""

import importlib as _importlib
from types import ModuleType as _ModuleType

_SUBMODULES = (
    "cluster", "integrate", "interpolate", "linalg", "ndimage", "optimize", "signal", "sparse", "special", "stats",
)  # fmt: skip


def __getattr__(name: str) -> _ModuleType:
    if name in _SUBMODULES:
        return _importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_SUBMODULES]
