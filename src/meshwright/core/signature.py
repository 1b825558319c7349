"""What the user calls the arguments of a function, for messages."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from types import CellType, FunctionType
from typing import Any

from meshwright.core import pytree
from meshwright.core.source import is_ours


def parameters_of(fun: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """The parameters of a function; None where Python does not know them (some builtins)."""
    try:
        return list(inspect.signature(fun).parameters.values())
    except (ValueError, TypeError):
        return None


def positions(fun: Callable[..., Any], names: Sequence[str]) -> tuple[int, ...]:
    """Which positional arguments of ``fun`` have these names; those that none has are left out."""
    order = [p.name for p in parameters_of(fun) or [] if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return tuple(i for i, name in enumerate(order) if name in names)


def described(fun: Any) -> str:
    """A function's name, and where it is written if that is the user's program: ``loss (train.py:12)``."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    fun = inspect.unwrap(fun)
    name = getattr(fun, "__name__", type(fun).__name__)
    code = getattr(fun, "__code__", None)
    if code is None or is_ours(code):
        return name
    return f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


def leaf_names(fun: Callable[..., Any], args: Sequence[Any], kwargs: Any, skipped: Iterable[int] = ()) -> list[str]:
    """What to call each leaf of the arguments in messages: ``x``, ``params['w']``, ``args[2]``.

    ``args`` are the positional arguments without those whose numbers are ``skipped``.
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
    """For messages about ``fun`` that come later: a function of its name and parameters that keeps no values alive."""
    fun = inspect.unwrap(fun)
    if type(fun) is not FunctionType or not (fun.__closure__ or fun.__defaults__ or fun.__kwdefaults__):
        return fun
    cells = tuple(CellType() for _ in fun.__closure__ or ())
    shell = FunctionType(fun.__code__, fun.__globals__, fun.__name__, (None,) * len(fun.__defaults__ or ()), cells)
    shell.__kwdefaults__ = dict.fromkeys(fun.__kwdefaults__ or ())
    shell.__qualname__, shell.__module__ = fun.__qualname__, fun.__module__
    return shell
