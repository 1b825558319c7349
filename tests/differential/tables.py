"""All tables of calls, and the functions that they are of."""

from __future__ import annotations

import importlib
from typing import Any

import fft_table
import initializer_table
import lax_table
import library_table
import linalg_table
import numpy_table
import random_table
from kinds import Kind

for _part in ("linalg", "special", "stats", "signal"):
    importlib.import_module(f"jax.scipy.{_part}")
    importlib.import_module(f"meshwright.scipy.{_part}")

#: by the name of a module, which functions it has; each has ``TABLE``, ``SYNONYMS`` and ``ELSEWHERE``
MODULES: dict[str, Any] = {
    "numpy": numpy_table,
    "numpy.fft": fft_table,
    "numpy.linalg": linalg_table.numpy_linalg,
    "lax": lax_table,
    "lax.linalg": linalg_table.lax_linalg,
    "nn.initializers": initializer_table,
    "random": random_table,
}
TABLES: dict[str, Kind] = {
    **{f"{module}.{n}": k for module, table in MODULES.items() for n, k in table.TABLE.items()},
    **library_table.TABLE,
}


def function_of(package: Any, name: str) -> Any:
    for part in name.split("."):
        package = getattr(package, part)
    return package
