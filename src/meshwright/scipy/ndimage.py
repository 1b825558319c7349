"""Interpolation of images of any number of dimensions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.errors import ArgumentError, ShapeError
from meshwright.numpy.arithmetic import floor
from meshwright.numpy.creation import asarray
from meshwright.numpy.logic import where
from meshwright.numpy.promotion import promote_all
from meshwright.ops.elementwise.table import round_half_away

#: by mode: maps positions outside of [0, size) along an axis to positions inside
_INSIDE = {
    "constant": lambda i, n: i,
    "nearest": lambda i, n: i.clip(0, n - 1),
    "wrap": lambda i, n: i % n,
    "mirror": lambda i, n: abs((i + (n - 1)) % max(2 * n - 2, 1) - (n - 1)),
    "reflect": lambda i, n: where(i % (2 * n) < n, i % (2 * n), 2 * n - 1 - i % (2 * n)),
}


def _neighbours(x: Any, order: int) -> list[tuple[Any, Any]]:
    """The pixels that are combined for a coordinate, with their weights."""
    if order == 0:
        return [(round_half_away(x).astype("int32"), np.ones((), x.dtype))]
    low = floor(x)
    share = x - low
    first = low.astype("int32")
    return [(first, 1 - share), (first + 1, share)]


def map_coordinates(input: Any, coordinates: Sequence[Any], order: int, mode: str = "constant", cval: Any = 0.0) -> Any:
    """Interpolate an array at the given coordinates.

    Args:
      input: an array of n dimensions.
      coordinates: n arrays of the same shape, which is that of the result.
      order: 0 for the nearest element, 1 for linear interpolation.
      mode: the values outside: ``constant`` (``cval``), ``nearest``, ``wrap``, ``mirror`` or ``reflect``.
      cval: the value outside for ``constant``.

    Raises:
      ShapeError: there are not n coordinates.
      ArgumentError: another ``order`` or ``mode``.

    >>> map_coordinates(np.array([[1.0, 2.0], [3.0, 4.0]]), [np.array([0.5]), np.array([0.0])], 1).tolist()
    [2.0]
    """
    image = asarray(input)
    places = promote_all([asarray(c) for c in coordinates])
    if len(places) != image.ndim:
        raise ShapeError(f"map_coordinates: {len(places)} coordinates for an array of shape {image.shape}")
    if order not in (0, 1) or mode not in _INSIDE:
        raise ArgumentError(
            f"map_coordinates: order must be 0 or 1, mode one of {', '.join(_INSIDE)}, got {order!r} and {mode!r}"
        )
    places = [c if dtypes.is_float(c.dtype) else c.astype(dtypes.default_float()) for c in places]
    total: Any = 0
    for corner in itertools.product(*(_neighbours(c, order) for c in places)):
        weight, valid, index = 1.0, True, []
        for (number, share), size in zip(corner, image.shape):
            inside = _INSIDE[mode](number, size)
            valid = valid & (inside >= 0) & (inside < size)
            index.append(inside.clip(0, size - 1))
            weight = weight * share
        value = image[tuple(index)]
        total = total + weight * (where(valid, value, cval) if mode == "constant" else value)
    if dtypes.is_inexact(image.dtype):
        return total.astype(image.dtype)
    return round_half_away(total).astype(image.dtype)
