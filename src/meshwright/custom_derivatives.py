"""``jax.custom_derivatives``: functions with custom derivative rules."""

from meshwright.core.absent import absent as _absent
from meshwright.ir.op import Zero as SymbolicZero
from meshwright.transforms.closures import custom_gradient, linear_call
from meshwright.transforms.custom_jvp import custom_jvp
from meshwright.transforms.custom_vjp import CustomVJPPrimal, custom_vjp
from meshwright.transforms.jacobian import closure_convert

__all__ = [
    "CustomVJPPrimal",
    "SymbolicZero",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "linear_call",
]

__getattr__ = _absent("custom_derivatives")
