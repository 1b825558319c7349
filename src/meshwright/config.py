"""``jax.config`` as a module, as in older versions: ``from jax.config import config``. Now: ``meshwright.config``."""

from meshwright.core.config import config

__all__ = ["config"]
