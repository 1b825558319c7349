"""``jax.extend.linear_util``: functions with transformations that programs write in JAX's notation."""

from meshwright.core.absent import absent
from meshwright.transforms.linear_util import (
    StoreException,
    WrappedFun,
    cache,
    merge_linear_aux,
    transformation,
    transformation2,
    transformation_with_aux,
    transformation_with_aux2,
    wrap_init,
)

__all__ = [
    "StoreException", "WrappedFun", "cache", "merge_linear_aux", "transformation", "transformation2",
    "transformation_with_aux", "transformation_with_aux2", "wrap_init",
]  # fmt: skip

__getattr__ = absent("extend.linear_util")
