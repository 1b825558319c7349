"""Ops whose result depends on the bit width of a narrow type, written with byte types for XLA's CPU compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from meshwright.core import dtypes
from meshwright.core.source import SourceLocation
from meshwright.ir.jaxpr import Atom, JaxprEqn, Var
from meshwright.ir.op import Op
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import traced
from meshwright.ops.control.call import Jit
from meshwright.ops.elementwise.table import (
    BitcastConvert,
    abs_,
    add,
    and_,
    clz,
    convert,
    eq,
    ge,
    gt,
    le,
    lt,
    mul,
    ne,
    not_,
    or_,
    population_count,
    scalar_like,
    select,
    shift_left,
    shift_right_arithmetic,
    shift_right_logical,
    sub,
    xor,
)
from meshwright.ops.shape.broadcast_reduce import match_shape


def called(
    fun: Callable[..., list[Any]], operands: Sequence[Atom], results: Sequence[Var], source: SourceLocation
) -> JaxprEqn:
    """An equation that calls ``fun``, traced at the types of ``operands``, and binds ``results``."""
    name = getattr(fun, "func", fun).__name__.strip("_")
    jaxpr = traced(fun, name, tuple(a.aval for a in operands))
    return JaxprEqn(Jit(name, jaxpr), operands, results, source)


# --- integers below a byte ----------------------------------------------------------------------------------
def _unsigned(x: Any) -> Any:
    """The bits of ``x``, zero-extended to a byte."""
    byte = convert(convert(x, dtypes.int8 if dtypes.is_signed(typeof(x).dtype) else dtypes.uint8), dtypes.uint8)
    return and_(byte, np.uint8(2 ** dtypes.bit_width(typeof(x).dtype) - 1))


def _signed(x: Any) -> Any:
    """The bits of ``x``, sign-extended to a byte."""
    half = np.int8(2 ** (dtypes.bit_width(typeof(x).dtype) - 1))
    return sub(xor(convert(_unsigned(x), dtypes.int8), half), half)


def _count_ones(x: Any) -> list[Any]:
    return [convert(population_count(_unsigned(x)), typeof(x).dtype)]


def _leading_zeros(x: Any) -> list[Any]:
    dtype = typeof(x).dtype
    return [convert(sub(clz(_unsigned(x)), np.uint8(8 - dtypes.bit_width(dtype))), dtype)]


def _shifted_in_zeros(x: Any, y: Any) -> list[Any]:
    return [convert(shift_right_logical(_unsigned(x), _unsigned(y)), typeof(x).dtype)]


def _shifted_in_signs(x: Any, y: Any) -> list[Any]:
    return [convert(shift_right_arithmetic(_signed(x), convert(_unsigned(y), dtypes.int8)), typeof(x).dtype)]


def _high_half(x: Any, y: Any) -> list[Any]:
    dtype = typeof(x).dtype
    if dtypes.is_signed(dtype):
        whole, shift = mul(_signed(x), _signed(y)), shift_right_arithmetic
    else:
        whole, shift = mul(_unsigned(x), _unsigned(y)), shift_right_logical
    return [convert(shift(whole, scalar_like(dtypes.bit_width(dtype), whole)), dtype)]


#: implementations for integers below a byte, by op name
BELOW_A_BYTE: dict[str, Callable[..., list[Any]]] = {
    "population_count": _count_ones,
    "clz": _leading_zeros,
    "shift_right_logical": _shifted_in_zeros,
    "shift_right_arithmetic": _shifted_in_signs,
    "mulhi": _high_half,
}

# --- conversions --------------------------------------------------------------------------------------------
#: float types without -0, whose bit pattern is NaN
_UNSIGNED_ZERO = frozenset(map(dtypes.as_dtype, ("float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz")))


def _next_after(x: Any, y: Any) -> list[Any]:
    """``nextafter`` for types without -0, on their bits: the magnitude plus or minus one; 0 has no sign."""
    shape = max((typeof(v) for v in (x, y)), key=lambda a: a.ndim)
    a, b = (convert(match_shape(v, shape), dtypes.float32) for v in (x, y))
    zero, one, first = np.uint8(0), np.uint8(1), np.uint8(128)
    bits = BitcastConvert(dtypes.uint8).bind(match_shape(x, shape))
    up, size = gt(b, a), and_(bits, np.uint8(127))
    grows = or_(eq(size, zero), eq(up, lt(bits, first)))
    size = select(grows, add(size, one), sub(size, one))
    sign = select(eq(a, np.float32(0)), not_(up), ge(bits, first))
    moved = or_(size, select(and_(sign, ne(size, zero)), match_shape(first, typeof(bits)), sub(bits, bits)))
    known = and_(eq(a, a), eq(b, b))
    after = select(eq(a, b), bits, select(known, moved, match_shape(first, typeof(bits))))
    return [BitcastConvert(typeof(x).dtype).bind(after)]


def _without_small(dtype: np.dtype, x: Any) -> list[Any]:
    """``x`` converted, with 0 for numbers that round to it: XLA may convert small negative numbers to -0."""
    least = scalar_like(float(ml_dtypes.finfo(dtype).smallest_subnormal) / 2, x)
    return [convert(select(le(abs_(x), least), match_shape(scalar_like(0, x), typeof(x)), x), dtype)]


def _of_exponents(x: Any) -> list[Any]:
    """``float8_e8m0fnu`` converted to float64, including its smallest number, which XLA converts to 0."""
    bits = convert(BitcastConvert(dtypes.uint8).bind(x), dtypes.int64)
    bias = 1023 - 127
    powers = BitcastConvert(dtypes.float64).bind(shift_left(add(bits, np.int64(bias)), np.int64(52)))
    return [select(eq(bits, np.int64(255)), match_shape(np.float64(np.nan), typeof(powers)), powers)]


def _to_exponents(x: Any) -> list[Any]:
    """float64 converted to ``float8_e8m0fnu``, including its smallest number, of which XLA makes NaN."""
    low, high, scale = (match_shape(scalar_like(2.0**n, x), typeof(x)) for n in (-127, -126, 64))
    is_small = and_(ge(x, low), lt(x, high))
    scaled = convert(select(is_small, mul(x, scale), x), dtypes.float8_e8m0fnu)
    bits = BitcastConvert(dtypes.uint8).bind(scaled)
    smaller = select(is_small, sub(bits, match_shape(np.uint8(64), typeof(bits))), bits)
    return [BitcastConvert(dtypes.float8_e8m0fnu).bind(smaller)]


def written(op: Op, dtype: np.dtype) -> Callable[..., list[Any]] | None:
    """An implementation of an op on ``dtype`` if XLA's own is not always right, else None."""
    if dtype in _UNSIGNED_ZERO and op.name == "nextafter":
        return _next_after
    return BELOW_A_BYTE.get(op.name) if dtypes.is_integer(dtype) and dtypes.bit_width(dtype) < 8 else None


def special_conversion(before: np.dtype, after: np.dtype) -> Callable[..., list[Any]] | None:
    """An implementation of a conversion if XLA's own is not always right, else None."""
    if after in _UNSIGNED_ZERO and dtypes.is_float(before):
        return partial(_without_small, after)
    if before == dtypes.float64 and after == dtypes.float8_e8m0fnu:
        return _to_exponents
    return _of_exponents if before == dtypes.float8_e8m0fnu and after == dtypes.float64 else None
