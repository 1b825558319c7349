"""Normalizes axis arguments, shape arguments and static integers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as index_of
from typing import Any

from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentNumberError, ArgumentTypeError, AxisError, SizeError, TracerError
from meshwright.ir.tracing import Tracer


def no_out(out: Any, name: str) -> None:
    """Refuse NumPy's ``out`` argument.

    Raises:
      ArgumentError: ``out`` is given.
    """
    if out is not None:
        raise ArgumentError(f"{name}: out= is not supported, arrays are immutable; use the result")


def static_int(x: Any, name: str, what: str) -> int:
    """A Python integer that must be known at trace time.

    Raises:
      ArgumentTypeError: not an integer. TracerError: a tracer.
    """
    try:
        return int(index_of(x))
    except TracerError as error:
        raise type(error)(f"{name}: {what} must be known while tracing: {error}") from None
    except TypeError:
        raise ArgumentTypeError(f"{name}: {what} must be an integer, got {x!r} of type {type(x).__name__}") from None


def normal_axis(axis: Any, ndim: int, name: str) -> int:
    """``axis`` as a number in ``range(ndim)``.

    Raises:
      AxisError: out of range.
    """
    axis = static_int(axis, name, "axis")
    if not -ndim <= axis < ndim:
        raise AxisError(f"{name}: axis {axis} is out of range for an array of {counted(ndim, 'dimension')}")
    return axis + ndim if axis < 0 else axis


def normal_axes(axis: Any, ndim: int, name: str) -> tuple[int, ...]:
    """Axes as a tuple; ``None`` means all of them.

    Raises:
      AxisError: an axis is out of range. ArgumentNumberError: an axis repeats.
    """
    if axis is None:
        return tuple(range(ndim))
    if not isinstance(axis, (tuple, list, range)) and getattr(axis, "ndim", 0) != 1:
        return (normal_axis(axis, ndim, name),)
    axes = tuple([normal_axis(a, ndim, name) for a in axis])
    if len(set(axes)) != len(axes):
        raise ArgumentNumberError(f"{name}: axis {tuple(axis)} names a dimension twice")
    return axes


def elements_of(shape: Any) -> Sequence[Any]:
    """The sizes in a shape argument: those that it has, or itself, if it is one size."""
    if isinstance(shape, (tuple, list)):
        return shape
    several = hasattr(type(shape), "__iter__") and not isinstance(shape, (str, Tracer))
    return tuple(shape) if several and getattr(shape, "ndim", 1) == 1 else (shape,)


def normal_shape(shape: Any, name: str) -> tuple[int, ...]:
    """A shape argument (an integer or several, in anything that can be iterated over) as a tuple.

    Raises:
      SizeError: a negative size. ArgumentTypeError: not integers.
    """
    elements = elements_of(shape)
    sizes = tuple([s if type(s) is int else static_int(s, name, "shape") for s in elements])
    if any(s < 0 for s in sizes):
        raise SizeError(f"{name}: sizes must not be negative, got shape {sizes}")
    return sizes


def split_names(axis: Any) -> tuple[tuple[Any, ...], tuple[str, ...]] | None:
    """The dimensions and names in an ``axis`` argument that names axes of ``xmap`` or ``vmap``; None without names.

    ``jax.numpy`` reductions accepted such names until 2024.
    """
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    names = tuple(a for a in given if isinstance(a, str))
    return (tuple(a for a in given if not isinstance(a, str)), names) if names else None
