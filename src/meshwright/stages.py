"""``jax.stages``: what a jitted function goes through on its way to the machine."""

from meshwright.api.jit import JitFunction as Wrapped
from meshwright.api.stages import Compiled, Lowered, Traced

__all__ = ["Compiled", "Lowered", "Traced", "Wrapped"]
