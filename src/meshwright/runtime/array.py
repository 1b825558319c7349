"""``Array``: a value on devices. On a virtual mesh, it is one buffer in global row-major order and a sharding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache
from math import prod
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.dtypes import NUMPY_DTYPES, as_dtype, canonical
from meshwright.core.key_types import is_key
from meshwright.core.records import dataclass
from meshwright.core.slots import Slot
from meshwright.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeletedArrayError,
    DLPackError,
    ShapeError,
    ShardingError,
)
from meshwright.ir.not_arrays import refuse_masked
from meshwright.ir.tracing import ArrayMethods, Tracer
from meshwright.runtime.devices import Device, default_device
from meshwright.runtime.older_names import OlderNames
from meshwright.runtime.parts import Parts, assembled, cut, is_whole_here, real_of, shard_in_part, spread_of, tiles_of
from meshwright.runtime.pjrt import buffers, dlpack
from meshwright.runtime.transfers import check_transfer, level_of
from meshwright.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding, typed_by
from meshwright.sharding.format import Format, row_major


def default_sharding() -> SingleDeviceSharding:
    """The sharding of uncommitted arrays."""
    return _sharding_on(default_device())


_sharding_on = cache(SingleDeviceSharding)


@dataclass(frozen=True)
class Shard:
    """The shard of an array on one device; ``index`` is its position in the global array."""

    device: Device
    index: tuple[slice, ...]
    data: Array
    replica_id: int

    def __repr__(self) -> str:
        where = f"device={self.device!r}, index={self.index}, replica_id={self.replica_id}"
        return f"Shard({where}, data={np.asarray(self.data)})"


def index_text(entry: Any) -> str:
    """An entry of an index, formatted as users write it."""
    if not isinstance(entry, slice):
        return str(entry)
    return ":" if entry.stop is None else f"{entry.start or 0}:{entry.stop}"


class _ArrayType(type):
    """Makes tracers instances of :class:`Array`, so that ``isinstance`` checks work in traced functions."""

    def __instancecheck__(cls, x: Any) -> bool:
        return type.__instancecheck__(cls, x) or isinstance(x, Tracer)


class Array(OlderNames, ArrayMethods, metaclass=_ArrayType):
    """An immutable n-dimensional array. Created by functions of ``meshwright.numpy``, ``device_put``, and ops.

    ``committed`` arrays were placed by the user; others move to the devices of the arrays they are used with. Tracers
    are instances of this class too.
    """

    __slots__ = ("__weakref__", "_buffer", "_numpy", "_shards", "aval", "committed", "sharding")
    aval: ShapedArray

    def __init__(self, aval: ShapedArray, buffer: Any, sharding: Sharding, committed: bool = False) -> None:
        says = sharding.is_explicit or aval.explicit is not None or sharding.host_kind is not aval.memory
        self.aval = typed_by(aval, sharding) if says else aval
        self._buffer = buffer
        self.sharding = sharding
        self.committed = committed
        self._numpy: np.ndarray | None = None
        self._shards: list[Shard] | None = None

    # --- buffers --------------------------------------------------------------------------------------------
    @property
    def buffer(self) -> Any:
        """The PJRT buffer, or :class:`Parts` for an array that is not on a single real device of this process.

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
        """Free the buffer. Later use of the array is an error."""
        self._buffer = None
        self._numpy = self._shards = None

    def is_deleted(self) -> bool:
        """Whether the array was deleted or donated."""
        return self._buffer is None or self._buffer.is_deleted()

    def block_until_ready(self) -> Array:
        """Wait until the value has been computed."""
        buffers.wait(self.buffer)
        return self

    def is_ready(self) -> bool:
        return self.buffer.is_ready()

    # --- placement ------------------------------------------------------------------------------------------
    @property
    def device(self) -> Any:
        """The array's device, or its sharding if it has several."""
        return self.sharding.device if isinstance(self.sharding, SingleDeviceSharding) else self.sharding

    @property
    def format(self) -> Format:
        """The memory layout (row-major) and sharding of the array."""
        return Format(row_major(self.ndim), self.sharding)

    def devices(self) -> set[Any]:
        return set(self.sharding.device_set)

    def platform(self) -> str:
        """The ``platform`` of the devices, such as ``"cpu"``."""
        return str(next(iter(self.sharding.device_set)).platform)

    def on_device_size_in_bytes(self) -> int:
        """The bytes of all shards on all devices, including replicas and padding."""
        return prod(self.sharding.shard_shape(self.shape)) * self.itemsize * self.sharding.num_devices

    def unsafe_buffer_pointer(self) -> int:
        """The address of the array's buffer, which is valid only while the array is alive.

        Raises:
          ArgumentError: the array is on several devices, so each shard has its own buffer.
        """
        if self.sharding.num_devices > 1:
            raise ArgumentError(
                f"unsafe_buffer_pointer: the array is on {self.sharding.num_devices} devices; ask its parts, "
                "x.addressable_data(i)"
            )
        return int(self.buffer.unsafe_buffer_pointer())

    @property
    def is_fully_replicated(self) -> bool:
        return self.sharding.is_fully_replicated

    @property
    def is_fully_addressable(self) -> bool:
        return self.sharding.is_fully_addressable

    @property
    def addressable_shards(self) -> list[Shard]:
        """One unpadded shard per device of this process: shared memory on real devices, copies on virtual ones."""
        if self._shards is None or self._buffer is None:
            self._shards = self._cut_into_shards()
        return list(self._shards)

    def _cut_into_shards(self) -> list[Shard]:
        if self.aval.explicit is not None and self.aval.explicit.unreduced:
            raise ShardingError(
                f"the array of type {self.aval} is a sum that is still to be made, and which terms devices hold is "
                "not said: make it first with reshard"
            )
        if is_key(self.dtype):
            return [dataclasses.replace(s, data=s.data.keys(self.dtype)) for s in self.words().addressable_shards]
        seen: dict[Any, int] = {}
        shards, here = [], self.sharding.addressable_devices
        for position, (device, index) in enumerate(self.sharding.devices_indices_map(self.shape).items()):
            key = tuple((s.start, s.stop) if isinstance(s, slice) else s for s in index)
            replica = seen[key] = seen.get(key, -1) + 1
            if device in here:
                shards.append(Shard(device, index, self._shard(position, device), replica))
        return shards

    def _shard(self, position: int, device: Device) -> Array:
        sharding = SingleDeviceSharding(device)
        if not isinstance(self.buffer, Parts):
            whole = self._host()[self.sharding.devices_indices_map(self.shape)[device]]
            return from_numpy(whole, sharding=sharding, weak_type=self.weak_type, transfer="none")
        part = self._part(real_of(device))
        where = shard_in_part(self.sharding, self.shape, position)
        if all(s == slice(0, n) for s, n in zip(where, part.shape)):
            return Array(part.aval.update(weak_type=self.weak_type), part.buffer, sharding, committed=True)
        return from_numpy(np.asarray(part)[where], sharding=sharding, weak_type=self.weak_type, transfer="none")

    def _part(self, real: int) -> Array:
        """The part on one of this process's real devices, as an array on that device."""
        spread = spread_of(self.sharding)
        device = next(d for d in self.sharding.devices if real_of(d) == real)
        buffer = self.buffer.buffers[spread.here.index(real)]
        return Array(ShapedArray(buffer.aval.shape, self.dtype), buffer, SingleDeviceSharding(device), committed=True)

    @property
    def global_shards(self) -> list[Shard]:
        """One shard per device of all processes; those of other processes have no data."""
        mine = {s.device: s for s in self.addressable_shards}
        indices = self.sharding.devices_indices_map(self.shape)
        return [mine.get(d) or Shard(d, index, None, -1) for d, index in indices.items()]  # type: ignore[arg-type]

    def addressable_data(self, index: int) -> Array:
        """The shard on this process's device number ``index``, in the order of the sharding."""
        return self.addressable_shards[index].data

    def copy_to_host_async(self) -> None:
        """No copy is needed, since NumPy shares the memory; only checks that the array was not deleted."""
        _ = self.buffer

    def words(self) -> Array:
        """The words of random keys, sharing their buffer."""
        words: Any = self.dtype
        aval = ShapedArray((*self.shape, words.words), np.dtype(np.uint32))
        return Array(aval, self.buffer, self.sharding, self.committed)

    def keys(self, dtype: Any) -> Array:
        """The random keys made of these words, the inverse of :meth:`words`.

        They share the words' buffer, except that words split between devices are gathered: no device has part of a key.
        """
        rank, sharding = self.ndim - 1, self.sharding.to_named()
        if isinstance(sharding, NamedSharding):
            sharding = sharding.update(spec=PartitionSpec(*sharding.spec[:rank]))
        buffer = self.buffer
        if self.sharding.tile_counts(self.ndim)[-1] > 1:
            buffer = CONVERSIONS.value.resharded(self, sharding)
        return Array(ShapedArray(self.shape[:-1], dtype), buffer, sharding, self.committed)

    # --- values ---------------------------------------------------------------------------------------------
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        value = self._host()
        if dtype is not None and np.dtype(dtype) != value.dtype:
            return value.astype(dtype)
        return value.copy() if copy else value

    def _check_numbers(self) -> None:
        if is_key(self.dtype):
            raise ArgumentTypeError(
                f"an array of random keys ({self.aval}) cannot become a NumPy array or a number; random.key_data(keys) "
                "gives the words"
            )

    def _host(self, explicit: bool = False) -> np.ndarray:
        """The value as a read-only NumPy array that shares the buffer's memory.

        Raises:
          ArgumentTypeError: random keys, which NumPy has no dtype for. TransferError: the guard refuses it.
        """
        self._check_numbers()
        if self._numpy is None or self._buffer is None:
            buffer = self.buffer
            if level_of("device_to_host") != "allow" and any(d.platform != "cpu" for d in self.devices()):
                check_transfer("device_to_host", explicit, self.aval)
            if isinstance(buffer, Parts):
                buffers.wait(buffer)
                self._numpy = self._gathered()
                return self._numpy
            carrier = _carrier(self.dtype)
            if carrier is None:
                self._numpy = buffers.host_value(buffer)
            else:
                value = buffers.host_value(CONVERSIONS.value.to_carrier(self, carrier).buffer)
                self._numpy = value.view(self.dtype) if carrier.kind == "u" else value.astype(self.dtype)
        return self._numpy

    def keep_host_value(self, value: np.ndarray) -> None:
        """Remember the value, read-only, so that asking for it takes no work of the device."""
        self._numpy = value

    def _gathered(self) -> np.ndarray:
        """The global value, assembled from the parts of this process."""
        spread = spread_of(self.sharding)
        held = tiles_of(self.sharding, self.ndim)
        if spread.here and all(t is None for t in held[spread.here[0]]):
            return np.asarray(self._part(spread.here[0]))
        value = assembled([np.asarray(self._part(r)) for r in spread.here], self.sharding, self.shape)
        value.flags.writeable = False
        return value

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule that shares the array's memory, or with ``copy`` a copy. The consumer must not write to it.

        Raises:
          DLPackError: another device or a stream is requested, or DLPack has no such dtype.
        """
        here = self.__dlpack_device__()
        if dl_device not in (None, here) or (stream is not None and here[0] == 1):
            raise DLPackError(
                f"__dlpack__: the array is on device {here}{' (main memory, no streams)' * (here[0] == 1)}, asked for "
                f"were dl_device={dl_device} and stream={stream}; export it without them and move it afterwards"
            )
        self._check_numbers()
        if isinstance(self._buffer, Parts):
            raise DLPackError(
                f"__dlpack__: the array lies on {len(spread_of(self.sharding).reals)} devices; export the arrays of "
                "x.addressable_shards (shard.data), or put it on one device with device_put first"
            )
        return dlpack.capsule(self.__deepcopy__({}).buffer if copy else self.buffer, self.dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return buffers.dlpack_device(spread_of(self.sharding).reals[0])

    def _scalar(self, what: str, remedy: str = "") -> Any:
        if self.size != 1:
            raise ShapeError(f"{what} needs an array of one element, this one has shape {self.shape}{remedy}")
        return np.asarray(self).reshape(())[()]

    def __bool__(self) -> bool:
        return bool(self._scalar("bool()", "; use .any() or .all()"))

    def __int__(self) -> int:
        return int(self._scalar("int()").item())  # Python rejects complex numbers; NumPy would drop the imaginary part

    def __float__(self) -> float:
        return float(self._scalar("float()").item())

    def __complex__(self) -> complex:
        return complex(self._scalar("complex()"))

    def __index__(self) -> int:
        if self.ndim or self.dtype.kind not in "iu":
            raise ArgumentTypeError(f"only integer scalar arrays can be an index, got {self.aval}")
        return int(self._scalar("an index"))

    def item(self, *args: int) -> Any:
        """The only element, or the one at an index, as a Python number."""
        return np.asarray(self).item(*args)

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        return np.asarray(self).tolist()

    def __hash__(self) -> int:
        raise ArgumentTypeError("arrays are not hashable; use arr.tobytes(), or id(arr) for identity")

    def tobytes(self) -> bytes:
        return np.asarray(self).tobytes()

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        if self.ndim:
            raise ArgumentTypeError(f"format {spec!r} is for scalars, this array has shape {self.shape}; index it")
        return format(self._scalar("format").item(), spec)

    def __repr__(self) -> str:
        if self.is_deleted():
            return f"Array({self.aval}, deleted)"
        if is_key(self.dtype):
            return f"Array({self.shape}, dtype={self.dtype}) overlaying:\n{self.words()}"
        if not is_whole_here(self.sharding, self.ndim):
            return f"Array(shape={self.shape}, dtype={self.dtype.name}, on devices of several processes)"
        text = np.array2string(np.asarray(self), separator=", ", prefix="Array(")
        shape = f", shape={self.shape}" if 0 in self.shape else ""  # which "[]" does not tell
        weak = ", weak_type=True" if self.weak_type else ""
        return f"Array({text}{shape}, dtype={self.dtype.name}{weak})"

    def __str__(self) -> str:
        return repr(self) if is_key(self.dtype) else str(np.asarray(self))

    def __iter__(self) -> Iterator[Any]:
        if self.ndim == 0:
            raise ArgumentTypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))  # type: ignore[index]

    def __reduce__(self) -> Any:
        # The sharding is not pickled: another process has other devices.
        if is_key(self.dtype):
            return Array.keys, (self.words(), self.dtype)
        return from_numpy, (np.asarray(self), None, None, True, self.weak_type)

    def __copy__(self) -> Array:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: Any) -> Array:
        """A copy with its own buffer, which stays valid if this array is donated."""
        return Array(self.aval, CONVERSIONS.value.copy(self), self.sharding, self.committed)


def _carrier(dtype: np.dtype) -> np.dtype | None:
    """A stand-in for a dtype that NumPy's DLPack does not support: unsigned of the same width, int8 if narrower."""
    if dtype in NUMPY_DTYPES:
        return None
    if dtype.name in ("int4", "uint4", "int2", "uint2", "float4_e2m1fn"):
        return np.dtype(np.int8) if "int" in dtype.name else np.dtype(np.float32)
    return np.dtype(f"uint{8 * dtype.itemsize}")


