"""Arithmetic: sums, products, quotients, powers, rounding, minima and maxima of two, absolute values and signs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from meshwright.core import dtypes
from meshwright.errors import DTypeError
from meshwright.ir.tracing import Tracer, typeof
from meshwright.numpy.axes import no_out
from meshwright.numpy.compiled import compiled
from meshwright.numpy.complex_values import sign_bit, standard_values
from meshwright.numpy.makers import binary, unary
from meshwright.numpy.promotion import (
    aval_of,
    broadcast_shapes,
    is_python_number,
    operands,
    scalar_like,
    spread,
    strong_array,
)
from meshwright.ops.elementwise import library
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import convert, select
from meshwright.runtime.array import Array

add = binary("add", ops.add, "Sum of corresponding elements; of bools, logical or.", ("add(2, 3).item()", "5"))
subtract = binary("subtract", ops.sub, "Difference ``x1 - x2``.", ("subtract(2, 3).item()", "-1"))
multiply = binary("multiply", ops.mul, "Product of corresponding elements.", ("multiply(2, 3).item()", "6"))
divide = true_divide = binary(
    "divide", ops.div, "Quotient ``x1 / x2``, a float or complex number.", ("divide(1, 2).item()", "0.5"), True
)
maximum = binary(
    "maximum", ops.max_, "The larger of two elements; NaN if one is. Of complex numbers by real, then imaginary part.",
    ("maximum(2, 3).item()", "3"),
)  # fmt: skip
minimum = binary(
    "minimum",
    ops.min_,
    "The smaller of two elements; NaN if one is. Of complex numbers by real, then imaginary part.",
    ("minimum(2, 3).item()", "2"),
)
nextafter = binary("nextafter", ops.nextafter, "The next float after ``x1`` towards ``x2``.", None, True)
arctan2 = atan2 = binary(
    "arctan2", ops.atan2, "Angle of the point (x2, x1), in radians.", ("arctan2(0.0, 1.0).item()", "0.0"), True
)


def _negate(x: Any) -> Any:
    if dtypes.is_unsigned(typeof(x).dtype):
        return ops.sub(scalar_like(0, x), x)
    return ops.neg(x)


def _unsigned_or_bool(dtype: np.dtype) -> bool:
    return dtypes.is_unsigned(dtype) or dtypes.is_bool(dtype)


def _exact(dtype: np.dtype) -> bool:
    return dtypes.is_integer(dtype) or dtypes.is_bool(dtype)


@compiled
def _sign(x: Any) -> Any:
    dtype = typeof(x).dtype
    if dtypes.is_bool(dtype):
        raise DTypeError("sign: defined for numbers, got bool; convert it with .astype")
    if dtypes.is_unsigned(dtype):
        return convert(ops.ne(x, scalar_like(0, x)), dtype)
    if dtypes.is_inexact(dtype):  # the sign of either zero is +0
        return select(ops.eq(x, scalar_like(0, x)), scalar_like(0, x), ops.sign(x))
    return ops.sign(x)


def _trunc(x: Any) -> Any:
    return select(ops.lt(x, scalar_like(0, x)), ops.ceil(x), ops.floor(x))


def _fabs(x: Any) -> Any:
    if dtypes.is_complex(typeof(x).dtype):
        raise DTypeError(f"fabs: defined for real numbers, got dtype {typeof(x).dtype}; use abs")
    return ops.abs_(x)


negative = unary("negative", _negate, "Each element with its sign changed.", ("negative(2).item()", "-2"))
positive = unary(
    "positive", lambda x: x, "Each element as it is.", ("positive(2).item()", "2"), unchanged=lambda d: True
)
abs = absolute = unary(
    "absolute", ops.abs_, "Magnitude of each element.", ("absolute(-2).item()", "2"), unchanged=_unsigned_or_bool
)
fabs = unary("fabs", _fabs, "Magnitude of each element, as a float.", ("fabs(-2).item()", "2.0"), True)
sign = unary("sign", _sign, "-1, 0 or 1 with the sign of each element.", ("sign(-2.5).item()", "-1.0"))
sqrt = unary("sqrt", standard_values(ops.sqrt), "Square root.", ("sqrt(4.0).item()", "2.0"), True)
cbrt = unary("cbrt", ops.cbrt, "Cube root.", ("round(cbrt(8.0), 3).item()", "2.0"), True)
floor = unary("floor", ops.floor, "Rounded down.", ("floor(1.7).item()", "1.0"), unchanged=_exact)
ceil = unary("ceil", ops.ceil, "Rounded up.", ("ceil(1.2).item()", "2.0"), unchanged=_exact)
trunc = fix = unary("trunc", _trunc, "Rounded towards zero.", ("trunc(-1.7).item()", "-1.0"), unchanged=_exact)


def _square(x: Any) -> Any:
    return convert(x, dtypes.int32) if dtypes.is_bool(typeof(x).dtype) else ops.square(x)


square = unary("square", _square, "Each element times itself.", ("square(3).item()", "9"))
rsqrt = unary("rsqrt", ops.rsqrt, "One over the square root.", ("rsqrt(4.0).item()", "0.5"), True)


def reciprocal(x: Any, /) -> Any:
    """``1 / x`` as a float or complex number.

    >>> reciprocal(4.0).item()
    0.25
    """
    (x,) = operands("reciprocal", (x,), to_inexact=True)
    return ops.div(scalar_like(1, x), x)


def _as_integers(x: Any, y: Any) -> tuple[Any, Any]:
    """Two bools as int32, in which JAX computes with them even with 64-bit types enabled."""
    return convert(x, dtypes.int32), convert(y, dtypes.int32)


def _real_operands(name: str, x1: Any, x2: Any) -> tuple[Any, Any]:
    """Both operands in one real dtype, bools as integers."""
    x, y = operands(name, (x1, x2))
    dtype = typeof(x).dtype
    if dtypes.is_complex(dtype):
        raise DTypeError(f"{name}: defined for real numbers, got dtype {dtype}")
    return _as_integers(x, y) if dtypes.is_bool(dtype) else (x, y)


def remainder(x1: Any, x2: Any, /) -> Any:
    """Remainder of floored division; has the sign of ``x2``. 0 if an integer ``x2`` is 0.

    Args:
      x1, x2: real arrays or numbers whose shapes broadcast together.

    >>> remainder(-7, 3).item()
    2
    """
    positive_integer = type(x2) is int and x2 > 0
    x, y = _real_operands("remainder", x1, x2)
    dtype = typeof(x).dtype
    if dtypes.is_float(dtype):
        return library.floor_remainder(x, y)
    return _remainder(x, y, positive_integer and dtypes.is_integer(dtype))


@compiled(static_argnums=(2,))
def _remainder(x: Any, y: Any, positive_integer: bool) -> Any:
    dtype = typeof(x).dtype
    nil = scalar_like(0, x)
    if not positive_integer:
        y = select(ops.eq(y, scalar_like(0, y)), scalar_like(1, y), y)
    r = ops.rem(x, y)
    if dtypes.is_unsigned(dtype):
        return r
    if positive_integer:
        return select(ops.lt(r, nil), ops.add(r, y), r)
    differs = ops.ne(ops.lt(r, nil), ops.lt(y, nil))
    return select(ops.and_(differs, ops.ne(r, nil)), ops.add(r, y), r)


mod = remainder


def fmod(x1: Any, x2: Any, /) -> Any:
    """Remainder of truncated division; has the sign of ``x1``.

    >>> fmod(-7, 3).item()
    -1
    """
    x, y = operands("fmod", (x1, x2))
    if dtypes.is_bool(typeof(x).dtype):
        x, y = _as_integers(x, y)
    if dtypes.is_integer(typeof(x).dtype):
        y = select(ops.eq(y, scalar_like(0, y)), scalar_like(1, y), y)
    return ops.rem(x, y)


def floor_divide(x1: Any, x2: Any, /) -> Any:
    """``x1 / x2`` rounded down, in the promoted dtype. Infinities are treated as in Python: an infinite ``x1`` gives
    NaN, an infinite ``x2`` 0 or -1.

    >>> floor_divide(-7, 2).item()
    -4
    """
    x, y = _real_operands("floor_divide", x1, x2)
    return ops.div(x, y) if dtypes.is_unsigned(typeof(x).dtype) else _floor_divide(x, y)


@compiled
def _floor_divide(x: Any, y: Any) -> Any:
    dtype = typeof(x).dtype
    nil, one = scalar_like(0, x), scalar_like(1, x)
    r = ops.rem(x, y)
    if dtypes.is_integer(dtype):
        q = ops.div(x, y)
        wrong = ops.and_(ops.ne(ops.sign(x), ops.sign(y)), ops.ne(r, nil))
        return select(wrong, ops.sub(q, one), q)
    # x - r is a multiple of y, so the quotient is an integer up to rounding.
    q = ops.div(ops.sub(x, r), y)
    wrong = ops.and_(ops.ne(r, nil), ops.ne(ops.sign(y), ops.sign(r)))
    whole = ops.round_half_away(select(wrong, ops.sub(q, one), q))
    # The quotient of zeros is exact, with its sign; any other quotient that rounds down to zero is positive.
    exact = ops.or_(ops.eq(x, nil), ops.eq(y, nil))
    return select(exact, ops.floor(ops.div(x, y)), select(ops.eq(whole, nil), nil, whole))


def divmod(x1: Any, x2: Any, /) -> tuple[Any, Any]:
    """``(floor_divide(x1, x2), remainder(x1, x2))``.

    >>> tuple(v.item() for v in divmod(7, 2))
    (3, 1)
    """
    return floor_divide(x1, x2), remainder(x1, x2)


def power(x1: Any, x2: Any, /) -> Any:
    """``x1`` to the power ``x2``. An integer exponent that is known is expanded into multiplications.

    As in JAX, that is a number or a scalar that is not traced, whatever its dtype, and the result has the dtype of
    ``x1``. Integers wrap around. With negative exponents in an array, integer powers are the quotient rounded towards
    zero.

    Raises:
      DTypeError: an integer base with a negative scalar exponent.

    >>> power(2, 10).item()
    1024
    """
    base, x2 = aval_of(x1, "power").dtype, _known_exponent(x2)
    if type(x2) is bool and not dtypes.is_bool(base):
        x2 = int(x2)
    if type(x2) is int and not isinstance(x1, (bool, np.bool_)):
        (x,) = operands("power", (x1,))
        x = convert(x, dtypes.int32) if dtypes.is_bool(typeof(x).dtype) else x
        _refuse_quotients(typeof(x).dtype, x2)
        return ops.square(x) if x2 == 2 else ops.integer_pow(x, x2)
    x, y = operands("power", (x1, x2))
    dtype, by = typeof(x).dtype, aval_of(x2, "power", 1)
    if dtypes.is_bool(dtype):
        x, y = _as_integers(x, y)
    elif dtypes.is_inexact(dtype) and not is_python_number(x2) and dtypes.is_integer(by.dtype):
        (y,) = operands("power", (x2,))  # stays an integer, so that it has no derivative, which would fail at 0
        shape = broadcast_shapes(typeof(x).shape, typeof(y).shape, name="power")
        x, y = (spread(v, shape) if typeof(v).shape else v for v in (x, y))
    as_base = by.weak_type or dtypes.is_bool(by.dtype) or not dtypes.is_inexact(base)
    weak = typeof(x).weak_type and dtypes.is_inexact(dtype) and as_base
    return convert(ops.pow_(x, y), typeof(x).dtype, weak)


pow = power


def _known_exponent(x: Any) -> Any:
    """Integer scalars that are not traced as Python's, and anything else as it is."""
    value = x.concrete() if isinstance(x, Tracer) else x
    aval = typeof(value) if isinstance(value, (Array, np.ndarray, np.integer)) else None
    if aval is None or aval.ndim or not dtypes.is_integer(aval.dtype):
        return x
    is_here = not isinstance(value, Array) or value.is_fully_addressable
    return int(np.asarray(value)) if is_here else x


