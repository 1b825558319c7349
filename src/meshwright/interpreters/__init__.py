"""``jax.interpreters``: rules of primitives (``ad``, ``batching``, ``mlir``), and older interfaces for many devices.

Our own ops have their rules as methods: see docs/adding-an-op.md.
"""

from meshwright.core.absent import absent
from meshwright.core.late import late_attributes, submodules

__all__: list[str] = []

__getattr__, __dir__ = late_attributes(
    __name__,
    {},
    submodules(__name__, "ad", "batching", "mlir", "partial_eval", "pxla", "sharded_jit", "xla"),
    absent("interpreters"),
)
