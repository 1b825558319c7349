"""``Array``: a value on devices. On a virtual mesh it is one buffer in global row-major order plus its sharding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from meshwright.core.avals import ShapedArray
from meshwright.core.dtypes import as_dtype, canonical
from meshwright.errors import ArgumentTypeError, DeletedArrayError
from meshwright.ir.tracing import ArrayMethods
from meshwright.runtime.devices import Device, default_device
from meshwright.runtime.pjrt import client as pjrt
from meshwright.sharding import Sharding, SingleDeviceSharding

#: dtypes that NumPy's DLPack speaks; others travel as unsigned integers of their width
_DLPACK_KINDS = "biufc"


@cache
def default_sharding() -> SingleDeviceSharding:
    """Where arrays live that nobody placed."""
    return SingleDeviceSharding(default_device())


@dataclass(frozen=True)
class Shard:
    """The part of an array on one device; ``index`` is where it stands in the whole."""

    device: Device
    index: tuple[slice, ...]
    data: Array
    replica_id: int

    def __repr__(self) -> str:
        index = ", ".join(f"{s.start or 0}:{s.stop}" for s in self.index)
        return f"Shard(device={self.device!r}, index=({index}), shape={self.data.shape})"


class Array(ArrayMethods):
    """An immutable n-dimensional array. Made by functions of ``meshwright.numpy``, ``device_put``, and results of ops.

    ``committed`` arrays were placed by the user; others follow the arrays they are used with.
    """

    __slots__ = ("__weakref__", "_buffer", "_numpy", "aval", "committed", "sharding")
    aval: ShapedArray

    def __init__(self, aval: ShapedArray, buffer: Any, sharding: Sharding, committed: bool = False) -> None:
        self.aval = aval
        self._buffer = buffer
        self.sharding = sharding
        self.committed = committed
        self._numpy: np.ndarray | None = None

    # --- buffers --------------------------------------------------------------------------------------------
    @property
    def buffer(self) -> Any:
        """The PJRT buffer.

        Raises:
          DeletedArrayError: the array was donated or deleted.
        """
        if self._buffer is None:
            raise DeletedArrayError(
                f"array of type {self.aval} was deleted: it was donated to a jitted function (donate_argnums) or "
                ".delete() was called; use the function's result, or do not donate it"
            )
        return self._buffer

    def delete(self) -> None:
        """Free the buffer; later use of the array is an error."""
        self._buffer = None
        self._numpy = None

    def is_deleted(self) -> bool:
        return self._buffer is None

    def block_until_ready(self) -> Array:
        """Wait until the value has been computed."""
        pjrt.wait(self.buffer)
        return self

    def is_ready(self) -> bool:
        return self.buffer.is_ready()

    # --- placement ------------------------------------------------------------------------------------------
    @property
    def device(self) -> Any:
        """The array's device, or its sharding if it has several."""
        return self.sharding.device if isinstance(self.sharding, SingleDeviceSharding) else self.sharding

    def devices(self) -> set[Any]:
        return set(self.sharding.device_set)

    @property
    def is_fully_replicated(self) -> bool:
        return self.sharding.is_fully_replicated

    @property
    def is_fully_addressable(self) -> bool:
        return True

    @property
    def addressable_shards(self) -> list[Shard]:
        """One shard a device of this process, with its part of the data (a view, without padding)."""
        whole = np.asarray(self)
        seen: dict[Any, int] = {}
        shards = []
        for device, index in self.sharding.devices_indices_map(self.shape).items():
            key = tuple((s.start, s.stop) for s in index)
            replica = seen[key] = seen.get(key, -1) + 1
            shards.append(Shard(device, index, from_numpy(whole[index]), replica))
        return shards

    global_shards = addressable_shards

    # --- values ---------------------------------------------------------------------------------------------
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        value = self._host()
        if dtype is not None and np.dtype(dtype) != value.dtype:
            return value.astype(dtype)
        return value.copy() if copy else value

    def _host(self) -> np.ndarray:
        """The value as a read-only NumPy array that shares the buffer's memory."""
        if self._numpy is None or self._buffer is None:
            buffer = self.buffer
            pjrt.wait(buffer)
            carrier = _carrier(self.dtype)
            if carrier is None:
                self._numpy = np.from_dlpack(pjrt.Exporter(buffer))
            else:
                value = np.from_dlpack(pjrt.Exporter(CONVERSIONS.to_carrier(self, carrier).buffer))
                self._numpy = value.view(self.dtype) if carrier.kind == "u" else value.astype(self.dtype)
        return self._numpy

    def __dlpack__(self, **kwargs: Any) -> Any:
        return np.asarray(self).__dlpack__(**kwargs) if _carrier(self.dtype) else pjrt.dlpack_capsule(self.buffer)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def _scalar(self, what: str) -> Any:
        if self.size != 1:
            raise ArgumentTypeError(f"{what} needs an array of one element, this one has shape {self.shape}")
        return np.asarray(self).reshape(())[()]

    def __bool__(self) -> bool:
        return bool(self._scalar("bool()"))

    def __int__(self) -> int:
        return int(self._scalar("int()"))

    def __float__(self) -> float:
        return float(self._scalar("float()"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex()"))

    def __index__(self) -> int:
        if self.ndim or self.dtype.kind not in "iu":
            raise ArgumentTypeError(f"only integer scalar arrays can be an index, got {self.aval}")
        return int(self._scalar("an index"))

    def item(self, *args: int) -> Any:
        return np.asarray(self).item(*args)

    def tolist(self) -> Any:
        return np.asarray(self).tolist()

    def __hash__(self) -> int:
        raise ArgumentTypeError("arrays are not hashable; use arr.tobytes(), or id(arr) for identity")

    def tobytes(self) -> bytes:
        return np.asarray(self).tobytes()

    def __format__(self, spec: str) -> str:
        return format(self._scalar("format").item(), spec) if self.ndim == 0 and spec else str(self)

    def __repr__(self) -> str:
        if self._buffer is None:
            return f"Array({self.aval}, deleted)"
        text = np.array2string(np.asarray(self), separator=", ", prefix="Array(")
        weak = ", weak_type=True" if self.weak_type else ""
        return f"Array({text}, dtype={self.dtype.name}{weak})"

    def __str__(self) -> str:
        return str(np.asarray(self))

    def __iter__(self) -> Iterator[Any]:
        if self.ndim == 0:
            raise ArgumentTypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))  # type: ignore[index]

    def __reduce__(self) -> Any:
        return from_numpy, (np.asarray(self),)

    def __copy__(self) -> Array:
        return self

    def __deepcopy__(self, memo: Any) -> Array:
        return self