def _refuse_quotients(dtype: np.dtype, exponent: int) -> None:
    if exponent < 0 and dtypes.is_integer(dtype):
        raise DTypeError(
            f"power: integers ({dtype}) cannot be raised to the negative power {exponent}; convert to float first"
        )


def float_power(x1: Any, x2: Any, /) -> Any:
    """``x1 ** x2`` in a float or complex dtype.

    >>> float_power(2, -1).item()
    0.5
    """
    return ops.pow_(*operands("float_power", (x1, x2), to_inexact=True))


@compiled
def _fmax(x: Any, y: Any) -> Any:
    return select(ops.or_(ops.gt(x, y), ops.ne(y, y)), x, y)


@compiled
def _fmin(x: Any, y: Any) -> Any:
    return select(ops.or_(ops.lt(x, y), ops.ne(y, y)), x, y)


def fmax(x1: Any, x2: Any) -> Any:
    """The larger of two elements; if one is NaN, the other.

    >>> fmax(float("nan"), 2.0).item()
    2.0
    """
    return _fmax(*operands("fmax", (x1, x2)))


def fmin(x1: Any, x2: Any) -> Any:
    """The smaller of two elements; if one is NaN, the other.

    >>> fmin(float("nan"), 2.0).item()
    2.0
    """
    return _fmin(*operands("fmin", (x1, x2)))


