"""Integers and bits: gcd and lcm, packed bits, and the parts of floats."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from meshwright.api.control_flow import while_loop
from meshwright.core import dtypes
from meshwright.errors import ArgumentError, DTypeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import normal_axis, static_int
from meshwright.numpy.compiled import compiled
from meshwright.numpy.creation import asarray
from meshwright.numpy.logic import truth
from meshwright.numpy.manipulation import moveaxis, ravel, reshape
from meshwright.numpy.padding import pad
from meshwright.numpy.promotion import (
    aval_of,
    broadcast_shapes,
    operands,
    promotes_freely,
    scalar_like,
    spread,
    strong_array,
)
from meshwright.numpy.reductions import any as any_over
from meshwright.numpy.reductions import sum
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import convert, select


def _integers(name: str, x1: Any, x2: Any) -> list[Any]:
    pair = operands(name, (x1, x2))
    dtype = typeof(pair[0]).dtype
    if not dtypes.is_integer(dtype):
        raise DTypeError(f"{name}: defined for integers, got dtype {dtype}")
    shape = broadcast_shapes(*(typeof(x).shape for x in pair), name=name)
    return [spread(x, shape) for x in pair]


def _magnitude(x: Any) -> Any:
    return x if dtypes.is_unsigned(typeof(x).dtype) else ops.abs_(x)


@compiled
def _gcd(x: Any, y: Any) -> Any:
    nil = scalar_like(0, x)

    def step(pair: tuple[Any, Any]) -> tuple[Any, Any]:
        a, b = pair
        done = ops.eq(b, nil)
        rest = ops.rem(a, select(done, scalar_like(1, b), b))
        return select(done, a, b), select(done, b, rest)

    divisor, _ = while_loop(lambda pair: any_over(ops.ne(pair[1], nil)), step, (_magnitude(x), _magnitude(y)))
    return _magnitude(divisor)  # the least integer is its own magnitude, which makes the remainder negative


def gcd(x1: Any, x2: Any) -> Any:
    """The greatest common divisor of integers, by Euclid's algorithm; ``gcd(0, n)`` is n.

    Raises:
      DTypeError: not integers. ShapeError: shapes do not broadcast.

    >>> gcd(np.array([12, 0]), 18).tolist()
    [6, 18]
    """
    return strong_array(_gcd(*_integers("gcd", x1, x2)))


@compiled
def _lcm(x: Any, y: Any) -> Any:
    divisor = _gcd(x, y)
    nothing = ops.eq(divisor, scalar_like(0, x))
    share = ops.div(_magnitude(x), select(nothing, scalar_like(1, x), divisor))
    return ops.mul(share, _magnitude(y))


def lcm(x1: Any, x2: Any) -> Any:
    """The least common multiple of integers; 0 if either is 0.

    Raises:
      DTypeError: not integers. ShapeError: shapes do not broadcast.

    >>> lcm(4, np.array([6, 0])).tolist()
    [12, 0]
    """
    return strong_array(_lcm(*_integers("lcm", x1, x2)))


# --- packed bits --------------------------------------------------------------------------------------------
def _weights(bitorder: str, name: str) -> np.ndarray:
    if bitorder not in ("big", "little"):
        raise ArgumentError(f"{name}: bitorder must be 'big' or 'little', got {bitorder!r}")
    return np.arange(8, dtype=np.uint8)[:: -1 if bitorder == "big" else 1].copy()


@promotes_freely()
def packbits(a: Any, axis: int | None = None, bitorder: str = "big") -> Any:
    """Pack bools (or integers, nonzero as true) along ``axis`` into bytes, eight to a byte, padded with zeros.

    Args:
      axis: default: flatten the array.
      bitorder: whether the first of eight is the most ("big") or the least significant bit ("little").

    >>> packbits(np.array([True, False, True])).tolist()
    [160]
    """
    x = asarray(a)
    places = _weights(bitorder, "packbits")
    if not (dtypes.is_integer(typeof(x).dtype) or dtypes.is_bool(typeof(x).dtype)):
        raise DTypeError(f"packbits: expected bools or integers, got dtype {typeof(x).dtype}")
    x, d = (ravel(x), 0) if axis is None else (x, normal_axis(axis, typeof(x).ndim, "packbits"))
    bits = moveaxis(convert(truth(x, "packbits"), dtypes.uint8), d, -1)
    *lead, n = typeof(bits).shape
    bits = reshape(pad(bits, [(0, 0)] * len(lead) + [(0, -n % 8)]), (*lead, -(-n // 8), 8))
    return moveaxis(sum(bits << places, -1, dtypes.uint8), -1, d)


@promotes_freely()
def unpackbits(a: Any, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Any:
    """Unpack the bits of bytes along ``axis``, as eight zeros and ones per byte.

    Args:
      count: the number of bits: that many from the start, padded with zeros; a negative count drops bits at the end.

    Raises:
      DTypeError: not uint8.

    >>> unpackbits(np.array([160], np.uint8), count=3).tolist()
    [1, 0, 1]
    """
    x = asarray(a)
    places = _weights(bitorder, "unpackbits")
    if typeof(x).dtype != dtypes.uint8:
        raise DTypeError(f"unpackbits: expected uint8, got dtype {typeof(x).dtype}")
    x, d = (ravel(x), 0) if axis is None else (x, normal_axis(axis, typeof(x).ndim, "unpackbits"))
    x = moveaxis(x, d, -1)
    *lead, n = typeof(x).shape
    bits = reshape((x[..., None] >> places) & np.uint8(1), (*lead, 8 * n))
    num_bits = 8 * n if count is None else static_int(count, "unpackbits", "count")
    num_bits = max(num_bits + 8 * n, 0) if num_bits < 0 else num_bits
    bits = pad(bits[..., :num_bits], [(0, 0)] * len(lead) + [(0, max(num_bits - 8 * n, 0))])
    return moveaxis(bits, -1, d)


# --- floats taken apart -------------------------------------------------------------------------------------
#: bits of the fraction, and the exponent bias for fractions in [0.5, 1)
_LAYOUT = {dtypes.float16: (10, 14), dtypes.bfloat16: (7, 126), dtypes.float32: (23, 126), dtypes.float64: (52, 1022)}


@compiled
def _frexp(x: Any) -> tuple[Any, Any]:
    dtype = typeof(x).dtype
    fraction, bias = _LAYOUT[dtype]
    bits = ops.BitcastConvert(dtypes.signed_bits(dtype)).bind(x)
    magnitude = ops.and_(bits, scalar_like(np.iinfo(typeof(bits).dtype).max, bits))
    nil, one = scalar_like(0, bits), scalar_like(1 << fraction, bits)
    # Uses only bits, since arithmetic may flush subnormal numbers to zero.
    tiny = ops.and_(ops.lt(magnitude, one), ops.ne(magnitude, nil))
    field = ops.shift_right_logical(magnitude, scalar_like(fraction, bits))
    as_is = ops.or_(ops.eq(magnitude, nil), ops.not_(ops.is_finite(x)))
    places = ops.sub(ops.clz(magnitude), scalar_like(dtypes.bit_width(dtype) - 1 - fraction, bits))
    exponent = ops.sub(select(tiny, ops.sub(scalar_like(1, bits), places), field), scalar_like(bias, bits))
    exponent = convert(select(as_is, nil, exponent), dtypes.int32)
    leading = ops.shift_left(magnitude, select(tiny, places, nil))
    half = ops.BitcastConvert(dtype).bind(ops.add(leading, scalar_like((bias - 1) << fraction, bits)))
    half = select(ops.lt(bits, nil), ops.neg(half), half)
    # Computed by scaling rather than from bits, so that the mantissa has a derivative.
    moves = _ldexp(select(tiny, ops.sub(x, ops.stop_gradient(x)), x), ops.neg(exponent))
    return select(tiny, ops.add(half, moves), moves), exponent


def frexp(x: Any, /) -> tuple[Any, Any]:
    """``(mantissa, exponent)`` with ``x == mantissa * 2**exponent`` and the mantissa's magnitude in [0.5, 1).

    The mantissa of 0, infinities and NaN is the number itself, with exponent 0.

    Raises:
      DTypeError: a complex or narrow float dtype.

    >>> [v.item() for v in frexp(6.0)]
    [0.75, 3]
    """
    (x,) = operands("frexp", (x,), to_inexact=True)
    if typeof(x).dtype not in _LAYOUT:
        raise DTypeError(f"frexp: expected a float of 16 bits or more, got dtype {typeof(x).dtype}")
    return _frexp(convert(x, typeof(x).dtype))


@compiled
def _ldexp(x: Any, y: Any) -> Any:
    dtype = typeof(x).dtype
    fraction, bias = _LAYOUT[dtype]
    most = np.array(3 * bias, dtypes.int32)  # exceeds the exponent of any quotient of two floats
    rest = ops.min_(ops.max_(y, ops.neg(most)), most)
    whole = dtypes.signed_bits(dtype)
    for parts in (3, 2, 1):  # a single power of two may not be representable
        share = ops.div(rest, np.array(parts, dtypes.int32))
        rest = ops.sub(rest, share)
        bits = ops.shift_left(
            convert(ops.add(share, np.array(bias + 1, dtypes.int32)), whole), np.array(fraction, whole)
        )
        x = ops.mul(x, ops.BitcastConvert(dtype).bind(bits))
    return x


def ldexp(x1: Any, x2: Any, /) -> Any:
    """``x1 * 2**x2`` for integers or bools ``x2``, exactly.

    Raises:
      DTypeError: ``x2`` has a float dtype, or ``x1`` is complex.

    >>> ldexp(3.0, 2).item()
    12.0
    """
    kind = aval_of(x2, "ldexp", 1).dtype
    if not (dtypes.is_integer(kind) or dtypes.is_bool(kind)):
        raise DTypeError(f"ldexp: x2 must be of an integer dtype, got {kind}")
    (x,), (y,) = operands("ldexp", (x1,), to_inexact=True), operands("ldexp", (x2,))
    if typeof(x).dtype not in _LAYOUT:
        raise DTypeError(f"ldexp: expected a float of 16 bits or more, got dtype {typeof(x).dtype}")
    shape = broadcast_shapes(typeof(x).shape, typeof(y).shape, name="ldexp")
    return _ldexp(spread(x, shape), _as_int32(spread(y, shape)))


def _as_int32(y: Any) -> Any:
    """Integers as int32, clamped to its range."""
    if dtypes.is_bool(typeof(y).dtype):
        return convert(y, dtypes.int32)
    own, target = (ml_dtypes.iinfo(d) for d in (typeof(y).dtype, dtypes.int32))
    if own.max > target.max:
        y = ops.min_(y, scalar_like(target.max, y))
    if own.min < target.min:
        y = ops.max_(y, scalar_like(target.min, y))
    return convert(y, dtypes.int32)


def spacing(x: Any, /) -> Any:
    """The distance to the next float away from 0, with the sign of ``x``.

    >>> spacing(1.0).item() == float(np.spacing(np.float32(1.0)))
    True
    """
    (x,) = operands("spacing", (x,), to_inexact=True)
    if typeof(x).dtype not in _LAYOUT:
        raise DTypeError(f"spacing: expected a float of 16 bits or more, got dtype {typeof(x).dtype}")
    return _spacing(convert(x, typeof(x).dtype))  # the result is not weakly typed


@compiled
def _spacing(x: Any) -> Any:
    # From bits, since XLA may flush subnormal numbers to zero: the value of the lowest bit of the fraction.
    dtype = typeof(x).dtype
    fraction, _ = _LAYOUT[dtype]
    width = dtypes.bit_width(dtype)
    bits = ops.BitcastConvert(dtypes.signed_bits(dtype)).bind(x)
    nil, one, most = (scalar_like(v, bits) for v in (0, 1, width - 2))
    magnitude = ops.and_(bits, scalar_like(2 ** (width - 1) - 1, bits))
    exponent = ops.shift_right_logical(magnitude, scalar_like(fraction, bits))
    whole = ops.shift_left(ops.max_(ops.sub(exponent, scalar_like(fraction, bits)), nil), scalar_like(fraction, bits))
    part = ops.shift_left(one, ops.min_(ops.max_(ops.sub(exponent, one), nil), most))
    size = select(ops.gt(exponent, scalar_like(fraction, bits)), whole, part)
    negative = ops.and_(ops.lt(bits, nil), ops.ne(magnitude, nil))
    signed = select(negative, ops.or_(size, scalar_like(-(2 ** (width - 1)), bits)), size)
    return select(ops.is_finite(x), ops.BitcastConvert(dtype).bind(signed), scalar_like(np.nan, x))
