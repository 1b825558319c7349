"""Positions in indices: counted from the start, in a type that holds all of a dimension."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.tracing import typeof
from meshwright.numpy.promotion import as_positions, known_positions, scalar_like
from meshwright.ops.elementwise.table import add, convert, lt, max_, min_, select


def from_start(index: Any, size: int, wrap: bool = True) -> Any:
    """Signed positions counted from the start; with ``wrap``, negative ones count from the end.

    Out-of-range positions stay so: numbers that the type cannot represent become the nearest that it can.
    """
    dtype = index_dtype(size)
    if isinstance(index, (np.ndarray, np.generic)):
        bounds = np.iinfo(dtype)
        fixed = known_positions(np.asarray(index))
        fixed = fixed + np.where(fixed < 0, size, 0) if wrap else fixed
        return np.clip(fixed, bounds.min, bounds.max).astype(dtype)
    index = as_positions(index)
    if dtypes.is_unsigned(typeof(index).dtype):
        return convert(min_(index, scalar_like(size, index)), dtype)
    if not wrap:
        return index
    return select(lt(index, scalar_like(0, index)), add(index, scalar_like(size, index)), index)


def index_dtype(size: int) -> np.dtype:
    """A dtype that can represent all positions in a dimension."""
    return dtypes.int32 if size < 2**31 else dtypes.int64


def as_start(index: Any, size: int, wrap: bool = True) -> Any:
    """A scalar position as int32, where windows start; one that int32 cannot represent becomes the nearest that is
    inside."""
    start = from_start(index, size, wrap)
    if typeof(start).dtype == dtypes.int32:
        return start
    inside = min_(max_(start, scalar_like(0, start)), scalar_like(max(size - 1, 0), start))
    return convert(inside, dtypes.int32)
