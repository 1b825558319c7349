"""Decorator for the elementwise functions of this package: operands are promoted, and evaluated as one program."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from meshwright.ir.tracing import typeof
from meshwright.numpy.compiled import compiled
from meshwright.numpy.promotion import operands
from meshwright.ops.elementwise.table import convert

_ARGUMENTS = """Args:
  {names}: arrays or numbers whose shapes broadcast together; integers become floats.

Raises:
  ShapeError, DTypeError, ArgumentTypeError: shapes do not broadcast, dtypes do not promote, or no arrays."""


def _least(default: Any) -> Any:
    """A default argument as a number of the lowest kind, so that it does not affect the promotion of dtypes."""
    return int(default) if isinstance(default, float) and default.is_integer() else default


def as_weak(y: Any, *args: Any) -> Any:
    """``y``, weakly typed if all arguments are, which constants in its formula are not.

    >>> y = convert(3.0, np.dtype("float32"), False)
    >>> as_weak(y, 1.0, 2.0).weak_type, as_weak(y, 1.0, y).weak_type
    (True, False)
    """
    return convert(y, typeof(y).dtype, all(typeof(x).weak_type for x in args))


def elementwise(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: make ``f``, which takes float arrays of one dtype, a function of arrays and numbers of any real dtype.

    >>> elementwise(lambda x, y: x / y)(1, 2).item()
    0.5
    """
    program = compiled(f)
    signature = inspect.signature(f)
    defaults = {p.name: _least(p.default) for p in signature.parameters.values() if p.default is not p.empty}

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs or defaults:
            bound = signature.bind(*args, **kwargs)
            args = tuple(bound.arguments.get(name, defaults.get(name)) for name in signature.parameters)
        return program(*operands(f.__name__, args, to_inexact=True))

    if f.__doc__ is not None:
        what, mark, example = inspect.cleandoc(f.__doc__).partition(">>>")
        arguments = _ARGUMENTS.format(names=", ".join(signature.parameters))
        call.__doc__ = f"{what.rstrip()}\n\n{arguments}\n\n{mark}{example}\n"
    return call