def _weak_scalars(name: str, x1: Any, x2: Any) -> Sequence[Any]:
    """Inexact operands, weakly typed only if both are scalars; elsewhere a number beside bools makes a weak array."""
    pair = operands(name, (x1, x2), to_inexact=True)
    return [convert(x, typeof(x).dtype) for x in pair] if any(typeof(x).ndim for x in pair) else pair


def hypot(x1: Any, x2: Any, /) -> Any:
    """``sqrt(x1**2 + x2**2)`` without intermediate overflow.

    Raises:
      DTypeError: complex operands.

    >>> hypot(3.0, 4.0).item()
    5.0
    """
    x, y = _weak_scalars("hypot", x1, x2)
    if dtypes.is_complex(typeof(x).dtype):
        raise DTypeError(f"hypot: defined for real numbers, got {typeof(x).dtype}; take abs of them first")
    return _hypot(x, y)


@compiled
def _hypot(x: Any, y: Any) -> Any:
    a, b, top = ops.abs_(x), ops.abs_(y), scalar_like(np.inf, x)
    large, infinite = ops.max_(a, b), ops.or_(ops.eq(a, top), ops.eq(b, top))  # infinite even if the other is NaN
    simple = ops.or_(infinite, ops.le(large, scalar_like(dtypes.most_flushed(typeof(x).dtype), large)))
    unit = ops.stop_gradient(select(simple, scalar_like(1, large), large))  # the result does not depend on it
    squares = ops.add(ops.square(ops.div(x, unit)), ops.square(ops.div(y, unit)))
    size = ops.mul(unit, ops.sqrt(select(simple, unit, squares)))
    return select(simple, select(infinite, top, large), size)


