"""Values of complex functions at infinities, NaN and signed zeros, as in the array API standard and C99's Annex G.

XLA computes products and sums of real and imaginary parts, which turns ``0 * inf`` and every sum with a NaN into NaN,
and ignores the sign of zero, by which C99 distinguishes the two sides of a branch cut. All functions here satisfy
``f(conj z) = conj f(z)``, and some are odd. So they are computed for positive parts, where each has a short list of
places that XLA gets wrong, and signs are restored. Trigonometric functions are hyperbolic functions with parts
exchanged: ``tan(a + bi)`` has the parts of ``tanh(b + ai)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.tracing import typeof
from meshwright.numpy.compiled import compiled
from meshwright.numpy.promotion import scalar_like
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.library import straight_through
from meshwright.ops.elementwise.table import and_, not_, or_, select

#: (condition, real part there, imaginary part there); None keeps a part
Patch = tuple[Any, Any, Any]
Patches = Callable[[Any, Any], Sequence[Patch]]


def sign_bit(x: Any) -> Any:
    """Whether the sign bit of floats is set, including for -0.0 and NaN."""
    if typeof(x).dtype == dtypes.float8_e8m0fnu:  # unsigned: its first bit belongs to the exponent
        return ops.lt(x, x)
    bits = ops.BitcastConvert(dtypes.signed_bits(typeof(x).dtype)).bind(x)
    return ops.lt(bits, scalar_like(0, bits))


def _is_nan(x: Any) -> Any:
    return ops.ne(x, x)


def _is(value: float, x: Any) -> Any:
    return ops.eq(x, scalar_like(value, x))


def _is_wild(x: Any) -> Any:
    return not_(ops.is_finite(x))


# --- where XLA is wrong, for b >= 0, and a >= 0 if the function is odd ---------------------------------------
def _exp(a: Any, b: Any) -> list[Patch]:
    return [(and_(_is(np.inf, a), _is_wild(b)), np.inf, np.nan), (and_(_is(-np.inf, a), _is_wild(b)), 0, 0)]


def _none(a: Any, b: Any) -> list[Patch]:
    return []


def _log(a: Any, b: Any) -> list[Patch]:
    one_infinite = or_(_is(np.inf, ops.abs_(a)), _is(np.inf, b))
    return [(and_(one_infinite, or_(_is_nan(a), _is_nan(b))), np.inf, np.nan)]


def _sqrt(a: Any, b: Any) -> list[Patch]:
    return [
        (and_(_is(np.inf, a), _is_nan(b)), np.inf, np.nan),
        (and_(_is(-np.inf, a), _is_nan(b)), np.nan, np.inf),
        (_is(np.inf, b), np.inf, np.inf),
    ]


def _tanh(a: Any, b: Any) -> list[Patch]:
    return [(and_(_is(0, a), _is_wild(b)), 0, np.nan), (and_(_is(np.inf, a), ops.is_finite(b)), 1, 0)]


def _asinh(a: Any, b: Any) -> list[Patch]:
    return [(and_(_is_nan(a), _is(0, b)), np.nan, 0)]


def _acosh(a: Any, b: Any) -> list[Patch]:
    return [(and_(_is(0, a), _is_nan(b)), np.nan, np.pi / 2), (and_(_is_tame(a), _is_nan(b)), np.nan, np.nan)]


def _acos(a: Any, b: Any) -> list[Patch]:
    return [(and_(_is(0, a), _is_nan(b)), np.pi / 2, np.nan), (and_(_is_tame(a), _is_nan(b)), np.nan, np.nan)]


def _atanh(a: Any, b: Any) -> list[Patch]:
    return [
        (_is(0, a), 0, None),
        (and_(_is_nan(b), or_(_is(0, a), _is(np.inf, a))), 0, np.nan),
        (and_(_is_nan(b), _is_tame(a)), np.nan, np.nan),
        (and_(_is_nan(a), not_(_is(np.inf, b))), np.nan, np.nan),
    ]


def _is_tame(x: Any) -> Any:
    return and_(ops.is_finite(x), not_(_is(0, x)))


def _exchanged(patches: Patches) -> Patches:
    return lambda a, b: [(where, im, re) for where, re, im in patches(b, a)]


#: whether the function is odd, and its patches; sines need none (:mod:`meshwright.ops.elementwise.by_parts`)
_FUNCTIONS: dict[str, tuple[bool, Patches]] = {
    "exp": (False, _exp), "expm1": (False, _none), "log": (False, _log), "log1p": (False, _log),
    "sqrt": (False, _sqrt), "acosh": (False, _acosh), "acos": (False, _acos),
    "tanh": (True, _tanh), "asinh": (True, _asinh), "atanh": (True, _atanh),
    "tan": (True, _exchanged(_tanh)), "asin": (True, _exchanged(_asinh)), "atan": (True, _exchanged(_atanh)),
}  # fmt: skip


def standard_values(op: Any) -> Any:
    """A unary op with the standard's complex values everywhere; real values are unchanged."""
    if op.name not in _FUNCTIONS:
        return op
    odd, patches = _FUNCTIONS[op.name]

    def patched(x: Any) -> Any:
        a, b = ops.real(x), ops.imag(x)
        below, left = sign_bit(b), sign_bit(a) if odd else None
        a, b = _negated(left, a), _negated(below, b)
        value = op(ops.complex_(a, b))
        re, im = ops.real(value), ops.imag(value)
        for where, new_re, new_im in patches(a, b):
            re, im = _put(where, new_re, re), _put(where, new_im, im)
        return ops.complex_(_negated(left, re), _negated(below, im))

    @compiled
    def complex_op(x: Any) -> Any:
        # The patched values are constants; the derivative is that of the op.
        return straight_through(patched(ops.stop_gradient(x)), op(x))

    return lambda x: complex_op(x) if dtypes.is_complex(typeof(x).dtype) else op(x)


def _negated(where: Any, x: Any) -> Any:
    return x if where is None else select(where, ops.neg(x), x)


def _put(where: Any, new: Any, old: Any) -> Any:
    if new is None:
        return old
    return select(where, new if hasattr(new, "shape") else scalar_like(new, old), old)
