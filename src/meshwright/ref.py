"""``jax.ref``: references to arrays that change."""

from meshwright.api.references import Ref, addupdate, empty_ref, free_ref, freeze, get, new_ref, swap
from meshwright.api.references import set_ as set

__all__ = ["Ref", "addupdate", "empty_ref", "free_ref", "freeze", "get", "new_ref", "set", "swap"]