def copysign(x1: Any, x2: Any, /) -> Any:
    """The magnitude of ``x1`` with the sign of ``x2``; -0.0 counts as negative.

    >>> copysign(2.0, -0.0).item()
    -2.0
    """
    x, y = operands("copysign", (x1, x2), to_inexact=True)
    return convert(_copysign(x, y), typeof(x).dtype, typeof(x).weak_type and typeof(y).weak_type)


@compiled
def _copysign(x: Any, y: Any) -> Any:
    size = ops.abs_(x)
    return select(signbit(y), ops.neg(size), size)


def signbit(x: Any, /) -> Any:
    """Whether the sign bit is set: true for negative numbers, -0.0 and negative NaNs.

    >>> signbit(-0.0).item()
    True
    """
    (x,) = operands("signbit", (x,))
    dtype = typeof(x).dtype
    if dtypes.is_complex(dtype):
        raise DTypeError("signbit: defined for real numbers, got a complex dtype")
    if not dtypes.is_float(dtype):
        return ops.lt(x, scalar_like(0, x))
    return sign_bit(x)


def heaviside(x1: Any, x2: Any, /) -> Any:
    """0 for negative ``x1``, ``x2`` at 0, 1 for positive ``x1``.

    Raises:
      DTypeError: complex operands.

    >>> heaviside(-1.0, 0.5).item()
    0.0
    """
    x, y = operands("heaviside", (x1, x2), to_inexact=True)
    if dtypes.is_complex(typeof(x).dtype):
        raise DTypeError(f"heaviside: defined for real numbers, got dtype {typeof(x).dtype}; take .real")
    return _heaviside(strong_array(x), y)


