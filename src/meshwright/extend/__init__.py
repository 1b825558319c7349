"""``jax.extend``: for code that extends the library; :mod:`meshwright.extend.core` has primitives and jaxprs,
:mod:`meshwright.extend.linear_util` functions with transformations, and :mod:`meshwright.extend.source_info_util`
lines of users' programs."""

from meshwright.core.absent import absent
from meshwright.core.late import late_attributes, submodules

__all__: list[str] = []

__getattr__, __dir__ = late_attributes(
    __name__, {}, submodules(__name__, "backend", "core", "linear_util", "source_info_util"), absent("extend")
)
