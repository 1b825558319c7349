"""``jax.example_libraries``: the small libraries that teaching programs use. For others: ``optim`` and ``nn``."""

from meshwright.core.late import late_attributes, submodules

__all__: list[str] = []

__getattr__, __dir__ = late_attributes(__name__, {}, submodules(__name__, "optimizers", "stax"))
