"""All ops, each with all its rules in one place. :func:`register_all` imports those that have not been needed yet.

``segment_sum``, ``segment_prod``, ``segment_max`` and ``segment_min`` are also available here, as in JAX.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages

from meshwright.core.late import late_attributes

__getattr__, __dir__ = late_attributes(  # they are defined in the array library, which is built on ops
    __name__,
    dict.fromkeys(("segment_max", "segment_min", "segment_prod", "segment_sum"), "meshwright.numpy.segments"),
)


def register_all() -> None:
    """Import every module of this package, which registers its ops and their readers."""
    for module in walk_packages(__path__, f"{__name__}."):
        import_module(module.name)
