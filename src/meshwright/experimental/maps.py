"""``jax.experimental.maps``: named axes. Today's way: ``shard_map``, or ``vmap(axis_name=...)`` under ``jit``."""

from meshwright.api.environment import thread_resources
from meshwright.api.serial_loop import SerialLoop, serial_loop
from meshwright.api.xmap import xmap
from meshwright.sharding import Mesh

#: today: ``with Mesh(devices, axis_names):``
mesh = Mesh

__all__ = ["Mesh", "SerialLoop", "mesh", "serial_loop", "thread_resources", "xmap"]
