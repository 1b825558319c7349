"""Older names of array attributes, from ``DeviceArray``, ``ShardedDeviceArray`` and ``GlobalDeviceArray``."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.errors import ArgumentError
from meshwright.sharding import NamedSharding, PartitionSpec, Sharding, ShardingSpec


class OlderNames:
    """Base class of arrays with attribute names of JAX from 2018 to 2022. Each docstring gives the current name."""

    __slots__ = ()
    sharding: Sharding
    shape: tuple[int, ...]
    addressable_shards: Any
    addressable_data: Any

    @property
    def device_buffers(self) -> list[Any]:
        """The shards, one per device. Now: ``[shard.data for shard in x.addressable_shards]``."""
        return [shard.data for shard in self.addressable_shards]

    @property
    def device_buffer(self) -> Any:
        """The array's only shard. Now: ``x.addressable_data(0)``.

        Raises:
          ArgumentError: the array is on several devices.
        """
        if self.sharding.num_devices > 1:
            raise ArgumentError(
                f"device_buffer: the array is on {self.sharding.num_devices} devices; use device_buffers, or "
                "addressable_shards"
            )
        return self.addressable_data(0)

    @property
    def sharding_spec(self) -> ShardingSpec:
        """The sharding in ``pmap``'s form. Now: ``x.sharding``."""
        return ShardingSpec.of(self.sharding, self.shape)

    @property
    def local_shards(self) -> list[Any]:
        """Now: ``x.addressable_shards``."""
        return list(self.addressable_shards)

    def local_data(self, index: int = 0) -> Any:
        """Now: ``x.addressable_data(index)``."""
        return self.addressable_data(index)

    @property
    def mesh(self) -> Any:
        """Now: ``x.sharding.mesh``.

        Raises:
          ArgumentError: the array is not on a mesh.
        """
        return self._named.mesh

    @property
    def mesh_axes(self) -> PartitionSpec:
        """Now: ``x.sharding.spec``.

        Raises:
          ArgumentError: the array is not on a mesh.
        """
        return self._named.spec

    @property
    def _named(self) -> NamedSharding:
        if not isinstance(self.sharding, NamedSharding):
            raise ArgumentError(
                f"the array lies as {self.sharding!r}, which names no mesh; put it on one with device_put and "
                "NamedSharding(mesh, spec)"
            )
        return self.sharding

    def to_py(self) -> np.ndarray:
        """Now: ``numpy.asarray(x)``."""
        return np.asarray(self)
