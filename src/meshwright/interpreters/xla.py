"""``jax.interpreters.xla``: primitives applied to concrete operands, conversions of Python types, and the name that
arrays had until 2022.
"""

from typing import Any

from meshwright.core.absent import absent as _absent
from meshwright.ops.primitive import Primitive
from meshwright.runtime.array import Array
from meshwright.runtime.python_types import canonicalize_dtype_handlers

__all__ = ["DeviceArray", "apply_primitive", "canonicalize_dtype_handlers"]


def apply_primitive(prim: Primitive, *args: Any, **params: Any) -> Any:
    """Apply a primitive to concrete operands by its lowering; for use in ``def_impl``."""
    return Primitive.impl(prim, *args, **params)


#: now: ``meshwright.Array``
DeviceArray = Array

__getattr__ = _absent("interpreters.xla")
