"""``jax.ad``: what a function that ``vjp`` returns is to do with cotangents (:meth:`VJP.with_refs`)."""

from meshwright.core.absent import absent as _absent
from meshwright.transforms.pullback import DidntWant, DontWant, GradRef, GradValue

__all__ = ["DidntWant", "DontWant", "GradRef", "GradValue"]

__getattr__ = _absent("ad")
