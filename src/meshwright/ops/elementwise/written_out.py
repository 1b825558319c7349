"""Elementwise ops that XLA lacks for some dtypes, or gets wrong: the order of complex numbers, powers of integers.

They are written with ops of the table (:mod:`.table`), which is their first argument, since it needs them.

Complex numbers are ordered by real, then imaginary part; NaN is not below or above anything, and the extreme of
whatever it is part of: NumPy's order. StableHLO has no such comparisons; of its extremes, XLA's CPU code has a maximum
for the minimum, and loses NaN.
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
    """By squaring, over all bits of the exponent: XLA's own reads six of them, and takes a large unsigned number for a
    negative one. To a negative power, the quotient rounded towards zero."""
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
    """To integer powers, of other numbers."""
    return [ops.pow_(x, ops.convert(y, typeof(x).dtype))]


def zeta_far(ops: Any, x: Any, q: Any, total: Any) -> list[Any]:
    """``total``, but for an exponent from which on one term is all that the type holds of the sum: XLA's own has the
    exponent as a factor of what is then 0."""
    x, q = match_shape(x, typeof(total)), match_shape(q, typeof(total))
    far = ops.and_(ops.ge(x, ops.scalar_like(1e4, x)), ops.gt(q, ops.scalar_like(0, q)))
    return [ops.select(far, ops.pow_(q, ops.neg(x)), total)]


def emit_zeta(far: Callable[..., list[Any]], op: Elementwise, b: Builder, x: Emitted, q: Emitted) -> Emitted:
    """The op, its result corrected by :func:`zeta_far`."""
    total: Any = Elementwise.emit(op, b, x, q)
    return b.call("zeta", traced(far, "zeta", (*b.in_avals, *b.out_avals)), [x, q, total])[0]
