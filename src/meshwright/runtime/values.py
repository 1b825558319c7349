"""Values as arrays, and as the buffers that programs take."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core.avals import Typed
from meshwright.ir.tracing import FOREIGN
from meshwright.runtime.array import CONVERSIONS, Array, from_numpy
from meshwright.runtime.transfers import check_transfer, level_of
from meshwright.sharding import Sharding


def as_array(x: Any) -> Array:
    """``x`` as an array; Python numbers are weakly typed."""
    if type(x) is Array:
        return x
    if isinstance(x, (int, float, complex)) and not isinstance(x, (bool, np.generic)):
        return from_numpy(np.asarray(x), weak_type=True)
    return FOREIGN[type(x)](x) if type(x) in FOREIGN else from_numpy(x)


def as_result(x: Any) -> Any:
    """``x`` as a function's result: an array, never a NumPy value or a Python number."""
    return x if isinstance(x, Typed) else as_array(x)


def buffer_of(x: Any) -> Any:
    """The buffer of an array; NumPy values and numbers are copied to the device."""
    return as_array(x).buffer


def buffer_at(x: Any, sharding: Sharding) -> Any:
    """The buffer of ``x`` resharded to ``sharding``.

    Raises:
      TransferError: the transfer guard refuses a move between devices.
    """
    if type(x) in FOREIGN:
        x = as_array(x)
    if type(x) is not Array:
        x = as_array(x) if isinstance(x, (int, float, complex)) else from_numpy(x, sharding=sharding)
    elif x.sharding != sharding:
        check_move(x, sharding, False)
    return x.buffer if x.sharding == sharding else CONVERSIONS.value.resharded(x, sharding)


def check_move(x: Array, sharding: Sharding, explicit: bool) -> None:
    """Apply the transfer guard if ``x`` moves to other devices; moves on the same devices are done by programs.

    Uncommitted scalars are exempt, since Python numbers are converted to such arrays.

    Raises:
      TransferError: the guard refuses the move.
    """
    number = x.ndim == 0 and not x.committed
    if level_of("device_to_device") != "allow" and not number and x.sharding.device_set != sharding.device_set:
        check_transfer("device_to_device", explicit, x.aval)
