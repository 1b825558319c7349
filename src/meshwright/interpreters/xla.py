"""``jax.interpreters.xla``: primitives applied to concrete operands, and arrays by their name until 2022."""

from typing import Any

from meshwright.core.absent import absent as _absent
from meshwright.ops.primitive import Primitive
from meshwright.runtime.array import Array

__all__ = ["DeviceArray", "apply_primitive"]


def apply_primitive(prim: Primitive, *args: Any, **params: Any) -> Any:
    """The results of a primitive for concrete operands, by its lowering: what ``def_impl`` may be given."""
    return Primitive.impl(prim, *args, **params)


#: today: ``meshwright.Array``
DeviceArray = Array

__getattr__ = _absent("interpreters.xla")
