"""Elementwise ops that XLA lacks or gets wrong for some dtypes: the order of complex numbers, integer powers.

They are defined by ops of the table (:mod:`.table`), which is passed as first argument to avoid a circular import.

Complex numbers are ordered by real, then by imaginary part. NaN compares false, and is the maximum and minimum of
anything that contains it, as in NumPy. StableHLO has no such comparisons; for minimum and maximum, XLA's CPU code
computes a maximum instead of a minimum, and loses NaN.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.ir.contract import Emitted
from meshwright.ir.op import Builder
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import traced
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.shape.broadcast_reduce import match_shape

NAMES = ("lt", "le", "gt", "ge", "max", "min", "pow", "pow_mixed", "above_zero", "is_below", "zeta", "polygamma")


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


# --- zeta and polygamma ---------------------------------------------------------------------------------------
# XLA sums a fixed number of terms before it takes the rest for small: below -8 that is wrong by any factor. There, with
# q = f - k for a whole number k and f between 0 and 1, zeta(s, q) is
#     zeta(s, f) + (-1)^s (zeta(s, 1 - f) - zeta(s, 1 - q))
# for whole numbers s, and the same holds for the polygamma function, which is zeta of n + 1 times a factor.
def _is_below(ops: Any, q: Any) -> Any:
    """Where ``q`` is negative, and no whole number: these are poles."""
    return ops.and_(ops.lt(q, ops.scalar_like(0, q)), ops.ne(q, ops.floor(q)))


def above_zero(ops: Any, q: Any) -> list[Any]:
    """The arguments at which the function is computed instead of at ``q``."""
    below, past, one = _is_below(ops, q), ops.sub(q, ops.floor(q)), match_shape(ops.scalar_like(1, q), typeof(q))
    return [
        ops.select(below, x, otherwise)
        for x, otherwise in ((past, q), (ops.sub(one, past), one), (ops.sub(one, q), one))
    ]


def _joined(ops: Any, s: Any, q: Any, first: Any, second: Any, third: Any) -> Any:
    half, rest = ops.mul(s, ops.scalar_like(0.5, s)), ops.sub(second, third)
    signed = ops.select(ops.eq(half, ops.floor(half)), rest, ops.neg(rest))
    nan = match_shape(ops.scalar_like(math.nan, s), typeof(s))
    below = ops.select(ops.eq(s, ops.floor(s)), ops.add(first, signed), nan)  # powers of negative numbers
    end = ops.and_(ops.eq(q, ops.scalar_like(math.inf, q)), ops.gt(s, ops.scalar_like(1, s)))
    zero = match_shape(ops.scalar_like(0, s), typeof(s))  # the limit; XLA has NaN
    return ops.select(end, zero, ops.select(_is_below(ops, q), below, first))


def polygamma(ops: Any, n: Any, x: Any, *parts: Any) -> list[Any]:
    return [_joined(ops, ops.add(n, ops.scalar_like(1, n)), x, *parts)]


def zeta(ops: Any, x: Any, q: Any, *parts: Any) -> list[Any]:
    """For exponents so large that one term is the whole sum to working precision, that term: there, XLA multiplies the
    exponent with a result that has become 0. The pole at 1 is infinite for all arguments."""
    pole = ops.eq(x, ops.scalar_like(1, x))
    far = ops.and_(ops.ge(x, ops.scalar_like(1e3, x)), ops.gt(q, ops.scalar_like(0, q)))
    near = ops.select(pole, parts[0], _joined(ops, x, q, *parts))
    return [ops.select(far, ops.pow_(q, ops.neg(x)), near)]


def is_below(ops: Any, q: Any) -> list[Any]:
    """1 where the function of ``q`` is made of those of three arguments, else 0."""
    return [ops.convert(_is_below(ops, q), dtypes.int32)]


def emit_above_zero(
    arguments: Any, joined: Any, below: Any, op: Elementwise, b: Builder, order: Emitted, q: Emitted
) -> Emitted:
    """Emit the op at the arguments that :func:`above_zero` gives, and join the results.

    The function takes most of the time: on CPUs, the second and third argument are left out where no ``q`` is below 0.
    """
    narrow = out = b.out_avals[0]
    order, q = (
        b.broadcast(x, a.update(shape=out.shape), ()) if a.shape != out.shape else x
        for x, a in zip((order, q), b.in_avals)
    )
    if dtypes.bit_width(out.dtype) < 32:  # of what the first and the third term differ in, nothing may be left
        out = out.update(dtype=dtypes.float32)
        order, q = (b.op("stablehlo.convert", [x], [out])[0] for x in (order, q))
    given = b.call("above_zero", traced(arguments, "above_zero", (out,)), [q])

    def above(b: Builder, order: Emitted, q: Emitted, x: Emitted) -> list[Emitted]:
        return whole(b, order, q, x, x, x)

    def whole(b: Builder, order: Emitted, q: Emitted, *given: Emitted) -> list[Emitted]:
        parts = [b.op(op.hlo, [order, x], [out])[0] for x in given]
        return b.call(op.name, traced(joined, op.name, (out,) * 5), [order, q, *parts])

    def finished(y: Emitted) -> Emitted:
        return y if narrow is out else b.op("stablehlo.convert", [y], [narrow])[0]

    if b.platform != "cpu" or not out.shape:  # elsewhere a branch waits for the host; and numbers are bodies of loops
        return finished(whole(b, order, q, *given)[0])
    number = ShapedArray((), dtypes.int32)
    where = b.call("is_below", traced(below, "is_below", (out,)), [q])[0]
    index = b.op(
        "stablehlo.reduce", [where, b.constant(np.int32(0), number)], [number],
        regions=[b.reducer("stablehlo.maximum", [number])], dimensions=tuple(range(out.ndim)),
    )[0]  # fmt: skip
    regions = [b.region(above, [order, q, given[0]]), b.region(whole, [order, q, *given])]
    return finished(b.op("stablehlo.case", [index], [out], regions=regions)[0])
