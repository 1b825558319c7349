"""``jax.scipy.cluster``."""

from meshwright.scipy.cluster import vq

__all__ = ["vq"]
