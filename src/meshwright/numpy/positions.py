"""Positions in arrays: of triangles and diagonals, flat and by coordinates, and grids written as slices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.errors import ArgumentError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import normal_shape, static_int
from meshwright.numpy.creation import arange, asarray
from meshwright.numpy.joining import concatenate, stack
from meshwright.numpy.manipulation import expand_dims, reshape
from meshwright.numpy.promotion import as_positions, promote_all, promotes_freely
from meshwright.numpy.ranges import linspace, meshgrid
from meshwright.numpy.searching import nonzero


def _default(positions: Sequence[np.ndarray]) -> tuple[Any, ...]:
    return tuple(asarray(p.astype(dtypes.default_int())) for p in positions)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, Any]:
    """Rows and columns of the elements at and below diagonal ``k`` of an ``n`` by ``m`` matrix.

    >>> [p.tolist() for p in tril_indices(2)]
    [[0, 1, 1], [0, 0, 1]]
    """
    return _default(np.tril_indices(static_int(n, "tril_indices", "n"), k, m))  # type: ignore[return-value]


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, Any]:
    """Rows and columns of the elements at and above diagonal ``k`` of an ``n`` by ``m`` matrix.

    >>> [p.tolist() for p in triu_indices(2)]
    [[0, 0, 1], [0, 1, 1]]
    """
    return _default(np.triu_indices(static_int(n, "triu_indices", "n"), k, m))  # type: ignore[return-value]


def _matrix_shape(arr: Any, name: str) -> tuple[int, int]:
    shape = np.shape(arr)
    if len(shape) != 2:
        raise ShapeError(f"{name}: expected a matrix, got shape {shape}")
    return shape


def tril_indices_from(arr: Any, k: int = 0) -> tuple[Any, Any]:
    """:func:`tril_indices` for the shape of a matrix.

    >>> tril_indices_from(np.ones((2, 3)))[1].tolist()
    [0, 0, 1]
    """
    n, m = _matrix_shape(arr, "tril_indices_from")
    return tril_indices(n, k, m)


def triu_indices_from(arr: Any, k: int = 0) -> tuple[Any, Any]:
    """:func:`triu_indices` for the shape of a matrix.

    >>> triu_indices_from(np.ones((2, 3)))[1].tolist()
    [0, 1, 2, 1, 2]
    """
    n, m = _matrix_shape(arr, "triu_indices_from")
    return triu_indices(n, k, m)


def diag_indices(n: int, ndim: int = 2) -> tuple[Any, ...]:
    """The positions ``(0, 0, …), (1, 1, …)`` of the diagonal of an array of ``ndim`` dimensions of size ``n``.

    >>> [p.tolist() for p in diag_indices(2)]
    [[0, 1], [0, 1]]
    """
    return (arange(static_int(n, "diag_indices", "n")),) * static_int(ndim, "diag_indices", "ndim")


def diag_indices_from(arr: Any) -> tuple[Any, ...]:
    """:func:`diag_indices` for the shape of an array whose dimensions have equal sizes.

    >>> diag_indices_from(np.ones((2, 2)))[0].tolist()
    [0, 1]
    """
    shape = np.shape(arr)
    if len(shape) < 2 or len(set(shape)) > 1:
        raise ShapeError(f"diag_indices_from: expected two or more dimensions of one size, got shape {shape}")
    return diag_indices(shape[0], len(shape))


def mask_indices(n: int, mask_func: Callable[..., Any], k: Any = 0, *, size: int | None = None) -> tuple[Any, ...]:
    """The positions where ``mask_func(ones((n, n)), k)`` is not 0.

    >>> [p.tolist() for p in mask_indices(2, np.triu)]
    [[0, 0, 1], [0, 1, 1]]
    """
    return nonzero(mask_func(np.ones((n, n), np.int32), k), size=size)


@promotes_freely()
def unravel_index(indices: Any, shape: Any) -> tuple[Any, ...]:
    """The coordinates of flat positions in an array of ``shape``; out-of-range positions are clipped, as in JAX.

    >>> [p.item() for p in unravel_index(5, (2, 3))]
    [1, 2]
    """
    sizes = normal_shape(shape, "unravel_index")
    given, total = asarray(indices), math.prod(sizes)
    flat = as_positions(given)
    flat = flat + (flat < 0) * total
    flat = flat.clip(0, max(total - 1, 0))
    coordinates = []
    for size in reversed(sizes):
        coordinates.append(flat % max(size, 1))
        flat = flat // max(size, 1)
    kind = typeof(given).dtype
    if dtypes.is_integer(kind) and max(sizes, default=1) - 1 <= dtypes.max_value(kind):
        coordinates = [c.astype(kind) for c in coordinates]
    return tuple(reversed(coordinates))


def ravel_multi_index(
    multi_index: Any, dims: Any, mode: str = "raise", order: str = "C", *, dtype: Any = None
) -> Any:  # fmt: skip
    """The flat positions of coordinates in an array of shape ``dims``.

    Args:
      multi_index: one array of integers per dimension.
      mode: for out-of-range coordinates: "raise" (concrete ones only), "wrap" or "clip"; one mode, or one per
        dimension.
      order: "C" or "F".
      dtype: of the result.

    Raises:
      ArgumentError: coordinates that are out of range or no integers, or an unknown mode or order.

    >>> ravel_multi_index((1, 2), (2, 3)).item()
    5
    """
    sizes = normal_shape(dims, "ravel_multi_index")
    modes = (mode,) * len(sizes) if isinstance(mode, str) else tuple(mode)
    if len(multi_index) != len(sizes) or len(modes) != len(sizes) or not set(modes) <= {"raise", "wrap", "clip"}:
        raise ArgumentError(
            f"ravel_multi_index: {len(multi_index)} coordinates and modes {modes} for dims {sizes}; expected one each, "
            "modes of 'raise', 'wrap' or 'clip'"
        )
    if order not in ("C", "F"):
        raise ArgumentError(f"ravel_multi_index: order must be 'C' or 'F', got {order!r}")
    coordinates = [asarray(i) for i in multi_index]
    if any(dtypes.is_inexact(typeof(i).dtype) for i in coordinates):
        raise ArgumentError(
            f"ravel_multi_index: coordinates must be integers, got {', '.join(map(str, map(typeof, coordinates)))}"
        )
    places = [_inside(i, n, m) for i, n, m in zip(coordinates, sizes, modes)]
    pairs = list(zip(places, sizes)) if order == "C" else list(zip(places, sizes))[::-1]
    flat = pairs[0][0]
    for place, size in pairs[1:]:
        flat = flat * size + place
    return flat if dtype is None else flat.astype(dtypes.requested(dtype, "ravel_multi_index"))


def _inside(i: Any, size: int, mode: str) -> Any:
    if mode == "raise":
        value = np.asarray(i)  # raises the right error for a tracer
        if ((value < 0) | (value >= size)).any():
            raise ArgumentError(f"ravel_multi_index: a coordinate is outside of [0, {size}); mode='clip' or 'wrap'")
        return i
    return i % size if mode == "wrap" else i.clip(0, size - 1)


# --- grids --------------------------------------------------------------------------------------------------
def ix_(*args: Any) -> tuple[Any, ...]:
    """Vectors shaped to index the grid of all combinations; bools are replaced by their true positions.

    >>> [i.shape for i in ix_(np.array([0, 1]), np.array([2, 3, 4]))]
    [(2, 1), (1, 3)]
    """
    grids = []
    for d, arg in enumerate(args):
        x = asarray(arg)
        if typeof(x).ndim != 1:
            raise ShapeError(f"ix_: argument {d} must be a vector, got shape {typeof(x).shape}")
        if dtypes.is_bool(typeof(x).dtype):
            (x,) = nonzero(x)
        grids.append(reshape(x, [-1 if e == d else 1 for e in range(len(args))]))
    return tuple(grids)


def _range_of(s: slice, name: str) -> Any:
    """``start:stop:step`` as numbers; a complex step is the number of points, including both ends."""
    start = 0 if s.start is None else s.start
    if s.stop is None:
        raise ArgumentError(f"{name}: the slice {s} needs a stop")
    if isinstance(s.step, complex):
        return linspace(start, s.stop, int(abs(s.step)))
    return arange(start, s.stop, 1 if s.step is None else s.step)


class _Grid:
    """``grid[0:3, 0:1:5j]``: coordinates over slices, full or (``sparse``) broadcastable to the grid."""

    def __init__(self, name: str, sparse: bool) -> None:
        self.name = name
        self.sparse = sparse

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return _range_of(key, self.name)
        axes = promote_all([_range_of(s, self.name) for s in key])
        grids = meshgrid(*axes, indexing="ij", sparse=self.sparse)
        return list(grids) if self.sparse else stack(grids, 0)

    def __repr__(self) -> str:
        return f"meshwright.numpy.{self.name}"


mgrid = _Grid("mgrid", False)
ogrid = _Grid("ogrid", True)


class _Joiner:
    """``r_[0:3, 5, x]``: concatenates arrays, numbers and slices along an axis."""

    def __init__(self, name: str, axis: int, ndmin: int, place: int) -> None:
        self.name = name
        self.default = (axis, ndmin, place)

    def __getitem__(self, key: Any) -> Any:
        items = list(key) if isinstance(key, tuple) else [key]
        directive = items.pop(0) if items and isinstance(items[0], str) else ""
        axis, ndmin, place = self.default if directive in ("", "r", "c") else self._directive(directive)
        joined = concatenate(promote_all([self._part(item, ndmin, place) for item in items]), axis)
        if directive in ("", "c", "r") and typeof(joined).ndim == 1:  # as the row or the column of a matrix
            return joined if not directive else expand_dims(joined, 0 if directive == "r" else 1)
        return joined

    def _directive(self, text: str) -> tuple[int, ...]:
        """The axis to join along, the least number of dimensions and the place of given ones, where not the default."""
        numbers = text.split(",")
        if not all(n.strip().lstrip("-").isdigit() for n in numbers) or len(numbers) > 3:
            raise ArgumentError(
                f"{self.name}: expected a directive of one to three integers, or 'r' or 'c', got {text!r}"
            )
        return *map(int, numbers), *self.default[len(numbers) :]

    def _part(self, item: Any, ndmin: int, place: int) -> Any:
        x = _range_of(item, self.name) if isinstance(item, slice) else asarray(item)
        own = typeof(x).ndim
        missing = max(ndmin, 1) - own
        if missing <= 0:
            return x
        if own == 0:
            return expand_dims(x, tuple(range(missing)))
        first = place if place >= 0 else missing + place + 1  # the first of the array's own dimensions
        return expand_dims(x, tuple(d for d in range(missing + own) if not first <= d < first + own))

    def __repr__(self) -> str:
        return f"meshwright.numpy.{self.name}"


r_ = _Joiner("r_", 0, 1, -1)
c_ = _Joiner("c_", -1, 2, 0)
