"""Elementwise ops that XLA lacks or gets wrong for some dtypes: the order of complex numbers, integer powers.

They are defined by ops of the table (:mod:`.table`), which is passed as first argument to avoid a circular import.

Complex numbers are ordered by real, then by imaginary part. NaN compares false, and is the maximum and minimum of
anything that contains it, as in NumPy. StableHLO has no such comparisons; for minimum and maximum, XLA's CPU code
computes a maximum instead of a minimum, and loses NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.core import dtypes
from meshwright.ir.contract import Emitted
from meshwright.ir.op import Builder
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import traced
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.shape.broadcast_reduce import match_shape

NAMES = ("lt", "le", "gt", "ge", "max", "min", "pow", "pow_mixed", "zeta_far")


def _ordered(ops: Any, direction: Any, strict: Any, x: Any, y: Any) -> list[Any]:
    a, b, c, d = ops.real(x), ops.real(y), ops.imag(x), ops.imag(y)
    ahead = ops.or_(strict(a, b), ops.and_(ops.eq(a, b), direction(c, d)))
    return [ops.and_(ahead, ops.and_(ops.eq(x, x), ops.eq(y, y)))]


def lt(ops: Any, x: Any, y: Any) -> list[Any]:
    return _ordered(ops, ops.lt, ops.lt, x, y)


def le(ops: Any, x: Any, y: Any) -> list[Any]:
    return _ordered(ops, ops.le, ops.lt, x, y)


def gt(ops: Any, x: Any, y: Any) -> list[Any]:
    return _ordered(ops, ops.gt, ops.gt, x, y)


def ge(ops: Any, x: Any, y: Any) -> list[Any]:
    return _ordered(ops, ops.ge, ops.gt, x, y)


def max(ops: Any, x: Any, y: Any) -> list[Any]:
    return [ops.select(ops.or_(ops.ne(x, x), ops.gt(x, y)), x, y)]


def min(ops: Any, x: Any, y: Any) -> list[Any]:
    return [ops.select(ops.or_(ops.ne(x, x), ops.lt(x, y)), x, y)]


def pow(ops: Any, x: Any, y: Any) -> list[Any]:
    """Power by squaring, over all bits of the exponent. XLA's own reads only six of them, and interprets large unsigned
    numbers as negative. For a negative exponent, the quotient rounded towards zero."""
    shape = typeof(x) if typeof(x).ndim else typeof(y)
    x, y = match_shape(x, shape), match_shape(y, shape)
    nil, one = (match_shape(ops.scalar_like(v, x), shape) for v in (0, 1))
    result, square, bits = one, x, y
    for _ in range(dtypes.bit_width(shape.dtype) - dtypes.is_signed(shape.dtype)):
        result = ops.select(ops.ne(ops.and_(bits, one), nil), ops.mul(result, square), result)
        square, bits = ops.mul(square, square), ops.shift_right_logical(bits, one)
    if not dtypes.is_signed(shape.dtype):
        return [result]
    of_minus_one = ops.select(ops.ne(ops.and_(y, one), nil), x, one)
    unit = ops.or_(ops.eq(x, one), ops.eq(x, ops.neg(one)))
    return [ops.select(ops.lt(y, nil), ops.select(unit, of_minus_one, nil), result)]


def pow_mixed(ops: Any, x: Any, y: Any) -> list[Any]:
    """Integer powers of float or complex numbers."""
    return [ops.pow_(x, ops.convert(y, typeof(x).dtype))]


def zeta_far(ops: Any, x: Any, q: Any, total: Any) -> list[Any]:
    """``total``, except for exponents so large that one term is the whole sum to working precision: there, XLA
    multiplies the exponent with a result that has become 0."""
    x, q = match_shape(x, typeof(total)), match_shape(q, typeof(total))
    far = ops.and_(ops.ge(x, ops.scalar_like(1e4, x)), ops.gt(q, ops.scalar_like(0, q)))
    return [ops.select(far, ops.pow_(q, ops.neg(x)), total)]


def emit_zeta(far: Callable[..., list[Any]], op: Elementwise, b: Builder, x: Emitted, q: Emitted) -> Emitted:
    """Emit the op, with its result corrected by :func:`zeta_far`."""
    total: Any = Elementwise.emit(op, b, x, q)
    return b.call("zeta", traced(far, "zeta", (*b.in_avals, *b.out_avals)), [x, q, total])[0]
