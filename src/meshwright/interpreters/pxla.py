"""``jax.interpreters.pxla``: older path of meshes and ``pmap``'s shardings. Now: ``meshwright.sharding``."""

from meshwright.api.environment import thread_resources
from meshwright.core.absent import absent as _absent
from meshwright.runtime.array import Array
from meshwright.sharding import Mesh, PartitionSpec, PmapSharding
from meshwright.sharding.sharding_spec import (
    Chunked,
    NoSharding,
    Replicated,
    ShardedAxis,
    ShardingSpec,
    Unstacked,
    spec_to_indices,
)

__all__ = [
    "Chunked", "Mesh", "NoSharding", "PartitionSpec", "PmapSharding", "Replicated", "ShardedAxis", "ShardedDeviceArray",
    "ShardingSpec", "Unstacked", "spec_to_indices", "thread_resources",
]  # fmt: skip

#: now: ``meshwright.Array``
ShardedDeviceArray = Array

__getattr__ = _absent("interpreters.pxla")
