"""What the library offers, for programs that ask: ``__array_namespace_info__`` of the array API standard, 2024.12."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.config import config
from meshwright.numpy.scalar_types import isdtype
from meshwright.runtime import devices as runtime_devices
from meshwright.runtime.devices import Device

#: the dtypes of the standard; the narrow ones of ml_dtypes are beyond it
_STANDARD = (
    dtypes.bool_, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64, dtypes.uint8, dtypes.uint16, dtypes.uint32,
    dtypes.uint64, dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128,
)  # fmt: skip


class NamespaceInfo:
    """Answers of ``__array_namespace_info__()``; each method takes the arguments that the standard names."""

    def capabilities(self) -> dict[str, Any]:
        """What works when values are known: both kinds of data-dependent shapes, as many dimensions as wanted.

        >>> NamespaceInfo().capabilities()["boolean indexing"]
        True
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> Device:
        """The device of arrays that nobody placed."""
        return runtime_devices.default_device()

    def devices(self) -> list[Device]:
        """All devices."""
        return runtime_devices.devices()

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype]:
        """The dtypes of results where none is given, by kind.

        >>> NamespaceInfo().default_dtypes()["real floating"].name in ("float32", "float64")
        True
        """
        return {
            "real floating": dtypes.default_float(),
            "complex floating": dtypes.default_complex(),
            "integral": dtypes.default_int(),
            "indexing": dtypes.default_int(),
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, np.dtype]:
        """The standard's dtypes of a kind (of all, without one) by name; 64-bit ones with ``enable_x64`` alone.

        Args:
          kind: as for :func:`meshwright.numpy.isdtype`.

        >>> "int32" in NamespaceInfo().dtypes(kind="integral")
        True
        """
        available = [d for d in _STANDARD if config.enable_x64 or not dtypes.is_wide(d)]
        return {d.name: d for d in available if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> NamespaceInfo:
    """What this array library offers: devices, dtypes, capabilities.

    >>> __array_namespace_info__().capabilities()["data-dependent shapes"]
    True
    """
    return NamespaceInfo()
