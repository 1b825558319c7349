"""The interface of shardings: which devices there are, which tile each holds, and how large a shard is.

A subclass provides the devices in order, the tile of each, and what it was made from; the rest is derived. Shardings
are values and parts of cache keys, so their hash is computed once.

Source: ``jax.sharding.Sharding`` for the interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, Self

import numpy as np

from meshwright.core.words import counted
from meshwright.errors import ShardingError
from meshwright.sharding.memory_kind import DEVICE, checked_kind
from meshwright.sharding.tiles import tile_slices

Index = tuple[slice, ...]


class Sharding(ABC):
    """How an array is distributed over devices. Hashable; equal shardings lay out every array alike."""

    #: whether the mesh has explicit axes, so that types say how values are split
    is_explicit: bool = False
    #: the kind of memory that holds the array, unless it is the device's own
    host_kind: str | None = None
    #: whether arrays may be in other memory than the device's own: the constructor takes ``memory_kind``
    has_memory_kinds: ClassVar[bool] = True

    @property
    def memory_kind(self) -> str | None:
        """The kind of memory that holds the array."""
        return self.host_kind or DEVICE

    def with_memory_kind(self, kind: str | None) -> Self:
        """The same sharding with another kind of memory.

        Raises:
          ShardingError: there is no such kind, or this class of sharding has no memory kinds.
        """
        if (host_kind := checked_kind(kind, type(self).__name__)) == self.host_kind:
            return self
        if not self.has_memory_kinds:
            raise ShardingError(
                f"{type(self).__name__} is always in the device's memory; use a NamedSharding for others"
            )
        return self._maker(host_kind)(*self._arguments)

    def __reduce__(self) -> tuple[Any, ...]:  # the hash is not pickled, as string hashes differ between processes
        return self._maker(self.host_kind), self._arguments

    @property
    @abstractmethod
    def _arguments(self) -> tuple[Any, ...]:
        """What the constructor takes to make an equal sharding, but for the kind of memory."""

    @classmethod
    def _maker(cls, host_kind: str | None) -> Callable[..., Self]:
        """Makes shardings of this class in a kind of memory."""
        make: Callable[..., Self] = cls
        return make if host_kind is None else partial(make, memory_kind=host_kind)

    @property
    @abstractmethod
    def devices(self) -> tuple[Any, ...]:
        """The devices in the order of the sharding (row-major over a mesh)."""

    @abstractmethod
    def tile_counts(self, ndim: int) -> tuple[int, ...]:
        """The number of tiles of each dimension of an ``ndim``-dimensional array."""

    @abstractmethod
    def tile_table(self, ndim: int) -> np.ndarray:
        """``table[d, dim]``: the index of the tile of dimension ``dim`` that ``devices[d]`` holds."""

    @abstractmethod
    def check_compatible(self, shape: Sequence[int], what: str = "array") -> None:
        """Raise ``ShardingError``, naming the array as ``what``, if ``shape`` cannot be sharded in this way."""

    def check_compatible_aval(self, aval_shape: Sequence[int]) -> None:
        """JAX's name for :meth:`check_compatible`."""
        self.check_compatible(aval_shape)

    # --- devices --------------------------------------------------------------------------------------------
    @property
    def device_set(self) -> frozenset[Any]:
        return frozenset(self.devices)

    @property
    def addressable_devices(self) -> frozenset[Any]:
        """The devices of this process: those with a true ``is_addressable``, or without that attribute."""
        return frozenset(d for d in self.devices if getattr(d, "is_addressable", True))

    @property
    def is_fully_addressable(self) -> bool:
        return len(self.addressable_devices) == self.num_devices

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @property
    @abstractmethod
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole array."""

    def to_named(self) -> Sharding:
        """The equivalent named sharding; itself if it is one, or has a single device."""
        return self

    # --- shards ---------------------------------------------------------------------------------------------
    def shard_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of one device's buffer; an uneven dimension is padded to ceil(size / tiles) rows."""
        self.check_compatible(shape)
        return tuple(-(-size // n) for size, n in zip(shape, self.tile_counts(len(shape))))

    def devices_indices_map(self, shape: Sequence[int]) -> dict[Any, Index]:
        """The part of the global array that each device holds; slices past an uneven end are empty."""
        return dict(_indices_map(self, tuple(shape)))

    def addressable_devices_indices_map(self, shape: Sequence[int]) -> dict[Any, Index]:
        here = self.addressable_devices
        return {device: index for device, index in self.devices_indices_map(shape).items() if device in here}

    def is_equivalent_to(self, other: Sharding, ndim: int) -> bool:
        """Whether both put the same tiles of every ``ndim``-dimensional array into the same memory of the same
        devices."""
        if self is other or self == other:
            return True
        if (self.memory_kind, self.num_devices) != (other.memory_kind, other.num_devices):
            return False
        if self.tile_counts(ndim) != other.tile_counts(ndim):
            return False
        return _tiles_by_device(self, ndim) == _tiles_by_device(other, ndim)


@lru_cache(maxsize=4096)
def _indices_map(sharding: Sharding, shape: tuple[int, ...]) -> dict[Any, Index]:
    sharding.check_compatible(shape)
    counts = sharding.tile_counts(len(shape))
    table = sharding.tile_table(len(shape))
    return {device: tile_slices(shape, counts, tiles) for device, tiles in zip(sharding.devices, table)}


@lru_cache(maxsize=4096)
def _tiles_by_device(sharding: Sharding, ndim: int) -> dict[int, tuple[int, ...]]:
    ids = (getattr(device, "id", device) for device in sharding.devices)
    return dict(zip(ids, map(tuple, sharding.tile_table(ndim).tolist())))


def check_rank(entries: int, shape: Sequence[int], sharding: object, what: str) -> None:
    """Raise unless an array of ``shape`` has at least as many dimensions as the sharding has entries."""
    if entries > len(shape):
        raise ShardingError(
            f"{what}: {sharding} has {counted(entries, 'entry', 'entries')} but the shape {tuple(shape)} has "
            f"{counted(len(shape), 'dimension')}; give at most {counted(len(shape), 'entry', 'entries')}, one per "
            "dimension"
        )
