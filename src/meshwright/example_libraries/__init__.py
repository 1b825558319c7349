"""``jax.example_libraries``: the small optimizer and layer libraries of JAX's examples and tutorials. New programs
should use ``meshwright.optim`` and ``meshwright.nn``."""

from meshwright.core.late import late_attributes, submodules

__all__: list[str] = []

__getattr__, __dir__ = late_attributes(__name__, {}, submodules(__name__, "optimizers", "stax"))
