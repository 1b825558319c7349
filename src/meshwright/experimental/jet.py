"""``jax.experimental.jet``: derivatives of every order along a curve."""

from meshwright.transforms.jet import jet

__all__ = ["jet"]
