"""``jax.experimental.layout``: how arrays lie in memory, as ``Compiled.input_formats`` tells. All are row-major."""

from meshwright.api.compiled import Format
from meshwright.api.compiled import MemoryOrder as Layout

__all__ = ["Format", "Layout"]
