"""The parameters of distributions (numbers or arrays), in the dtype and shape of a draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.errors import ArgumentError, DrawnTypeError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import normal_shape
from meshwright.numpy.creation import asarray
from meshwright.numpy.manipulation import broadcast_to
from meshwright.numpy.promotion import aval_of, broadcast_shapes, converted

Shape = Sequence[int]


def check_mode(mode: str | None, name: str) -> bool:
    """Whether ``mode`` requests twice the resolution near 0 (``"high"``).

    Raises:
      ArgumentError: it is neither ``"low"`` (or None) nor ``"high"``.
    """
    if mode not in (None, "low", "high"):
        raise ArgumentError(f"random.{name}: mode must be 'low' or 'high', got {mode!r}")
    return mode == "high"


def float_dtype(dtype: Any, name: str) -> np.dtype:
    """The dtype of a draw, by default the default float dtype.

    Raises:
      DrawnTypeError: it is not a float dtype.
    """
    target = dtypes.default_float() if dtype is None else dtypes.requested(dtype, f"random.{name}")
    if not dtypes.is_float(target):
        raise DrawnTypeError(f"random.{name}: dtype must be a float type, got {target}")
    return target


def draw_shape(name: str, shape: Shape | None, *parameters: Any) -> tuple[int, ...]:
    """``shape``, or by default the shape that the parameters broadcast to.

    Raises:
      ShapeError: parameters do not broadcast to ``shape``.
    """
    given = [aval_of(p, f"random.{name}", i + 1).shape for i, p in enumerate(parameters)]
    joint = broadcast_shapes(*given, name=f"random.{name}") if given else ()
    if shape is None:
        return joint
    sizes = normal_shape(shape, f"random.{name}")
    if len(joint) > len(sizes) or any(s not in (1, d) for s, d in zip(joint[::-1], sizes[::-1])):
        raise ShapeError(
            f"random.{name}: parameters of shapes {', '.join(map(str, given))} do not broadcast to shape={sizes}; "
            f"shape must end with {joint} (put the number of draws in front of it)"
        )
    return sizes


def parameter(x: Any, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
    """A parameter in the dtype and shape of the draw."""
    x = converted(asarray(x), dtype)
    return x if typeof(x).shape == shape else broadcast_to(x, shape)
