"""Checks of plain arguments of public functions (numbers, lists, instances), with uniform errors."""

from __future__ import annotations

import numbers
import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentNumberError, ArgumentTypeError, MeshwrightError


def refused(what: str, expected: str, value: object) -> ArgumentTypeError:
    """The error for a value of a wrong type: ``what`` names function and argument, ``expected`` the accepted values."""
    return ArgumentTypeError(f"{what}: expected {expected}, got {value!r} of type {type(value).__name__}")


def as_integer(what: str, value: Any, least: int = 0) -> int:
    """``value`` as an ``int``, including NumPy's integers.

    Raises:
      ArgumentTypeError: not an integer. ArgumentError: it is below ``least``.
    """
    try:
        number = operator.index(value)
    except MeshwrightError:  # from a tracer, whose error is more specific
        raise
    except TypeError:
        raise refused(what, "an integer", value) from None
    if number < least:
        raise ArgumentError(f"{what}: expected an integer from {least} on, got {number}")
    return number


def as_number(what: str, value: Any) -> float:
    """``value`` as a nonnegative ``float``.

    Raises:
      ArgumentTypeError: not a real number. ArgumentError: it is negative or NaN.
    """
    if not isinstance(value, numbers.Real):
        raise refused(what, "a number", value)
    if not float(value) >= 0:
        raise ArgumentError(f"{what}: expected a number that is not negative, got {value}")
    return float(value)


def as_path(what: str, value: Any) -> Path:
    """``value`` as a path.

    Raises:
      ArgumentTypeError: neither a string nor a path. ArgumentError: not a valid file name.
    """
    try:
        path = Path(value)
    except TypeError:
        raise refused(what, "a path", value) from None
    if "\0" in str(path):
        raise ArgumentError(f"{what}: expected a path, got {str(path)!r}, which has a zero byte; take it out")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ArgumentError(
            f"{what}: expected a path, got {str(path)!r}, which has a character that no name can have; take it out"
        ) from None
    return path


def as_numbers(what: str, value: Any) -> tuple[int, ...]:
    """One or several argument numbers as a tuple.

    Raises:
      ArgumentTypeError: not ints.
    """
    numbers = (value,) if isinstance(value, int | str) or not isinstance(value, Iterable) else tuple(value)
    if not all(isinstance(n, int) for n in numbers):
        raise ArgumentTypeError(f"{what} must be an int or a sequence of ints, got {value!r}")
    return numbers


def from_front(what: str, numbers: Iterable[int], count: int, fun: str) -> tuple[int, ...]:
    """Nonnegative numbers for arguments in a call of ``fun`` with ``count`` positional ones; negative ones count from
    the end.

    Raises:
      ArgumentNumberError: out of range.
    """
    given = tuple(numbers)
    for i in given:
        if not -count <= i < count:
            arguments = counted(count, "positional argument")
            few = f"numbers from {-count} to {count - 1}, of those" if count else "one that is passed by position"
            shown = given[0] if len(given) == 1 else given
            raise ArgumentNumberError(
                f"{what}={shown} names argument {i}, but {fun} was called with {arguments}; expected {few}"
            )
    return tuple(i % count for i in given)


def as_tuple(what: str, expected: str, values: Any) -> tuple[Any, ...]:
    """The elements of an iterable; a string is a single element.

    Raises:
      ArgumentTypeError: not iterable.
    """
    if not isinstance(values, Iterable):
        raise refused(what, expected, values)
    return (values,) if isinstance(values, str) else tuple(values)


def as_integers(what: str, values: Any) -> tuple[int, ...]:
    """The elements of a sequence of integers of any size.

    Raises:
      ArgumentTypeError: not a sequence, or an element is not an integer.
    """
    elements = as_tuple(what, "a sequence of integers", values)
    if not all(isinstance(e, numbers.Integral) for e in elements):
        raise refused(what, "a sequence of integers", values)
    return tuple(map(int, elements))
