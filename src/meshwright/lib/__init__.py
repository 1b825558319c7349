"""XLA's own interface, below arrays and functions, by the names that people used."""

from meshwright.lib import xla_bridge, xla_client, xla_extension

__all__ = ["xla_bridge", "xla_client", "xla_extension"]
