"""``jax.experimental.shard_map``: the function's older home."""

from meshwright.api.shard_map import shard_map

__all__ = ["shard_map"]
