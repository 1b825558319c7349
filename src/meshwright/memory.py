"""``jax.memory``: names of the memories of devices and hosts, for ``device_put``."""

from meshwright.core.memory_space import Space

__all__ = ["Space"]
