"""Results of functions that may return their argument unchanged."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from meshwright.core import pytree
from meshwright.core.avals import Typed
from meshwright.runtime.values import as_result


def gives_arrays(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, the public ``name`` of ``lax``, with NumPy values and numbers in its results converted to arrays.
    Otherwise, a result could share memory with the caller's NumPy array and change with it."""

    @functools.wraps(function)
    def with_arrays(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        return out if isinstance(out, Typed) else pytree.map(as_result, out)

    with_arrays.__module__, with_arrays.__name__, with_arrays.__qualname__ = "meshwright.lax", name, name
    return with_arrays
