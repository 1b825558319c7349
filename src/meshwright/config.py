"""``jax.config`` as it once was, a module: ``from jax.config import config``. Today's way: ``meshwright.config``."""

from meshwright.core.config import config

__all__ = ["config"]
