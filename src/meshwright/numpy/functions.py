"""Exponentials, logarithms, trigonometric and special functions, and the parts of complex numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import Typed
from meshwright.ir.tracing import typeof
from meshwright.numpy.arithmetic import arctan2
from meshwright.numpy.complex_values import standard_values
from meshwright.numpy.creation import on_device
from meshwright.numpy.makers import unary
from meshwright.numpy.promotion import aval_of, is_arraylike, operands, scalar_like, strong_array
from meshwright.ops.elementwise import library as library_functions
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import convert, select
from meshwright.runtime.values import as_result


def _analytic(name: str, op: Any, what: str, example: tuple[str, str]) -> Any:
    return unary(name, standard_values(op), what, example, True)


exp = _analytic("exp", ops.exp, "e to the power of each element.", ("exp(0.0).item()", "1.0"))
exp2 = unary("exp2", ops.exp2, "2 to the power of each element.", ("exp2(3.0).item()", "8.0"), True)
expm1 = _analytic("expm1", ops.expm1, "``exp(x) - 1``, exact near 0.", ("expm1(0.0).item()", "0.0"))
log = _analytic("log", ops.log, "Natural logarithm.", ("log(1.0).item()", "0.0"))
log1p = _analytic("log1p", ops.log1p, "``log(1 + x)``, exact near 0.", ("log1p(0.0).item()", "0.0"))
sin = _analytic("sin", ops.sin, "Sine of an angle in radians.", ("sin(0.0).item()", "0.0"))
cos = _analytic("cos", ops.cos, "Cosine of an angle in radians.", ("cos(0.0).item()", "1.0"))
tan = _analytic("tan", ops.tan, "Tangent of an angle in radians.", ("tan(0.0).item()", "0.0"))
arcsin = asin = _analytic("arcsin", ops.asin, "Inverse sine, in radians.", ("arcsin(0.0).item()", "0.0"))
arccos = acos = _analytic("arccos", ops.acos, "Inverse cosine, in radians.", ("arccos(1.0).item()", "0.0"))
arctan = atan = _analytic("arctan", ops.atan, "Inverse tangent, in radians.", ("arctan(0.0).item()", "0.0"))
sinh = _analytic("sinh", ops.sinh, "Hyperbolic sine.", ("sinh(0.0).item()", "0.0"))
cosh = _analytic("cosh", ops.cosh, "Hyperbolic cosine.", ("cosh(0.0).item()", "1.0"))
tanh = _analytic("tanh", ops.tanh, "Hyperbolic tangent.", ("tanh(0.0).item()", "0.0"))
arcsinh = asinh = _analytic("arcsinh", ops.asinh, "Inverse hyperbolic sine.", ("arcsinh(0.0).item()", "0.0"))
arccosh = acosh = _analytic("arccosh", ops.acosh, "Inverse hyperbolic cosine.", ("arccosh(1.0).item()", "0.0"))
arctanh = atanh = _analytic("arctanh", ops.atanh, "Inverse hyperbolic tangent.", ("arctanh(0.0).item()", "0.0"))
erf = unary("erf", ops.erf, "The error function.", ("erf(0.0).item()", "0.0"), True)
erfc = unary("erfc", ops.erfc, "``1 - erf(x)``, exact for large x.", ("erfc(0.0).item()", "1.0"), True)
erf_inv = unary("erf_inv", ops.erf_inv, "Inverse of the error function.", ("erf_inv(0.0).item()", "0.0"), True)
gammaln = unary("gammaln", ops.lgamma, "Logarithm of |gamma(x)|.", ("gammaln(1.0).item()", "0.0"), True)
digamma = unary("digamma", ops.digamma, "Derivative of gammaln.", None, True)
for _special in (erf, erfc, erf_inv, gammaln, digamma):
    _special.__module__ = __name__  # in no public module of NumPy; pickle looks for it here


def _scaled(name: str, factor: float, what: str, example: tuple[str, str]) -> Any:
    return unary(name, lambda x: strong_array(ops.mul(x, scalar_like(factor, x))), what, example, True)


degrees = rad2deg = _scaled("degrees", 180 / np.pi, "Radians to degrees.", ("degrees(0.0).item()", "0.0"))
radians = deg2rad = _scaled("radians", np.pi / 180, "Degrees to radians.", ("radians(0.0).item()", "0.0"))


def _log_base(base: int) -> Any:
    def log_of(x: Any) -> Any:
        natural, scale = ops.log(x), np.log(base)
        if not dtypes.is_complex(typeof(x).dtype):
            return ops.div(natural, np.array(scale, typeof(x).dtype))
        # A complex quotient would turn infinite parts into NaN.
        parts = [ops.div(p, np.array(scale, typeof(p).dtype)) for p in (ops.real(natural), ops.imag(natural))]
        return ops.complex_(*parts)

    return log_of


log2 = unary("log2", _log_base(2), "Logarithm to base 2.", ("log2(8.0).item()", "3.0"), True)
log10 = unary("log10", _log_base(10), "Logarithm to base 10.", ("log10(1.0).item()", "0.0"), True)


def _sinc(x: Any) -> Any:
    return strong_array(library_functions.sinc(x))


sinc = unary("sinc", _sinc, "``sin(pi x) / (pi x)``, 1 at 0.", ("sinc(0.0).item()", "1.0"), True)


# --- complex numbers ----------------------------------------------------------------------------------------
def _is_real(dtype: np.dtype) -> bool:
    return not dtypes.is_complex(dtype)


real = unary("real", ops.real, "The real part.", ("real(1 + 2j).item()", "1.0"), unchanged=_is_real)
conjugate = conj = unary(
    "conjugate", ops.conj, "The complex conjugate.", ("conjugate(1 + 2j).item()", "(1-2j)"), unchanged=_is_real
)


def _imag(x: Any) -> Any:
    if dtypes.is_complex(typeof(x).dtype):
        return ops.imag(x)
    return convert(as_result(ops.zeros_like(x)), typeof(x).dtype, typeof(x).weak_type)


imag = unary("imag", _imag, "The imaginary part; zeros for real arrays.", ("imag(1 + 2j).item()", "2.0"))


def angle(z: Any, deg: bool = False) -> Any:
    """The argument of complex numbers, in radians or degrees; 0 or pi for real ones.

    >>> angle(1.0).item()
    0.0
    """
    (z,) = operands("angle", (z,))
    dtype = typeof(z).dtype
    if dtypes.is_complex(dtype):
        result = arctan2(ops.imag(z), ops.real(z))
    else:
        weak = typeof(z).weak_type and typeof(z).ndim > 0 and dtypes.is_float(dtype)  # as in JAX
        z = convert(z, dtype if dtypes.is_float(dtype) else dtypes.default_float(), weak)
        result = arctan2(scalar_like(0, z), z)
    return degrees(result) if deg else result


def isreal(x: Any) -> Any:
    """Whether the imaginary part is 0.

    >>> isreal(1 + 2j).item()
    False
    """
    part = imag(x)
    return ops.eq(part, scalar_like(0, part))


def iscomplex(x: Any) -> Any:
    """Whether the imaginary part is not 0.

    >>> iscomplex(1 + 2j).item()
    True
    """
    part = imag(x)
    return ops.ne(part, scalar_like(0, part))


def isrealobj(x: Any) -> bool:
    """Whether the dtype is not complex.

    >>> isrealobj(1.0)
    True
    """
    return _is_real(aval_of(x, "isrealobj").dtype) if is_arraylike(x) else np.isrealobj(x)


def iscomplexobj(x: Any) -> bool:
    """Whether the dtype is complex.

    >>> iscomplexobj(1.0)
    False
    """
    return not isrealobj(x)


def astype(x: Any, dtype: Any, /, *, copy: bool = False, device: Any = None) -> Any:
    """Convert ``x`` to ``dtype``. Complex to real drops the imaginary part; to bool is ``x != 0``.

    Args:
      x: array of any shape, which is also the result's; the result is not weakly typed.
      dtype: a dtype, its name, or a Python number type.
      device: a device or sharding to place the result on.

    Raises:
      DTypeError: arrays cannot have this dtype.

    >>> astype(1.7, "int32").item()
    1
    """
    target = dtypes.default_float() if dtype is None else dtypes.requested(dtype, "astype")
    aval = aval_of(x, "astype")
    if not isinstance(x, Typed):
        (x,) = operands("astype", (x,))
        aval = typeof(x)
    if aval.dtype == target and not aval.weak_type and isinstance(x, Typed):
        return on_device(ops.copy(x) if copy else x, device, "astype")
    return on_device(as_result(convert(x, target)), device, "astype")


def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """Replace NaN and infinities by numbers (default: 0 and the largest and smallest of the dtype).

    >>> nan_to_num(float("nan")).item()
    0.0
    """
    (x,) = operands("nan_to_num", (x,))
    dtype = typeof(x).dtype
    if not dtypes.is_inexact(dtype):
        return as_result(x)
    if dtypes.is_complex(dtype):
        parts = (nan_to_num(p, copy, nan, posinf, neginf) for p in (ops.real(x), ops.imag(x)))
        return convert(ops.complex_(*parts), dtype)
    x = convert(x, dtype)  # the result is not weakly typed
    info = ml_dtypes.finfo(dtype)
    high = info.max if posinf is None else posinf
    low = info.min if neginf is None else neginf
    x = select(ops.ne(x, x), scalar_like(nan, x), x)
    x = select(ops.eq(x, scalar_like(np.inf, x)), scalar_like(high, x), x)
    return select(ops.eq(x, scalar_like(-np.inf, x)), scalar_like(low, x), x)
