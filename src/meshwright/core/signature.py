"""Users' names of function arguments, for messages."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from types import CellType, FunctionType
from typing import Any

from meshwright.core import pytree
from meshwright.core.naming import name_of
from meshwright.core.source import is_ours


def parameters_of(fun: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """The parameters of a function; None if they are unknown (some builtins)."""
    try:
        return list(inspect.signature(fun).parameters.values())
    except (ValueError, TypeError):
        return None


def positions(fun: Callable[..., Any], names: Sequence[str]) -> tuple[int, ...]:
    """The positions of the arguments of ``fun`` with these names; unknown names are ignored."""
    order = [p.name for p in parameters_of(fun) or [] if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return tuple(i for i, name in enumerate(order) if name in names)


def described(fun: Any) -> str:
    """A function's name, and its location if it is in the user's program: ``loss (train.py:12)``."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    fun = inspect.unwrap(fun)
    name = name_of(fun)
    code = getattr(fun, "__code__", None)
    if code is None or is_ours(code):
        return name
    return f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


def leaf_names(fun: Callable[..., Any], args: Sequence[Any], kwargs: Any, skipped: Iterable[int] = ()) -> list[str]:
    """Names for each leaf of the arguments in messages: ``x``, ``params['w']``, ``args[2]``.

    ``args`` are the positional arguments without those numbered ``skipped``.
    """
    parameters = parameters_of(fun) or []
    order = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    left_out = set(skipped)
    numbers = [i for i in range(len(args) + len(left_out)) if i not in left_out]
    names: list[str] = []
    for number, arg in zip(numbers, args):
        root = order[number] if number < len(order) else f"args[{number}]"
        names += [root + path for path in pytree.paths(arg)]
    for key in sorted(kwargs):
        names += [key + path for path in pytree.paths(kwargs[key])]
    return names


def without_closure(fun: Any) -> Any:
    """A function with the name and parameters of ``fun`` that keeps no values alive, for later messages."""
    fun = inspect.unwrap(fun)
    if type(fun) is not FunctionType or not (fun.__closure__ or fun.__defaults__ or fun.__kwdefaults__):
        return fun
    cells = tuple(CellType() for _ in fun.__closure__ or ())
    shell = FunctionType(fun.__code__, fun.__globals__, fun.__name__, (None,) * len(fun.__defaults__ or ()), cells)
    shell.__kwdefaults__ = dict.fromkeys(fun.__kwdefaults__ or ())
    shell.__qualname__, shell.__module__ = fun.__qualname__, fun.__module__
    return shell
