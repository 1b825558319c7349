"""``jax.experimental.shard_alike``: gives two values the same sharding."""

from __future__ import annotations

import itertools
from typing import Any

from meshwright.errors import ArgumentError
from meshwright.ir.tracing import typeof
from meshwright.ops.sharding.propagation_marks import ShardingGroup

__all__ = ["shard_alike"]

_GROUPS = itertools.count(1 << 20)  # beyond the numbers that programs from elsewhere use


def shard_alike(x: Any, y: Any) -> tuple[Any, Any]:
    """Return ``(x, y)``, two arrays of the same shape, to which the partitioner gives the same sharding.

    Raises:
      ArgumentError: the shapes differ.

    Example:
      >>> from meshwright.experimental.shard_alike import shard_alike
      >>> x, y = shard_alike(mnp.arange(3), mnp.ones(3))
      >>> x.tolist(), y.tolist()
      ([0, 1, 2], [1.0, 1.0, 1.0])
    """
    if typeof(x).shape != typeof(y).shape:
        raise ArgumentError(f"shard_alike: shapes must be equal, got {typeof(x)} and {typeof(y)}")
    group = ShardingGroup(str(next(_GROUPS)))
    return group.bind(x), group.bind(y)
