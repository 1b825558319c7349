"""Derivatives of ops of the table (:mod:`.table`, passed as first argument) that distinguish cases.

At kinks, subgradients are those of JAX. A case must not select a constant where the function varies: the derivative of
that constant, and so the second derivative of the function, would be zero.
"""

from __future__ import annotations

from typing import Any

from meshwright.core import dtypes
from meshwright.ir.tracing import typeof
from meshwright.ops.shape.broadcast_reduce import match_shape


def _filled(ops: Any, value: float, x: Any) -> Any:
    return match_shape(ops.scalar_like(value, x), typeof(x))


def _nonzero(ops: Any, x: Any) -> Any:
    """``x``, with 0 replaced by 1."""
    return ops.select(ops.eq(x, ops.scalar_like(0, x)), _filled(ops, 1, x), x)


def of_magnitude(ops: Any, t: Any, y: Any, x: Any) -> Any:
    """The tangent of ``|x|``. At 0 it uses the slope 1, so that functions composed of magnitudes have second
    derivatives."""
    if not dtypes.is_complex(typeof(x).dtype):
        return ops.mul(t, ops.select(ops.eq(x, ops.scalar_like(0, x)), _filled(ops, 1, x), ops.sign(x)))
    along = ops.add(ops.mul(ops.real(t), ops.real(x)), ops.mul(ops.imag(t), ops.imag(x)))
    return ops.div(along, _nonzero(ops, y))


def of_direction(ops: Any, t: Any, y: Any, x: Any) -> Any:
    """The tangent of ``y = x / |x|`` for complex numbers: the component of ``t / |x|`` orthogonal to ``y``; 0 at 0."""
    size = _nonzero(ops, ops.abs_(x))
    nil = ops.zeros_like(size)
    step = ops.div(t, ops.complex_(size, nil))
    return ops.mul(y, ops.complex_(nil, ops.imag(ops.mul(ops.conj(y), step))))


def of_base(ops: Any, a: Any, b: Any) -> Any:
    """``b a^(b - 1)``; for an integer exponent 0 it is 0, the derivative of 1, also at ``a = 0``."""
    one = ops.scalar_like(1, b)
    if not dtypes.is_integer(typeof(b).dtype):
        return ops.mul(b, ops.pow_(a, ops.sub(b, one)))
    constant = ops.eq(b, ops.scalar_like(0, b))
    lower = ops.pow_(a, ops.select(constant, _filled(ops, 1, b), ops.sub(b, one)))
    slope = ops.mul(ops.convert(b, typeof(a).dtype), lower)
    constant = match_shape(constant, typeof(slope).update(dtype=dtypes.bool_))
    return ops.select(constant, ops.scalar_like(0, a), slope)


def of_exponent(ops: Any, y: Any, a: Any) -> Any:
    """``y log a``, 0 where ``a`` is 0, so that ``0 ** b`` has a finite derivative."""
    return ops.mul(ops.log(_nonzero(ops, a)), y)


def of_extreme(ops: Any, a: Any, b: Any, y: Any) -> Any:
    """1 where ``y``, the maximum or minimum of ``a`` and ``b``, equals only ``a``, 1/2 where it equals both, else 0."""
    mine, other = (ops.eq(match_shape(v, typeof(y)), y) for v in (a, b))
    return ops.select(mine, ops.select(other, _filled(ops, 0.5, y), _filled(ops, 1, y)), _filled(ops, 0, y))
