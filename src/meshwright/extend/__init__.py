"""``jax.extend``: for code that extends the library; :mod:`meshwright.extend.core` has primitives and jaxprs, and
:mod:`meshwright.extend.linear_util` functions with transformations."""

from meshwright.core.absent import absent
from meshwright.core.late import late_attributes, submodules

__all__: list[str] = []

__getattr__, __dir__ = late_attributes(
    __name__, {}, submodules(__name__, "backend", "core", "linear_util"), absent("extend")
)
