"""Constants of programs. Some have no values that this process can read."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core.avals import Typed
from meshwright.ir.tracing import Tracer


def known_values(constant: Any) -> np.ndarray | None:
    """The values of a program's constant as a NumPy array.

    None if they are not available: for a tracer, a type without values, or an array partly held by other processes.
    """
    if isinstance(constant, Tracer):
        return None
    ways = ("is_fully_addressable", "is_fully_replicated")
    is_here = not isinstance(constant, Typed) or any(getattr(constant, way, False) for way in ways)
    values = np.asarray(constant) if is_here else None
    return None if values is None or values.dtype == np.object_ else values  # a type is an object to NumPy
