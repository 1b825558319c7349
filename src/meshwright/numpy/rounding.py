"""Rounding: to integers, and to decimal places."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from meshwright.core import dtypes
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import no_out, static_int
from meshwright.numpy.compiled import compiled
from meshwright.numpy.promotion import aval_of, operands, scalar_like, strong_array
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import convert, select
from meshwright.runtime.values import as_result


def rint(x: Any, /) -> Any:
    """Nearest integer as a float; halves are rounded to even.

    Args:
      x: array or number of any shape, which is also the result's.

    Raises:
      ArgumentTypeError, DTypeError: ``x`` is not an array, or the function is not defined for its dtype.

    >>> rint(2.5).item()
    2.0
    """
    if not dtypes.is_inexact(aval_of(x, "rint").dtype):
        return convert(operands("rint", (x,))[0], dtypes.default_float())
    return round(*operands("rint", (x,)))


def round(a: Any, decimals: int = 0, out: None = None) -> Any:
    """Round each element to ``decimals`` places, halves to even. Integers are unchanged for ``decimals >= 0``.

    Raises:
      ArgumentTypeError: ``a`` is not an array, or ``decimals`` not an integer.

    >>> round(2.567, 1).item() < 2.61
    True
    """
    no_out(out, "round")
    (x,), decimals = operands("round", (a,)), static_int(decimals, "round", "decimals")
    if not dtypes.is_inexact(typeof(x).dtype):
        if decimals >= 0:
            return as_result(x)
        return _rounded_integers(x, -decimals)
    if dtypes.is_complex(typeof(x).dtype):
        return ops.complex_(round(ops.real(x), decimals), round(ops.imag(x), decimals))
    if decimals == 0:
        return ops.round_half_even(x)
    return strong_array(_rounded_floats(x, decimals))


@compiled(static_argnums=(1,))
def _rounded_integers(x: Any, places: int) -> Any:
    """To multiples of ``10**places``, exactly; 0 if half of that is above any integer of the dtype."""
    dtype = typeof(x).dtype
    if dtypes.is_bool(dtype) or 10**places > 2 * (int(ml_dtypes.iinfo(dtype).max) + 1):
        return ops.and_(x, scalar_like(0, x))
    unit, zero = scalar_like(10**places, x), scalar_like(0, x)
    rest = ops.rem(x, unit)  # of the sign of x, so that what is left fits
    low = ops.sub(x, rest)
    size = rest if dtypes.is_unsigned(dtype) else ops.abs_(rest)
    other = ops.sub(unit, size)
    odd = ops.ne(ops.rem(ops.div(low, unit), scalar_like(2, x)), zero)
    away = ops.or_(ops.gt(size, other), ops.and_(ops.eq(size, other), odd))
    step = select(ops.lt(rest, zero), ops.sub(zero, unit), unit)
    return select(away, ops.add(low, step), low)


def _rounded_floats(x: Any, decimals: int) -> Any:
    """To multiples of ``10**-decimals``; where these are finer than floats can tell, ``x`` itself."""
    dtype = typeof(x).dtype
    if dtype.itemsize < 4:
        return convert(_rounded_floats(convert(x, dtypes.float32), decimals), dtype)
    size = -decimals if decimals < 0 else decimals
    if size > np.log10(np.finfo(dtype).max):
        return ops.stop_gradient(x) if decimals > 0 else select(ops.is_finite(x), ops.mul(x, scalar_like(0, x)), x)
    factor = scalar_like(10.0**size, x)
    if decimals < 0:
        return ops.mul(ops.round_half_even(ops.div(x, factor)), factor)
    scaled = ops.mul(x, factor)
    return select(ops.is_finite(scaled), ops.div(ops.round_half_even(scaled), factor), ops.stop_gradient(x))


around = round
