"""Uniform and normal floats from random bits, as ``jax.random`` generates them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import (
    BitcastConvert,
    add,
    convert,
    erf_inv,
    max_,
    mul,
    or_,
    rem,
    shift_right_logical,
    sub,
)
from meshwright.ops.elementwise.table import scalar_like as _scalar_like
from meshwright.ops.random.bits import random_bits


def bits_needed(dtype: np.dtype) -> int:
    """The number of bits drawn for a number of ``dtype``."""
    info = ml_dtypes.finfo(dtype)
    return max(info.bits, 8) if info.nmant >= 8 else 8


def unit_of(drawn: Any, dtype: np.dtype) -> Any:
    """Uniform in [0, 1): random bits as the mantissa of a number in [1, 2), minus 1."""
    info = ml_dtypes.finfo(dtype)
    width = dtypes.bit_width(typeof(drawn).dtype)
    unsigned = np.dtype(f"uint{info.bits}")
    drawn = convert(drawn, unsigned)
    one = np.ones((), dtype).view(unsigned)
    mantissa = shift_right_logical(drawn, _scalar_like(width - info.nmant, drawn))
    return sub(BitcastConvert(dtype).bind(or_(mantissa, np.asarray(one))), np.ones((), dtype))


def scaled(unit: Any, low: Any, high: Any) -> Any:
    """Uniform in [low, high), from numbers in [0, 1)."""
    return max_(low, add(mul(unit, sub(high, low)), low))


def normal_of(drawn: Any, dtype: np.dtype) -> Any:
    """Standard normal, by the inverse distribution function."""
    low = np.nextafter(np.array(-1.0, dtype), np.array(0.0, dtype), dtype=dtype)
    return mul(np.array(np.sqrt(2), dtype), erf_inv(scaled(unit_of(drawn, dtype), low, np.array(1.0, dtype))))


def uniform_between(key: Any, low: Any, high: Any, out: ShapedArray) -> Any:
    """Uniform floats or integers in [low, high), of ``out``'s shape and dtype."""
    if dtypes.is_float(out.dtype):
        drawn = random_bits(key, bits_needed(out.dtype), out.shape)
        return scaled(unit_of(drawn, out.dtype), low, high)
    width = max(32, dtypes.bit_width(out.dtype))
    drawn = random_bits(key, width, out.shape)
    span = convert(sub(high, low), np.dtype(f"uint{width}"))
    return add(convert(rem(drawn, span), out.dtype), low)
