"""Arrays of other dtypes, and copies."""

from __future__ import annotations

from typing import Any

import torch

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.core import dtypes
from meshwright.errors import RuleError
from meshwright.interop.torch.dtypes import array_dtype
from meshwright.interop.torch.promotion import cast
from meshwright.interop.torch.registry import register


@register("aten._to_copy", "aten.to.dtype", "aten.to.dtype_layout", "aten.to.device")
def to_copy(self: Any, dtype: Any = None) -> Any:
    return self if dtype is None else cast(self, array_dtype(dtype))


register("aten.to.other", "aten.type_as")(lambda self, other: cast(self, other.dtype))


@register("prims.convert_element_type")
def convert(a: Any, dtype: Any) -> Any:
    return cast(a, array_dtype(dtype))


@register("aten.view.dtype")
def reinterpret(self: Any, dtype: torch.dtype) -> Any:
    """Bits read as of another dtype, the last dimension being as many elements of it as it has bytes for."""
    target = array_dtype(dtype)
    if target.itemsize != dtype.itemsize:
        raise RuleError(f"aten.view.dtype: elements of {dtype} are narrower here; turn on meshwright.enable_x64")
    if dtypes.is_complex(target) or dtypes.is_complex(self.dtype):
        raise RuleError(f"aten.view.dtype: from {self.dtype} to {target}; use view_as_real and view_as_complex")
    times = target.itemsize // self.dtype.itemsize
    if times > 1:
        return lax.bitcast_convert_type(self.reshape(*self.shape[:-1], -1, times), target)
    parts = lax.bitcast_convert_type(self, target)
    return parts.reshape(*self.shape[:-1], -1) if parts.ndim > self.ndim else parts


@register("aten.detach", "aten.detach_copy")
def detach(self: Any) -> Any:
    return lax.stop_gradient(self)


for _name in ("clone", "alias", "contiguous", "lift", "lift_fresh", "lift_fresh_copy", "alias_copy", "cpu"):
    register(f"aten.{_name}")(lambda self: self)
register("prims.device_put")(lambda a: a)
register("prims.clone")(lambda self: self)


@register("aten.copy")
def copy(self: Any, src: Any) -> Any:
    return mnp.broadcast_to(cast(src, self.dtype), self.shape)
