"""``repeat``, with static and with traced repeat counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ConcretizationTypeError, DTypeError, ShapeError
from meshwright.ir.tracing import Tracer, typeof
from meshwright.numpy.axes import normal_axis, static_int
from meshwright.numpy.creation import asarray
from meshwright.numpy.indexing import take
from meshwright.numpy.manipulation import broadcast_to, ravel, take_static
from meshwright.numpy.promotion import known_positions, scalar_like
from meshwright.numpy.searching import searchsorted
from meshwright.ops.elementwise.table import convert, min_
from meshwright.ops.reduce.cumulative import cumsum
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota
from meshwright.ops.shape.rearrange import reshape


def repeat(a: Any, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None) -> Any:
    """Repeat each element ``repeats`` times along ``axis`` (of the flattened array without one).

    Args:
      repeats: an integer, or one per element.
      total_repeat_length: the size of the result along ``axis``: excess repeats are dropped, missing ones are filled
        with the last element of ``a``. With it, ``repeats`` may be traced.

    Raises:
      ConcretizationTypeError: traced ``repeats`` without ``total_repeat_length``. DTypeError: they are not integers.

    >>> repeat(np.array([1, 2]), 2).tolist()
    [1, 1, 2, 2]
    >>> repeat(np.array([1, 2]), np.array([2, 1]), total_repeat_length=4).tolist()
    [1, 1, 2, 2]
    """
    x = asarray(a)
    if axis is None or (axis in (0, -1) and not typeof(x).shape):  # as in NumPy, a scalar is an array of one element
        x, axis = ravel(x), 0
    d = normal_axis(axis, typeof(x).ndim, "repeat")
    total = None if total_repeat_length is None else static_int(total_repeat_length, "repeat", "total_repeat_length")
    known = repeats.concrete() if isinstance(repeats, Tracer) else repeats
    if known is None:
        return take(x, _traced_sources(repeats, typeof(x).shape[d], total), d, mode="clip")
    if dtypes.is_inexact(np.asarray(known).dtype):
        raise DTypeError(f"repeat: repeats must be integers, got {known}; convert them with int()")
    counts = known_positions(np.asarray(known))
    if counts.size and counts.min() < 0:
        raise ArgumentError(f"repeat: repeats must not be negative, got {counts.min()}")
    if counts.size == 1 and total is None:
        return _all_alike(x, int(counts.reshape(())[()]), d)
    return take_static(x, _sources(counts, typeof(x).shape[d], total), d)


def _all_alike(x: Any, each: int, d: int) -> Any:
    sizes = typeof(x).shape
    wide = broadcast_in_dim(x, (*sizes[: d + 1], each, *sizes[d + 1 :]), [i + (i > d) for i in range(len(sizes))])
    return reshape(wide, (*sizes[:d], sizes[d] * each, *sizes[d + 1 :]))


def _sources(counts: np.ndarray, n: int, total: int | None) -> np.ndarray:
    """The source element of each row of the result."""
    source = np.repeat(np.arange(n), counts)
    if total is None or not n:
        return source
    return np.pad(source[:total], (0, max(total - len(source), 0)), constant_values=n - 1)


def _traced_sources(counts: Any, n: int, total: int | None) -> Any:
    """As :func:`_sources`: counts the elements whose repeats all come before the row."""
    aval = typeof(counts)
    if total is None:
        raise ConcretizationTypeError(
            f"repeat: the size of the result depends on repeats, which is traced ({aval}); pass total_repeat_length="
        )
    if dtypes.is_inexact(aval.dtype):
        raise DTypeError(f"repeat: repeats must be integers, got {aval}; convert them with .astype(int)")
    if aval.ndim > 1 or aval.size not in (1, n):
        raise ShapeError(f"repeat: repeats must be one integer or {counted(n, 'integer')}, got {aval}")
    if not n:
        return np.zeros(0, np.int32)
    ends = cumsum(broadcast_to(convert(counts, dtypes.default_int()), (n,)))
    row = iota(typeof(ends).dtype, (total,), 0)
    source = searchsorted(ends, row, side="right")
    return min_(source, scalar_like(n - 1, source))
