"""Interpolation on grids."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core.pytree_classes import register_pytree_node_class
from meshwright.errors import ArgumentError, ShapeError
from meshwright.numpy.creation import asarray
from meshwright.numpy.joining import stack
from meshwright.numpy.logic import where
from meshwright.numpy.manipulation import broadcast_arrays
from meshwright.numpy.searching import searchsorted


@register_pytree_node_class
class RegularGridInterpolator:
    """An interpolator of values on a rectangular grid.

    Args:
      points: n vectors of ascending coordinates, of sizes m1, ..., mn.
      values: shape (m1, ..., mn, ...).
      method: ``linear`` or ``nearest``.
      bounds_error: must be False, since the values of traced coordinates are unknown.
      fill_value: the value outside of the grid; None to extrapolate.

    Raises:
      ArgumentError: another ``method``, or ``bounds_error`` is True.
      ShapeError: the sizes do not fit each other.

    >>> f = RegularGridInterpolator((np.array([0.0, 1.0]), np.array([0.0, 2.0])), np.array([[0.0, 2.0], [1.0, 3.0]]))
    >>> f(np.array([[0.5, 1.0], [9.0, 0.0]])).tolist()
    [1.5, nan]
    """

    def __init__(
        self, points: Sequence[Any], values: Any, method: str = "linear", bounds_error: bool = False,
        fill_value: Any = np.nan,
    ) -> None:  # fmt: skip
        if method not in ("linear", "nearest") or bounds_error:
            raise ArgumentError(
                "RegularGridInterpolator: method must be linear or nearest, and bounds_error False, "
                f"got {method!r} and {bounds_error!r}"
            )
        self.grid = tuple(asarray(p) for p in points)
        self.values = asarray(values)
        sizes = tuple(p.shape for p in self.grid)
        if sizes != tuple((n,) for n in self.values.shape[: len(sizes)]):
            raise ShapeError(
                f"RegularGridInterpolator: points of shapes {sizes} do not fit values of shape {self.values.shape}"
            )
        self.method, self.fill_value = method, fill_value

    def tree_flatten(self) -> tuple[Any, Any]:
        """The arrays, as children of a pytree."""
        return (self.grid, self.values, self.fill_value), self.method

    @classmethod
    def tree_unflatten(cls, aux: str, children: Any) -> RegularGridInterpolator:
        """The inverse of :meth:`tree_flatten`."""
        interpolator = object.__new__(cls)
        interpolator.grid, interpolator.values, interpolator.fill_value = children
        interpolator.method = aux
        return interpolator

    def __call__(self, xi: Any, method: str | None = None) -> Any:
        """Interpolate at points of shape (..., n), or at n arrays of coordinates that broadcast together."""
        method = self.method if method is None else method
        n = len(self.grid)
        places = stack(broadcast_arrays(*xi), -1) if isinstance(xi, (tuple, list)) else asarray(xi)
        if not places.shape or places.shape[-1] != n:
            raise ShapeError(f"RegularGridInterpolator: points have shape {places.shape}, expected (..., {n})")
        neighbours: list[Any] = []
        outside: Any = False
        for d, axis in enumerate(self.grid):
            x = places[..., d]
            low = (searchsorted(axis, x, side="right") - 1).clip(0, axis.shape[0] - 2)
            share = (x - axis[low]) / (axis[low + 1] - axis[low])
            if method == "nearest":
                neighbours.append([(where(share <= 0.5, low, low + 1), np.float32(1))])
            else:
                neighbours.append([(low, 1 - share), (low + 1, share)])
            outside = outside | (x < axis[0]) | (x > axis[-1])
        rest = (1,) * (self.values.ndim - n)
        total: Any = 0
        for corner in itertools.product(*neighbours):
            weight: Any = 1.0
            for _, share in corner:
                weight = weight * share
            value = self.values[tuple(index for index, _ in corner)]
            total = total + (weight.reshape(*np.shape(weight), *rest) if np.ndim(weight) else weight) * value
        if self.fill_value is None:
            return total
        return where(outside.reshape(*outside.shape, *rest), self.fill_value, total)
