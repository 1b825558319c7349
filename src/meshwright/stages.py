"""``jax.stages``: the stages of compiling a jitted function."""

from meshwright.api.jit import JitFunction as Wrapped
from meshwright.api.stage import ArgInfo
from meshwright.api.stages import Compiled, Lowered, Traced

__all__ = ["ArgInfo", "Compiled", "CompilerOptions", "Lowered", "Traced", "Wrapped"]

#: the type of ``compiler_options``: XLA's options by name
CompilerOptions = dict[str, str | bool]
