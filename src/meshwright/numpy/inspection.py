"""Introspection of the library: ``__array_namespace_info__`` of the array API standard, 2024.12."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.config import config
from meshwright.numpy.scalar_types import isdtype
from meshwright.runtime import devices as runtime_devices
from meshwright.runtime.devices import Device

#: the dtypes of the standard, without the narrow ones of ml_dtypes
_STANDARD = (
    dtypes.bool_, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64, dtypes.uint8, dtypes.uint16, dtypes.uint32,
    dtypes.uint64, dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128,
)  # fmt: skip


class NamespaceInfo:
    """The result of ``__array_namespace_info__()``; each method takes the arguments that the standard specifies."""

    def capabilities(self) -> dict[str, Any]:
        """The capabilities for concrete values: data-dependent shapes of both kinds, and any number of dimensions.

        >>> NamespaceInfo().capabilities()["boolean indexing"]
        True
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> Device:
        """The device of arrays without explicit placement."""
        return runtime_devices.default_device()

    def devices(self) -> list[Device]:
        """All devices."""
        return runtime_devices.devices()

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype]:
        """The default dtypes, by kind.

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
        """The standard's dtypes of a kind (default: all) by name; 64-bit ones only with ``enable_x64``.

        Args:
          kind: as for :func:`meshwright.numpy.isdtype`.

        >>> "int32" in NamespaceInfo().dtypes(kind="integral")
        True
        """
        available = [d for d in _STANDARD if config.enable_x64 or not dtypes.is_wide(d)]
        return {d.name: d for d in available if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> NamespaceInfo:
    """The devices, dtypes and capabilities of this array library.

    >>> __array_namespace_info__().capabilities()["data-dependent shapes"]
    True
    """
    return NamespaceInfo()
