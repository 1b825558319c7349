"""``meshwright.debug``: where values are, on arrays and inside traced functions.

Inside a traced function nobody knows a sharding yet; what is asked there is answered when the program is
partitioned, with the layout that the partitioner chose.

Source: ``jax.debug`` for the interface.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.errors import ArgumentTypeError
from meshwright.inspect.picture import ShardingPicture, picture_of, visualize_sharding
from meshwright.inspect.picture import visualize_array_sharding as _visualize
from meshwright.ir.tracing import Tracer, typeof
from meshwright.ops.inspect_sharding import InspectSharding
from meshwright.runtime.executable import as_array
from meshwright.sharding import Sharding

__all__ = ["ShardingPicture", "inspect_array_sharding", "picture_of", "visualize_array_sharding", "visualize_sharding"]


def inspect_array_sharding(value: Any, *, callback: Callable[[Sharding], None]) -> None:
    """Calls ``callback`` with the sharding of ``value``: at once for an array, inside a jitted function at each
    compilation (or ``.partition()``) of the program.

    Raises:
      ArgumentTypeError: ``callback`` is no function, or ``value`` no array.
    """
    if not callable(callback):
        raise ArgumentTypeError(
            f"inspect_array_sharding: callback must be a function of a sharding, got {callback!r}; pass callback=print"
        )
    typeof(value)
    InspectSharding(callback).bind(value if isinstance(value, Tracer) else as_array(value))


def visualize_array_sharding(array: Any, *, max_width: int = 80) -> None:
    """Shows which device holds which part of an array (anything with ``shape`` and ``sharding``).

    Inside a jitted function it is shown when the program is compiled.
    """
    if isinstance(array, Tracer):
        shape = array.shape
        inspect_array_sharding(array, callback=lambda s: visualize_sharding(shape, s, max_width=max_width))
    else:
        _visualize(array, max_width=max_width)
