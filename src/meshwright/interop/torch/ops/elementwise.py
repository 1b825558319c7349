"""Ops of one element each: operands are promoted as torch promotes them, then it is the function of the row."""

from __future__ import annotations

import math
from typing import Any

import torch

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.core import dtypes
from meshwright.core.avals import Typed
from meshwright.interop.torch.dtypes import array_dtype, common_dtype
from meshwright.interop.torch.promotion import (
    binary,
    binary_of_floats,
    cast,
    in_single,
    logical,
    of_floats,
    promoted,
    scaled,
    scaling,
    to_float,
    unary,
)
from meshwright.interop.torch.registry import register, rows
from meshwright.nn import activations
from meshwright.transforms.custom_jvp import custom_jvp


def absolute(x: Any) -> Any:
    """The absolute value; its derivative at 0, and of NaN, is 0, as torch's."""
    if not dtypes.is_complex(x.dtype):
        return _magnitude(x)
    size = mnp.abs(x)
    return mnp.where(x == 0, lax.stop_gradient(size), size)


@custom_jvp
def _magnitude(x: Any) -> Any:
    return mnp.abs(x)


_magnitude.defjvps(lambda t, out, x: t * sign(x))


def sign(x: Any) -> Any:
    """That of NaN is 0."""
    return mnp.where(x == x, mnp.sign(x), 0)


def remainder(x: Any, y: Any) -> Any:
    """That of the division rounded down; where nothing is left, the zero has the sign of ``x``."""
    rest = mnp.fmod(x, y)
    return mnp.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


@custom_jvp
def atan2(y: Any, x: Any) -> Any:
    """The angle; its derivatives at the origin are 0, as torch's."""
    return mnp.arctan2(y, x)


@atan2.defjvp
def _atan2_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (y, x), (dy, dx) = primals, tangents
    square = y * y + x * x
    inverse = mnp.where(square == 0, 0, 1 / mnp.where(square == 0, 1, square))
    return atan2(y, x), dy * (x * inverse) - dx * (y * inverse)


def angle(x: Any) -> Any:
    """Of real numbers, pi if they are negative, which -0 is not, and without a slope."""
    if dtypes.is_complex(x.dtype):
        return atan2(mnp.imag(x), mnp.real(x))
    x = lax.stop_gradient(x)
    return mnp.where(x < 0, mnp.asarray(math.pi, x.dtype), mnp.where(x == x, 0, x))


@custom_jvp
def nextafter(x: Any, y: Any) -> Any:
    """A step from ``x`` towards ``y``; moves as ``x`` does, unless it is there already, as torch's."""
    return mnp.nextafter(x, y)


@nextafter.defjvp
def _nextafter_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    x, y = primals
    return nextafter(x, y), mnp.where(x == y, 0, tangents[0])


def copysign(x: Any, y: Any) -> Any:
    """Its derivative at 0 is 0, as torch's."""
    return mnp.copysign(mnp.where(x == 0, lax.stop_gradient(x), x), y)


def logaddexp(x: Any, y: Any) -> Any:
    """Of complex numbers not the principal value, but one near the operand with the larger real part, as in torch."""
    if not dtypes.is_complex(x.dtype):
        return mnp.logaddexp(x, y)
    is_first = mnp.real(x) >= mnp.real(y)
    larger, smaller = mnp.where(is_first, x, y), mnp.where(is_first, y, x)
    return mnp.where(larger == -math.inf, larger, larger + mnp.log1p(mnp.exp(smaller - larger)))


