"""``PmapSharding``: the sharding of the results of the older ``pmap``, with one index of an axis on each device.

Source: the ``PmapSharding`` of JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from meshwright.core.slots import Slot
from meshwright.core.words import counted
from meshwright.errors import ShardingError
from meshwright.sharding.base import Index, Sharding
from meshwright.sharding.kinds import MeshOf
from meshwright.sharding.mesh import device_array
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.sharding_spec import NoSharding, Replicated, ShardedAxis, ShardingSpec, Unstacked

#: returns the devices of this process
OWN_DEVICES: Slot[Callable[[], Sequence[Any]]] = Slot("the list of devices", "meshwright.runtime.devices")


class PmapSharding(Sharding):
    """``PmapSharding(devices, sharding_spec)``. Shards do not have the dimensions that are unstacked.

    New code should use :class:`NamedSharding`, and ``shard_map`` instead of ``pmap``.

    Raises:
      ShardingError: the number of devices is not that of the cells of the spec's grid.
    """

    has_memory_kinds = False

    def __init__(self, devices: Any, sharding_spec: ShardingSpec) -> None:
        self._devices = tuple(device_array(devices, "PmapSharding").flat)
        self.sharding_spec = sharding_spec
        if len(self._devices) != prod(sharding_spec.mesh_shape):
            raise ShardingError(
                f"PmapSharding: {counted(len(self._devices), 'device')} for a grid of shape "
                f"{sharding_spec.mesh_shape}; give one for each place"
            )
        self._hash = hash((self._devices, sharding_spec))

    @classmethod
    def default(
        cls, shape: Sequence[int], sharded_dim: int | None = 0, devices: Sequence[Any] | None = None
    ) -> PmapSharding:
        """The sharding of an array of ``shape`` with one index of dimension ``sharded_dim`` on each device.

        ``devices`` defaults to the first ones of this process. If ``sharded_dim`` is None, each of them has the whole
        array.

        Raises:
          ShardingError: not one device per index, or no ``devices`` although ``sharded_dim`` is None.
        """
        if sharded_dim is None:
            if devices is None:
                raise ShardingError(
                    "PmapSharding.default: sharded_dim=None does not say on how many devices; give devices"
                )
            return cls(devices, ShardingSpec([NoSharding() for _ in shape], [Replicated(len(devices))]))
        dim = range(len(shape))[sharded_dim]
        cuts = [Unstacked(size) if d == dim else NoSharding() for d, size in enumerate(shape)]
        chosen = OWN_DEVICES.value()[: shape[dim]] if devices is None else devices
        return cls(chosen, ShardingSpec(cuts, [ShardedAxis(0)]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PmapSharding):
            return NotImplemented
        return self._devices == other._devices and self.sharding_spec == other.sharding_spec

    def __hash__(self) -> int:
        return self._hash

    @property
    def _arguments(self) -> tuple[Any, ...]:
        return self._devices, self.sharding_spec

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self._devices))
        return f"PmapSharding(sharding_spec={self.sharding_spec}, devices=[{names}])"

    @cached_property
    def _named(self) -> NamedSharding:
        mesh, spec = self.sharding_spec.named()
        grid = np.array(self._devices, object).reshape(mesh.axis_sizes)
        return NamedSharding(MeshOf(grid, mesh.axis_names, pmapped), spec)

    def to_named(self) -> NamedSharding:
        """The same sharding over a mesh with the spec's grid."""
        return self._named

    # --- as a sharding --------------------------------------------------------------------------------------
    @property
    def devices(self) -> tuple[Any, ...]:
        return self._devices

    @property
    def is_fully_replicated(self) -> bool:
        return not self.sharding_spec.cuts

    def tile_counts(self, ndim: int) -> tuple[int, ...]:
        return self._named.tile_counts(ndim)

    def tile_table(self, ndim: int) -> np.ndarray:
        return self._named.tile_table(ndim)

    def check_compatible(self, shape: Sequence[int], what: str = "array") -> None:
        self.sharding_spec.check(shape, what)

    def shard_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of one device's shard, without dimensions that are unstacked."""
        whole = super().shard_shape(shape)
        return tuple(n for n, cut in zip(whole, self.sharding_spec.sharding) if not isinstance(cut, Unstacked))

    def devices_indices_map(self, shape: Sequence[int]) -> dict[Any, Index]:
        """The index of each device's shard: a number for an unstacked dimension, slices for others."""
        return dict(zip(self._devices, self.sharding_spec.indices(shape).flat))


def pmapped(sharding: NamedSharding, shape: tuple[int, ...]) -> Sharding:
    """Convert a sharding over the mesh of a ``PmapSharding``; unchanged if that would need padding."""
    try:
        return PmapSharding(sharding.devices, ShardingSpec.of(sharding, shape))
    except ShardingError:
        return sharding
