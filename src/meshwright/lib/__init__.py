"""XLA's low-level interface, under the names of ``jax.lib``."""

from meshwright.lib import xla_bridge, xla_client, xla_extension

__all__ = ["xla_bridge", "xla_client", "xla_extension"]
