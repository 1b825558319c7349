"""Static sizes and axes: converts NumPy and array integers to Python integers."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from meshwright.errors import ArgumentError, ArgumentTypeError


def static_index(value: Any, where: str, what: str = "a size or axis") -> int:
    """``value`` (an integer, or an integer array without dimensions) as a Python ``int``.

    Raises:
      ArgumentTypeError: not an integer; a tracer raises its own error.
    """
    try:
        return int(operator.index(value))
    except TypeError as error:
        if hasattr(value, "aval") and not isinstance(error, ArgumentTypeError):
            raise  # from a tracer, whose message says where it comes from
        raise ArgumentTypeError(f"{where}: expected an integer as {what}, got {value!r}") from None


def static_indices(values: Iterable[Any], where: str, what: str = "a size or axis") -> tuple[int, ...]:
    """A sequence or vector of integers as a tuple of Python ``int``.

    Raises:
      ArgumentTypeError: not a sequence, or an element is not an integer.
    """
    if not hasattr(values, "__iter__") and not hasattr(values, "__getitem__"):
        raise ArgumentTypeError(f"{where}: expected a sequence of integers, got {values!r}")
    return tuple([v if type(v) is int else static_index(v, where, what) for v in values])


def static_shape(shape: Iterable[Any] | Any, where: str) -> tuple[int, ...]:
    """A shape, or the size of a single dimension, as a tuple.

    Raises:
      ArgumentTypeError: neither.
    """
    single = hasattr(shape, "__index__") and getattr(shape, "shape", ()) == ()
    return static_indices((shape,) if single else shape, where)


def only_default(where: str, why: str, **given: Any) -> None:
    """Refuse arguments of ``jax`` for other hardware or cases, unless they are None or False.

    Raises:
      ArgumentError: another value; ``why`` says what to do.
    """
    for name, value in given.items():
        if value is not None and value is not False:
            raise ArgumentError(f"{where}: {name}={value!r} is not supported: {why}")
