"""``jax.ref``: mutable array references."""

from meshwright.api.references import AbstractRef, Ref, addupdate, empty_ref, free_ref, freeze, get, new_ref, swap
from meshwright.api.references import set_ as set
from meshwright.core.absent import absent as _absent

__all__ = ["AbstractRef", "Ref", "addupdate", "empty_ref", "free_ref", "freeze", "get", "new_ref", "set", "swap"]

__getattr__ = _absent("ref")
