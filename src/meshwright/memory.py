"""``jax.memory``: the memory of devices and that of their hosts, in which ``device_put`` puts values."""

from meshwright.core.memory_space import Space

__all__ = ["Space"]