def _carrier(dtype: np.dtype) -> np.dtype | None:
    """The dtype that carries one NumPy's DLPack cannot: same-width unsigned, or int8 for the narrower ones."""
    if dtype.kind in _DLPACK_KINDS and dtype.isbuiltin == 1:
        return None
    if dtype.name in ("int4", "uint4", "int2", "uint2", "float4_e2m1fn"):
        return np.dtype(np.int8) if "int" in dtype.name else np.dtype(np.float32)
    return np.dtype(f"uint{8 * dtype.itemsize}")


class _Conversions:
    """Conversions that need compiled programs; ``runtime.eager`` supplies them."""

    to_carrier: Any
    from_carrier: Any


CONVERSIONS = _Conversions()


def from_numpy(
    value: Any, dtype: np.dtype | None = None, sharding: Sharding | None = None, copy: bool = True,
    weak_type: bool = False,
) -> Array:  # fmt: skip
    """An array of a NumPy value. Without ``copy`` it may share the value's memory, which must then not be written to."""
    value = np.asarray(value)
    target = canonical(as_dtype(value.dtype if dtype is None else dtype))
    if value.dtype != target:
        value, copy = value.astype(target), False
    aval = ShapedArray(value.shape, target, weak_type)
    sharding_ = sharding or default_sharding()
    carrier = _carrier(target)
    if carrier is not None:
        carried = value.view(carrier) if carrier.kind == "u" else value.astype(carrier)
        return CONVERSIONS.from_carrier(from_numpy(carried), aval, sharding_, sharding is not None)
    if copy or not (value.flags.c_contiguous and value.flags.writeable):
        value = np.array(value, order="C", copy=True)
    return Array(aval, pjrt.buffer_from_dlpack(value), sharding_, sharding is not None)
