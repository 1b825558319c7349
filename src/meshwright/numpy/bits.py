"""Reinterpreting the bits of arrays as another dtype: NumPy's ``view``, but without shared memory.

One bitcast converts between numbers of any two widths and adds or removes a dimension. Bools and complex numbers, which
it does not take, are converted to bytes and to their parts first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.errors import ShapeError
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.bitcast import bitcast
from meshwright.ops.elementwise.table import convert
from meshwright.ops.shape.rearrange import expand_dims, reshape
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim


def bits_as(x: Any, dtype: np.dtype) -> Any:
    """The bits of ``x`` as ``dtype``; if the widths differ, the last dimension grows or shrinks.

    Raises:
      ShapeError: a 0-d array with another width, or a last dimension that is not a multiple.

    >>> bits_as(np.array([1.0], np.float32), np.dtype("uint16")).tolist()
    [0, 16256]
    """
    own = typeof(x).dtype
    if own == dtype:
        return x
    before, after = dtypes.bit_width(own), dtypes.bit_width(dtype)
    shape = typeof(x).shape
    if before != after and (not shape or shape[-1] * before % after):
        raise ShapeError(
            f"view: an array of {typeof(x)} cannot be read as {dtype}: its last dimension must hold a whole number of "
            f"elements of {after} bits"
        )
    return _joined(_cast(_apart(x), dtypes.real_of(_stored(dtype))), dtype)


def _stored(dtype: np.dtype) -> np.dtype:
    """The dtype as which bits are read before they become ``dtype``."""
    return dtypes.uint8 if dtypes.is_bool(dtype) else dtype


def _apart(x: Any) -> Any:
    """``x`` as numbers that can be bitcast: bools as bytes, the parts of complex numbers next to each other."""
    dtype = typeof(x).dtype
    if dtypes.is_bool(dtype):
        return convert(x, dtypes.uint8)
    if not dtypes.is_complex(dtype):
        return x
    shape = typeof(x).shape
    parts = [expand_dims(p, (len(shape),)) for p in (ops.real(x), ops.imag(x))]
    both = concatenate(parts, len(shape))
    return reshape(both, (*shape[:-1], shape[-1] * 2) if shape else (2,))


def _cast(x: Any, dtype: np.dtype) -> Any:
    before, after = dtypes.bit_width(typeof(x).dtype), dtypes.bit_width(dtype)
    shape = typeof(x).shape
    if before == after:
        return bitcast(x, dtype)
    if before > after:
        return reshape(bitcast(x, dtype), (*shape[:-1], shape[-1] * (before // after)))
    times = after // before
    return bitcast(reshape(x, (*shape[:-1], shape[-1] // times, times)), dtype)


def _joined(x: Any, dtype: np.dtype) -> Any:
    if dtypes.is_bool(dtype):
        return convert(x, dtypes.bool_)
    if not dtypes.is_complex(dtype):
        return x
    shape = typeof(x).shape
    pairs = reshape(x, (*shape[:-1], shape[-1] // 2, 2))
    parts = [slice_in_dim(pairs, i, i + 1, 1, len(shape)) for i in (0, 1)]
    return reshape(ops.complex_(*parts), (*shape[:-1], shape[-1] // 2))
