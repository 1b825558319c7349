"""``jax.custom_batching``: functions with custom batching rules."""

from meshwright.api.batching_rules import sequential_vmap
from meshwright.transforms.custom_vmap import custom_vmap

__all__ = ["custom_vmap", "sequential_vmap"]
