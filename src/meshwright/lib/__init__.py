"""XLA's own interface, below arrays and functions, by the names that people used: ``xla_bridge`` and ``xla_client``."""

from meshwright.lib import xla_bridge, xla_client

__all__ = ["xla_bridge", "xla_client"]
