"""``jax.scipy.integrate``."""

from meshwright.numpy.filters import trapezoid

__all__ = ["trapezoid"]
