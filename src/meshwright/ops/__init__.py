"""Every op, with all its rules in one place; :func:`register_all` imports those that nothing has needed yet.

``segment_sum``, ``segment_prod``, ``segment_max`` and ``segment_min`` are found here, too, where JAX has them.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages

from meshwright.core.late import late_attributes

__getattr__, __dir__ = late_attributes(  # made of the array library, which is made of ops
    __name__,
    dict.fromkeys(("segment_max", "segment_min", "segment_prod", "segment_sum"), "meshwright.numpy.segments"),
)


def register_all() -> None:
    """Import every module of this package: each registers its ops and how they are read."""
    for module in walk_packages(__path__, f"{__name__}."):
        import_module(module.name)
