"""Names of callables of any kind, whose ``__name__`` may be missing or no text."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

#: the attributes that functions take from what they wrap, and the types that Python lets them have
_KINDS = {"__name__": str, "__qualname__": str, "__annotations__": dict, "__type_params__": tuple}


def name_of(fun: Any) -> str:
    """A function's name, for messages and jaxprs; the name of its class if it has none."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    name = getattr(fun, "__name__", None)
    return name if isinstance(name, str) else type(fun).__name__


def wraps(fun: Any) -> Callable[[Any], Any]:
    """``functools.wraps(fun)`` for callables of any kind: attributes that a function cannot have are not copied.

    >>> wraps(functools.partial(min, 1))(lambda: None).__name__
    '<lambda>'
    """
    names = [n for n in functools.WRAPPER_ASSIGNMENTS if isinstance(getattr(fun, n, None), _KINDS.get(n, object))]
    return functools.wraps(fun, assigned=names)
