"""``jax.stages``: what a jitted function goes through on its way to the machine."""

from meshwright.api.jit import JitFunction as Wrapped
from meshwright.api.stage import ArgInfo
from meshwright.api.stages import Compiled, Lowered, Traced

__all__ = ["ArgInfo", "Compiled", "CompilerOptions", "Lowered", "Traced", "Wrapped"]

#: what ``compiler_options`` are: XLA's options by name
CompilerOptions = dict[str, str | bool]
