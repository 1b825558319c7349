"""``jax.experimental.jet``: derivatives of every order along a curve."""

from meshwright.core.absent import absent as _absent
from meshwright.transforms.jet import jet

__all__ = ["jet"]

__getattr__ = _absent("experimental.jet")