@compiled
def _heaviside(x: Any, y: Any) -> Any:
    nil, one = scalar_like(0, x), scalar_like(1, x)
    stepped = select(ops.lt(x, nil), nil, select(ops.gt(x, nil), one, x))
    return select(ops.eq(x, nil), y, stepped)


def logaddexp(x1: Any, x2: Any, /) -> Any:
    """``log(exp(x1) + exp(x2))`` without overflow.

    >>> logaddexp(0.0, 0.0).item() == np.log(np.float32(2)).item()
    True
    """
    result = library.logaddexp(*operands("logaddexp", (x1, x2), to_inexact=True))
    return strong_array(result) if dtypes.is_complex(typeof(result).dtype) else result


def logaddexp2(x1: Any, x2: Any, /) -> Any:
    """``log2(2**x1 + 2**x2)`` without overflow.

    >>> logaddexp2(0.0, 0.0).item()
    1.0
    """
    x, y = _weak_scalars("logaddexp2", x1, x2)
    log2 = scalar_like(np.log(2), x)
    return ops.div(logaddexp(ops.mul(x, log2), ops.mul(y, log2)), log2)


def modf(x: Any, /, out: None = None) -> tuple[Any, Any]:
    """``(fractional part, whole part)``, both with the sign of ``x``.

    >>> tuple(v.item() for v in modf(-1.5))
    (-0.5, -1.0)
    """
    no_out(out, "modf")
    (x,) = operands("modf", (x,), to_inexact=True)
    infinite = ops.eq(ops.abs_(x), scalar_like(np.inf, x))
    return select(infinite, copysign(scalar_like(0, x), x), ops.rem(x, scalar_like(1, x))), _trunc(x)


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """Clamp each element to the range from ``min`` to ``max``; ``None`` means no bound.

    Args:
      x, min, max: arrays or numbers whose shapes broadcast together. Complex numbers are ordered by real, then
        imaginary part.

    Raises:
      IntegerRangeError: a lower bound above, or an upper bound below, all integers of the dtype.

    >>> clip(5, 0, 3).item()
    3
    >>> clip(np.array([3, 200], "uint8"), -1, 100).tolist()
    [3, 100]
    """
    if min is not None and not _beyond(min, x, below=True):
        x = maximum(min, x)
    if max is not None and not _beyond(max, x, below=False):
        x = minimum(max, x)
    return positive(x)


def _beyond(bound: Any, x: Any, below: bool) -> bool:
    """Whether a Python integer bound has no effect because it lies outside the dtype of ``x``."""
    dtype = aval_of(x, "clip").dtype
    if type(bound) is not int or not hasattr(x, "dtype") or not dtypes.is_integer(dtype):
        return False
    limits = ml_dtypes.iinfo(dtype)
    return bool(bound < limits.min if below else bound > limits.max)
