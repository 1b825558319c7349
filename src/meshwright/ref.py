"""``jax.ref``: references to arrays that change."""

from meshwright.api.references import Ref, addupdate, free_ref, freeze, get, new_ref, swap
from meshwright.api.references import set_ as set

__all__ = ["Ref", "addupdate", "free_ref", "freeze", "get", "new_ref", "set", "swap"]
