"""XLA's low-level interface, under the names of ``jax.lib``; ``__version__`` is that of ``jaxlib``."""

from meshwright.lib import xla_bridge, xla_client, xla_extension
from meshwright.runtime.pjrt.plugins import JAXLIB_VERSION as __version__

__all__ = ["__version__", "xla_bridge", "xla_client", "xla_extension"]