rows(
    {
        # of anything
        "neg negative": unary(mnp.negative),
        "abs absolute": unary(absolute),
        "sign": unary(sign),
        "sgn": unary(lambda x: mnp.sign(x) if dtypes.is_complex(x.dtype) else sign(x)),
        "floor": unary(mnp.floor),
        "ceil": unary(mnp.ceil),
        "trunc fix": unary(mnp.trunc),
        "square": unary(lambda x: x * x if x.dtype != bool else cast(x, array_dtype(torch.int64))),
        "positive": unary(lambda x: x),
        "conj_physical _conj conj _conj_physical": unary(mnp.conj),
        "resolve_conj resolve_neg": unary(lambda x: x),
        "isnan": unary(mnp.isnan),
        "isinf": unary(mnp.isinf),
        "isfinite": unary(mnp.isfinite),
        "isposinf": unary(mnp.isposinf),
        "isneginf": unary(mnp.isneginf),
        "signbit": unary(mnp.signbit),
        "logical_not": unary(lambda x: x == 0),
        "bitwise_not": unary(mnp.invert),
        "real": unary(mnp.real),
        "imag": unary(mnp.imag),
        "relu": unary(activations.relu),
        # of floats
        "exp": of_floats(mnp.exp),
        "exp2": of_floats(mnp.exp2),
        "expm1": of_floats(mnp.expm1),
        "log": of_floats(mnp.log),
        "log2": of_floats(mnp.log2),
        "log10": of_floats(mnp.log10),
        "log1p": of_floats(mnp.log1p),
        "sqrt": of_floats(mnp.sqrt),
        "rsqrt": of_floats(lax.rsqrt),
        "reciprocal": of_floats(lambda x: 1 / x),
        "sin": of_floats(mnp.sin),
        "cos": of_floats(mnp.cos),
        "tan": of_floats(mnp.tan),
        "asin arcsin": of_floats(mnp.arcsin),
        "acos arccos": of_floats(mnp.arccos),
        "atan arctan": of_floats(mnp.arctan),
        "sinh": of_floats(mnp.sinh),
        "cosh": of_floats(mnp.cosh),
        "tanh": of_floats(mnp.tanh),
        "asinh arcsinh": of_floats(mnp.arcsinh),
        "acosh arccosh": of_floats(mnp.arccosh),
        "atanh arctanh": of_floats(mnp.arctanh),
        "angle": of_floats(angle),
        "silu": of_floats(activations.silu),
        "mish": of_floats(activations.mish),
        "log_sigmoid": of_floats(activations.log_sigmoid),
        "deg2rad": of_floats(mnp.deg2rad),
        "rad2deg": of_floats(mnp.rad2deg),
        "nextafter": binary_of_floats(nextafter),
        "frexp": of_floats(lambda x: tuple(mnp.frexp(x))),
        "frac": of_floats(lambda x: x - mnp.trunc(x)),
        # of two
        "add": scaled(mnp.add),
        "sub subtract": scaled(mnp.subtract),
        "rsub": lambda self, other, alpha=1: scaled(mnp.subtract)(other, self, alpha),
        "maximum max.other": binary(mnp.maximum),
        "minimum min.other": binary(mnp.minimum),
        "fmax": binary(
            lambda x, y: mnp.where((x >= y) | mnp.isnan(y), x, y)
        ),  # the first one of equals, in derivatives
        "fmin": binary(lambda x, y: mnp.where((x <= y) | mnp.isnan(y), x, y)),
        "remainder": binary(remainder),
        "fmod": binary(mnp.fmod),
        "floor_divide": binary(mnp.floor_divide),
        "eq": binary(mnp.equal),
        "ne not_equal": binary(mnp.not_equal),
        "lt less": binary(mnp.less),
        "le less_equal": binary(mnp.less_equal),
        "gt greater": binary(mnp.greater),
        "ge greater_equal": binary(mnp.greater_equal),
        "bitwise_and __and__": binary(mnp.bitwise_and),
        "bitwise_or __or__": binary(mnp.bitwise_or),
        "bitwise_xor __xor__": binary(mnp.bitwise_xor),
        "bitwise_left_shift __lshift__": binary(mnp.left_shift),
        "bitwise_right_shift __rshift__": binary(mnp.right_shift),
        "atan2 arctan2": binary_of_floats(atan2),
        "true_divide": binary_of_floats(mnp.true_divide),
        "hypot": binary(mnp.hypot),
        "copysign": binary_of_floats(copysign),
        "logaddexp": binary(logaddexp),
        "logaddexp2": binary(mnp.logaddexp2),
        "logical_and": logical(mnp.logical_and),
        "logical_or": logical(mnp.logical_or),
        "logical_xor": logical(mnp.logical_xor),
        "gcd": binary(mnp.gcd),
        "lcm": binary(mnp.lcm),
    }
)


rows({"mul multiply": scaling(mnp.multiply)})


