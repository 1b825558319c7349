"""Sizes and axes, which are Python integers once a program is traced: NumPy's and arrays' are turned into them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from meshwright.errors import ArgumentError, ArgumentTypeError


def static_index(value: Any, where: str, what: str = "a size or axis") -> int:
    """``value`` (an integer, or an integer array of no dimensions) as a Python ``int``.

    Raises:
      ArgumentTypeError: it is none; a traced value raises its own error.
    """
    try:
        return int(operator.index(value))
    except TypeError as error:
        if hasattr(value, "aval") and not isinstance(error, ArgumentTypeError):
            raise  # a tracer, which says where it comes from
        raise ArgumentTypeError(f"{where}: expected an integer as {what}, got {value!r}") from None


def static_indices(values: Iterable[Any], where: str, what: str = "a size or axis") -> tuple[int, ...]:
    """A sequence of integers, or a vector of them, as a tuple of Python ``int``.

    Raises:
      ArgumentTypeError: no sequence, or an element is no integer.
    """
    if not hasattr(values, "__iter__") and not hasattr(values, "__getitem__"):
        raise ArgumentTypeError(f"{where}: expected a sequence of integers, got {values!r}")
    return tuple([v if type(v) is int else static_index(v, where, what) for v in values])


def static_shape(shape: Iterable[Any] | Any, where: str) -> tuple[int, ...]:
    """A shape, or the size of its only dimension, as a tuple.

    Raises:
      ArgumentTypeError: something else.
    """
    single = hasattr(shape, "__index__") and getattr(shape, "shape", ()) == ()
    return static_indices((shape,) if single else shape, where)


def only_default(where: str, why: str, **given: Any) -> None:
    """Refuse arguments that ``jax`` has for hardware or cases that are not ours: None and False say nothing.

    Raises:
      ArgumentError: one that says something; ``why`` says what to do.
    """
    for name, value in given.items():
        if value is not None and value is not False:
            raise ArgumentError(f"{where}: {name}={value!r} is not supported: {why}")
