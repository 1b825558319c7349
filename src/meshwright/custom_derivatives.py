"""``jax.custom_derivatives``: functions with custom derivative rules."""

from typing import Any as _Any

from meshwright.core.absent import absent as _absent
from meshwright.core.late import LateModule as _LateModule
from meshwright.ir.op import Zero as SymbolicZero
from meshwright.transforms.closures import custom_gradient, linear_call
from meshwright.transforms.custom_jvp import custom_jvp
from meshwright.transforms.custom_vjp import (
    CustomVJPPrimal,
    custom_vjp,
    custom_vjp_primal_tree_values,
    zero_from_primal,
)
from meshwright.transforms.jacobian import closure_convert

__all__ = [
    "CustomVJPPrimal",
    "SymbolicZero",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "custom_vjp_primal_tree_values",
    "linear_call",
    "zero_from_primal",
]

_missing = _absent("custom_derivatives")
_primitives: _Any = _LateModule("meshwright.lax.primitives")


def __getattr__(name: str) -> _Any:
    if name in ("custom_jvp_call_p", "custom_vjp_call_p"):
        return _primitives.named(name)
    return _missing(name)