@register("aten.div", "aten.divide")
def div(self: Any, other: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None and dtypes.is_inexact(common_dtype(self, other)):
        return scaling(mnp.true_divide)(self, other)
    self, other = promoted(self, other)
    if rounding_mode is None:
        return mnp.true_divide(to_float(self), to_float(other))
    if rounding_mode == "floor":
        return mnp.floor_divide(self, other)
    return mnp.trunc(self / other) if dtypes.is_inexact(self.dtype) else lax.div(*mnp.broadcast_arrays(self, other))


@register("aten.float_power")
def float_power(self: Any, exponent: Any) -> Any:
    complex_ = dtypes.is_complex(common_dtype(self, exponent))
    dtype = array_dtype(torch.complex128 if complex_ else torch.float64)
    return power(cast(self, dtype), cast(exponent, dtype) if isinstance(exponent, Typed) else exponent)


@register("aten.pow")
def power(self: Any, exponent: Any) -> Any:
    dtype = common_dtype(self, exponent)
    whole = isinstance(exponent, (int, float)) and float(exponent).is_integer() and abs(exponent) < 2**31
    if whole and dtypes.is_inexact(dtype):
        return mnp.power(cast(self, dtype), int(exponent))  # by multiplications, whose derivative exists at 0
    if isinstance(exponent, float) and exponent == 0.5:
        return mnp.sqrt(cast(self, dtype))
    return mnp.power(cast(self, dtype), cast(exponent, dtype))


@register("aten.clamp", "aten.clip")
def clamp(self: Any, min: Any = None, max: Any = None) -> Any:
    """The derivative at the bounds is 1, and of NaN 0, as in torch."""
    self, low, high = promoted(self, min, max)
    out = self if low is None else _bounded(self >= low, self < low, self, low)
    return out if high is None else _bounded(out <= high, out > high, out, high)


def _bounded(is_inside: Any, is_outside: Any, x: Any, bound: Any) -> Any:
    """``x`` inside, ``bound`` outside; NaN where one of them is."""
    if not dtypes.is_inexact(x.dtype):
        return mnp.where(is_outside, bound, x)
    return mnp.where(is_inside, x, mnp.where(is_outside, bound, lax.stop_gradient(x + bound)))


register("aten.clamp_min")(lambda self, min: clamp(self, min))
register("aten.clamp_max")(lambda self, max: clamp(self, None, max))


@register("aten.where")
def where(condition: Any, self: Any, other: Any) -> Any:
    self, other = promoted(self, other)
    return mnp.where(condition, self, other)


@register("aten.masked_fill")
def masked_fill(self: Any, mask: Any, value: Any) -> Any:
    return mnp.where(mask, cast(value, self.dtype), self)


@register("aten.round")
def round_(self: Any, decimals: int = 0) -> Any:
    return mnp.round(self, decimals)


@register("aten.lerp")
@in_single
def lerp(self: Any, end: Any, weight: Any) -> Any:
    self, end = promoted(self, end)
    return self + cast(weight, self.dtype) * (end - self)


@register("aten.addcmul")
@in_single
def addcmul(self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    self, a, b = promoted(self, tensor1, tensor2)
    return self + cast(value, self.dtype) * a * b


@register("aten.addcdiv")
@in_single
def addcdiv(self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    self, a, b = map(to_float, promoted(self, tensor1, tensor2))
    return self + cast(value, self.dtype) * (a / b)


@register("aten.nan_to_num")
def nan_to_num(self: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    return mnp.nan_to_num(self, nan=nan or 0.0, posinf=posinf, neginf=neginf)


@register("aten.complex")
def complex_(real: Any, imag: Any) -> Any:
    return lax.complex(*mnp.broadcast_arrays(*promoted(real, imag)))


@register("aten.polar")
def polar(abs: Any, angle: Any) -> Any:
    return lax.complex(abs * mnp.cos(angle), abs * mnp.sin(angle))


@register("aten.view_as_complex")
def view_as_complex(self: Any) -> Any:
    return lax.complex(self[..., 0], self[..., 1])


@register("aten.view_as_real")
def view_as_real(self: Any) -> Any:
    return mnp.stack([mnp.real(self), mnp.imag(self)], -1)


@register("prims.fma")
def fma(a: Any, b: Any, c: Any) -> Any:
    return a * b + c
