"""``lower`` and ``trace`` of the functions here, as if each were jitted with non-arrays as static arguments."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

from meshwright.api.jit import jit
from meshwright.api.stages import Lowered, Traced


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, type)


def trace(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Traced:
    """Trace ``function`` at its arguments, as ``jit`` does.

    Arrays (and ``ShapeDtypeStruct``) are traced, and, if there are none, positional numbers; other arguments are
    static: axes, shapes, dtypes, modes.
    """
    arrays = any(map(_is_array, (*args, *kwargs.values())))
    chosen = _is_array if arrays else lambda x: isinstance(x, (int, float, complex))
    at = [i for i, x in enumerate(args) if chosen(x)]
    named = {n: x for n, x in kwargs.items() if _is_array(x)}

    @functools.wraps(function)
    def on_arrays(*values: Any, **by_name: Any) -> Any:
        full = list(args)
        for i, value in zip(at, values):
            full[i] = value
        return function(*full, **{**kwargs, **by_name})

    del on_arrays.__wrapped__  # its signature differs from that of the function
    return jit(on_arrays).trace(*(args[i] for i in at), **named)


def lower(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Lowered:
    """:func:`trace`, and then ``lower``."""
    return trace(function, *args, **kwargs).lower()


def give_stages(namespace: Mapping[str, Any]) -> None:
    """Give all public functions of a module ``trace`` and ``lower`` methods."""
    for name, function in namespace.items():
        if isinstance(function, types.FunctionType) and not name.startswith("_") and not hasattr(function, "lower"):
            function.lower = functools.partial(lower, function)  # type: ignore[attr-defined]
            function.trace = functools.partial(trace, function)  # type: ignore[attr-defined]
