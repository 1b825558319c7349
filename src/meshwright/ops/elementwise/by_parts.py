"""Functions of complex numbers, written with real ops on their parts.

XLA computes sines by exponentials: their difference loses a part that is small compared to the other (``sin(0.5 +
1e-30j)`` becomes real), and their product with a small sine overflows early. For ``log(1 + z)`` it computes the sum.
Values at zeros, infinities and NaN are those of C's ``csinh`` and ``ccosh`` (C11, annex G.6.2), as in NumPy.

The functions take the table of ops (:mod:`.table`) as first argument, to avoid a circular import.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.ir.tracing import typeof

NAMES = ("sin", "cos", "sinh", "cosh", "expm1", "log1p")


def sinh(ops: Any, z: Any) -> list[Any]:
    """``sinh(a) cos(b) + i cosh(a) sin(b)``"""
    a, b = ops.real(z), ops.imag(z)
    return [ops.complex_(_even(ops, ops.sinh, a, ops.cos(b)), _product(ops, ops.cosh, a, ops.sin(b)))]


def cosh(ops: Any, z: Any) -> list[Any]:
    """``cosh(a) cos(b) + i sinh(a) sin(b)``"""
    a, b = ops.real(z), ops.imag(z)
    return [ops.complex_(_even(ops, ops.cosh, a, ops.cos(b)), _product(ops, ops.sinh, a, ops.sin(b)))]


def sin(ops: Any, z: Any) -> list[Any]:
    """``-i sinh(iz)``"""
    a, b = ops.real(z), ops.imag(z)
    return [ops.complex_(_product(ops, ops.cosh, b, ops.sin(a)), _even(ops, ops.sinh, b, ops.cos(a)))]


def cos(ops: Any, z: Any) -> list[Any]:
    """``cosh(iz)``"""
    a, b = ops.real(z), ops.imag(z)
    return [ops.complex_(_even(ops, ops.cosh, b, ops.cos(a)), ops.neg(_product(ops, ops.sinh, b, ops.sin(a))))]


def _product(ops: Any, function: Any, x: Any, factor: Any) -> Any:
    """``function(x) * factor``: finite where only ``function(x)`` overflows, and 0 where either is 0."""
    whole, nil = function(x), ops.scalar_like(0, x)
    half = ops.exp(ops.mul(ops.abs_(x), ops.scalar_like(0.5, x)))
    sized = ops.mul(half, ops.scalar_like(0.5, x))
    signed = ops.select(ops.lt(whole, nil), ops.neg(sized), sized)
    far = ops.gt(ops.abs_(x), ops.scalar_like(np.log(np.finfo(typeof(x).dtype).max) - 1, x))
    product = ops.select(far, ops.mul(ops.mul(signed, factor), half), ops.mul(whole, factor))
    return _where_nil(ops, factor, whole, _where_nil(ops, whole, factor, product))


def _where_nil(ops: Any, x: Any, other: Any, product: Any) -> Any:
    """``product``, but 0 with the product's sign where ``x`` is 0 and the other factor is infinite or NaN."""
    nil = ops.scalar_like(0, x)
    lost = ops.and_(ops.eq(x, nil), ops.not_(ops.is_finite(other)))
    return ops.select(lost, ops.select(ops.lt(other, nil), ops.neg(x), x), product)


def _even(ops: Any, function: Any, x: Any, cosine: Any) -> Any:
    """The product with a cosine: infinite where ``x`` is, even if the cosine is NaN."""
    infinite = ops.eq(ops.abs_(x), ops.scalar_like(np.inf, x))
    unknown = ops.and_(infinite, ops.ne(cosine, cosine))
    return ops.select(unknown, function(x), _product(ops, function, x, cosine))


def expm1(ops: Any, z: Any) -> list[Any]:
    """``expm1(a) cos(b) - 2 sin(b / 2) ** 2 + i exp(a) sin(b)``; this form of the real part is used where ``a`` is
    small."""
    a, b = ops.real(z), ops.imag(z)
    one, whole, cosine = ops.scalar_like(1, a), ops.exp(z), ops.cos(b)
    sine = ops.sin(ops.mul(b, ops.scalar_like(0.5, b)))
    near = ops.sub(ops.mul(ops.expm1(a), cosine), ops.mul(ops.scalar_like(2, b), ops.mul(sine, sine)))
    # At infinity, a cosine that is NaN leaves nothing known, as in NumPy.
    end = ops.select(ops.eq(a, ops.scalar_like(np.inf, a)), ops.mul(a, cosine), ops.real(whole))
    return [ops.complex_(ops.select(ops.lt(ops.abs_(a), one), near, ops.sub(end, one)), ops.imag(whole))]


def log1p(ops: Any, z: Any) -> list[Any]:
    """``log(1 + z)``; where its magnitude is small, the real part is ``log1p(2a + a * a + b * b) / 2``.

    There the sum is corrected by the rounding errors of its terms (T. J. Dekker, 1971), as the terms may cancel.
    """
    a, b = ops.real(z), ops.imag(z)
    whole = ops.log(ops.complex_(ops.add(a, ops.scalar_like(1, a)), b))
    (aa, first), (bb, second) = _squared(ops, a), _squared(ops, b)
    total, third = _added(ops, ops.mul(a, ops.scalar_like(2, a)), aa)
    total, fourth = _added(ops, total, bb)
    total = ops.add(total, ops.add(ops.add(first, second), ops.add(third, fourth)))
    half = ops.scalar_like(0.5, a)
    near = ops.mul(ops.log1p(total), half)
    return [ops.complex_(ops.select(ops.lt(ops.abs_(total), half), near, ops.real(whole)), ops.imag(whole))]


def _squared(ops: Any, x: Any) -> tuple[Any, Any]:
    """The rounded square, and its rounding error."""
    square = ops.mul(x, x)
    kind = np.finfo(typeof(x).dtype)
    high = ops.ReducePrecision(kind.nexp, (kind.nmant - 1) // 2).bind(x)  # its square is exact
    low = ops.sub(x, high)
    mixed = ops.mul(ops.mul(high, low), ops.scalar_like(2, x))
    return square, ops.add(ops.add(ops.sub(ops.mul(high, high), square), mixed), ops.mul(low, low))


def _added(ops: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """The rounded sum, and its rounding error."""
    total = ops.add(x, y)
    part = ops.sub(total, x)
    return total, ops.add(ops.sub(x, ops.sub(total, part)), ops.sub(y, part))
