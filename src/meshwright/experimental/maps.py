"""``jax.experimental.maps``: named axes. Now: ``shard_map``, or ``vmap(axis_name=...)`` under ``jit``."""

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.api.environment import thread_resources
from meshwright.api.serial_loop import SerialLoop, serial_loop
from meshwright.api.xmap import xmap
from meshwright.core import pytree
from meshwright.errors import ArgumentError
from meshwright.runtime.devices import local_devices
from meshwright.sharding import Mesh

#: now: ``with Mesh(devices, axis_names):``
mesh = Mesh

__all__ = ["Mesh", "SerialLoop", "mesh", "serial_loop", "soft_pmap", "thread_resources", "xmap"]


def soft_pmap(fun: Callable[..., Any], axis_name: Any = None, in_axes: Any = 0) -> Callable[..., Any]:
    """Map ``fun`` over axis 0 of its arguments, with several entries per device.

    Now: ``jit(vmap(fun))`` with sharded arguments.

    Args:
      fun: the function.
      axis_name: the name of the axis, for collectives.
      in_axes: 0 for mapped arguments, None for others; a tree prefix of the arguments.

    Raises:
      ArgumentError: an entry of ``in_axes`` is neither 0 nor None. When called, the errors of ``xmap``: sizes differ,
        or are not multiples of the number of devices.

    Example:
      >>> from meshwright.experimental.maps import soft_pmap
      >>> soft_pmap(lambda x: x / lax.psum(x, "i"), "i")(mnp.arange(1.0, 17.0)).shape
      (16,)
    """
    name = "soft_pmap" if axis_name is None else axis_name
    if any(axis not in (0, None) for axis in pytree.leaves(in_axes, is_leaf=_is_none)):
        raise ArgumentError(f"soft_pmap: in_axes has to be 0 or None for each argument, got {in_axes!r}; move the axis")
    axes = pytree.map(lambda axis: {} if axis is None else {0: name}, in_axes, is_leaf=_is_none)

    def call(*args: Any) -> Any:
        mapped = xmap(fun, (axes,) * len(args) if in_axes == 0 else axes, {0: name}, axis_resources={name: "devices"})
        with Mesh(np.array(local_devices()), ("devices",)):
            return mapped(*args)

    return call


def _is_none(x: Any) -> bool:
    return x is None