@dataclass(frozen=True)
class Conversions:
    """Conversions that need compiled programs: to and from a dtype that NumPy has, copying and moving a buffer."""

    to_carrier: Callable[[Array, np.dtype], Array]
    from_carrier: Callable[[Array, ShapedArray, Sharding, bool], Array]
    copy: Callable[[Array], Any]
    resharded: Callable[[Array, Sharding], Any]


CONVERSIONS: Slot[Conversions] = Slot("the conversion of arrays", "meshwright.runtime.eager")


def from_numpy(
    value: Any, dtype: np.dtype | None = None, sharding: Sharding | None = None, copy: bool = True,
    weak_type: bool = False, transfer: str = "implicit",
) -> Array:  # fmt: skip
    """An array of a NumPy value. Without ``copy``, it may share the value's memory, which must then not be written to.

    Memory is shared if it is contiguous and 64-byte aligned, as XLA requires. For the transfer guard, this is an
    ``"explicit"`` or ``"implicit"`` transfer, or none (``"none"``).

    Raises:
      TransferError: the transfer guard refuses it.
    """
    if isinstance(value, np.ndarray):
        refuse_masked(value)
    value = np.asarray(value)
    target = canonical(as_dtype(value.dtype if dtype is None else dtype))
    if value.dtype != target:
        value, copy = value.astype(target), False
    aval = ShapedArray(value.shape, target, weak_type)
    if transfer != "none":
        check_transfer("host_to_device", transfer == "explicit", aval)
    sharding_ = sharding or default_sharding()
    spread = spread_of(sharding_)
    if not spread.is_one:
        return Array(aval, _parts_of(value, sharding_), sharding_, sharding is not None)
    carrier = _carrier(target)
    if carrier is not None:
        carried = value.view(carrier) if carrier.kind == "u" else value.astype(carrier)
        carried_ = from_numpy(carried, sharding=sharding_, transfer="none")
        return CONVERSIONS.value.from_carrier(carried_, aval, sharding_, sharding is not None)
    if not value.flags.c_contiguous:
        value, copy = np.array(value, order="C", copy=True), False
    buffer = buffers.buffer_from_numpy(value, spread.reals[0], copy or not value.flags.writeable)
    return Array(aval, buffer, sharding_, sharding is not None)


def _parts_of(value: np.ndarray, sharding: Sharding) -> Parts:
    """Copies of the parts of a NumPy array that this process's real devices hold."""
    buffers = []
    for real in spread_of(sharding).here:
        device = next(d for d in sharding.devices if real_of(d) == real)
        part = from_numpy(cut(value, sharding, real), sharding=SingleDeviceSharding(device), transfer="none")
        buffers.append(part.buffer)
    return Parts(buffers)
