"""What people took from ``jax.interpreters``: the names for many devices, at the paths that they had.

Ops have their rules as methods here, see docs/architecture.md.
"""

from meshwright.core.absent import absent
from meshwright.core.late import late_attributes, submodules

__all__: list[str] = []

__getattr__, __dir__ = late_attributes(
    __name__, {}, submodules(__name__, "pxla", "sharded_jit", "xla"), absent("interpreters")
)
