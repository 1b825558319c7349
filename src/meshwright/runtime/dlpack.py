"""Arrays that share the memory of other libraries' arrays, through DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.errors import DLPackError
from meshwright.runtime.array import Array, default_sharding, from_numpy
from meshwright.runtime.parts import spread_of
from meshwright.runtime.pjrt import dlpack
from meshwright.runtime.pjrt.buffers import is_row_major


def from_dlpack(exporter: Any, copy: bool = False) -> Array:
    """An array of an object that supports DLPack, of any dtype of XLA, sharing its memory if possible.

    The memory is shared if it is row-major, aligned as XLA requires, and of a dtype that needs no narrowing. Dtypes
    that NumPy lacks (bfloat16, 8-bit floats) do not pass through NumPy.

    Raises:
      DLPackError: the memory is on an unsupported device, or has gaps between its elements.
    """
    try:
        host = np.from_dlpack(exporter) if dlpack.is_host_memory(exporter) else None
    except (BufferError, RuntimeError, TypeError, ValueError):
        host = None
    if host is not None:
        return from_numpy(host, copy=copy)
    array = of_xlas_memory(exporter)
    return array.__deepcopy__({}) if copy else array


def of_xlas_memory(exporter: Any) -> Array:
    """An array that shares the memory of another XLA array (such as JAX's), or of one with a dtype that NumPy lacks.

    Raises:
      DLPackError: the memory is on an unsupported device, or is not row-major.
    """
    try:
        buffer, shape, dtype = dlpack.buffer_from_dlpack(exporter, spread_of(default_sharding()).reals[0])
    except DLPackError:
        raise
    except Exception as error:
        raise DLPackError(
            f"from_dlpack: cannot take the memory of a {type(exporter).__name__} ({error}); make it contiguous, in "
            "main memory and without a gradient first (x.detach().cpu().contiguous())"
        ) from None
    array = Array(ShapedArray(shape, dtype), buffer, default_sharding())
    if not is_row_major(buffer, len(shape)):
        raise DLPackError(
            f"from_dlpack: a {type(exporter).__name__} of dtype {dtype} and shape {array.shape} is not in row-major "
            "order; make it contiguous first"
        )
    return array
