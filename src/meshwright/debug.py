"""``jax.debug``: printing, callbacks and breakpoints inside of programs, and pictures of shardings."""

from meshwright.core.absent import absent as _absent
from meshwright.inspect.breakpoint import breakpoint
from meshwright.inspect.debug import (
    ShardingPicture,
    callback,
    inspect_array_sharding,
    log,
    picture_of,
    print,
    visualize_array_sharding,
    visualize_sharding,
)

__all__ = [
    "ShardingPicture", "breakpoint", "callback", "inspect_array_sharding", "log", "picture_of", "print",
    "visualize_array_sharding", "visualize_sharding",
]  # fmt: skip

__getattr__ = _absent("debug")
