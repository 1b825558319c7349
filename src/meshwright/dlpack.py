"""``jax.dlpack``: arrays of other libraries, without a copy."""

from meshwright.numpy import from_dlpack

__all__ = ["from_dlpack"]
