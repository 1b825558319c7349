"""Runs each draw outside of a trace as one compiled program.

XLA contracts multiplications and additions within a program. So a draw only has the same bits as in ``jax.random``,
where draws are jitted too, if it is one program. A repeated draw is then also one call, instead of one per op. Inside a
trace, the ops of a draw are recorded individually.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from meshwright.api.jit import jit
from meshwright.core import dtypes
from meshwright.errors import KeyReuseError, MeshwrightError
from meshwright.ir.state import STATE
from meshwright.ir.tracing import EVAL
from meshwright.runtime.array import Array

F = TypeVar("F", bound=Callable[..., Any])
#: the maximum number of draws, by function and static arguments, whose programs are kept
_MOST = 1024


def drawn(function: F) -> F:
    """Decorator of a function whose first parameter is a key: outside of traces, it is evaluated as one program.

    Parameters annotated ``Any``, except ``dtype``, are arrays or numbers; the others (shapes, modes, axes) are static.
    Integers for parameters annotated ``int | Any`` are static too: they are numbers of elements instead of an array.

    Calls with invalid arguments are evaluated op by op, so that errors show the given arguments and not tracers.
    """
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    numbers = {p.name for p in parameters if p.annotation == "Any"} - {"dtype"}
    elements = {p.name for p in parameters if p.annotation == "int | Any"}

    @functools.wraps(function)
    def draw(*args: Any, **kwargs: Any) -> Any:
        if STATE.trace is not EVAL:
            return function(*args, **kwargs)
        given = dict(zip(names, args)) | kwargs
        arrays = {
            n: x
            for n, x in given.items()
            if x is not None and (n in numbers or (n in elements and not isinstance(x, (int, np.integer))))
        }
        fixed = tuple((n, *_fixed(x)) for n, x in given.items() if n not in arrays)
        if len(given) == len(args) + len(kwargs) and all(map(_is_plain, arrays.values())):
            try:
                return _program(function, tuple(arrays), fixed)(*arrays.values())
            except KeyReuseError:
                raise
            except (MeshwrightError, TypeError):
                pass
        return function(*args, **kwargs)

    return draw  # type: ignore[return-value]


@functools.lru_cache(_MOST)
def _program(function: Callable[..., Any], names: Sequence[str], fixed: Sequence[tuple[str, Any, type]]) -> Any:
    """The program for arrays with these names and the static arguments ``fixed``."""
    static = {name: value for name, value, _ in fixed}

    @functools.wraps(function)
    def call(*arrays: Any) -> Any:
        return function(**dict(zip(names, arrays)), **static)

    del call.__wrapped__  # it has another signature
    return jit(call)


def _fixed(x: Any) -> tuple[Any, type]:
    """A static argument, hashable if possible, and its type: ``unroll=True`` is not ``unroll=1``."""
    return (tuple(x) if isinstance(x, list) or (isinstance(x, np.ndarray) and x.ndim) else x), type(x)


def _is_plain(x: Any) -> bool:
    """Whether ``x`` is an array, or consists of numbers that fit a program's argument, which would wrap integers."""
    if isinstance(x, Array):
        return not x.is_deleted()
    if not isinstance(x, (np.ndarray, np.generic, int, float)):
        return False
    values = np.asarray(x)
    kept = dtypes.canonical(values.dtype)
    if values.dtype.kind not in "iu" or kept == values.dtype or not values.size:
        return values.dtype.kind != "O"  # as of Python's integers beyond 64 bits
    limits = np.iinfo(kept)
    return bool(limits.min <= values.min() and values.max() <= limits.max)
