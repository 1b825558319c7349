"""Gamma variates, one for each key and shape parameter, and their derivative with respect to the parameter.

Sampling follows Marsaglia and Tsang ("A simple method for generating gamma variables", TOMS 2000), with draws in the
order of ``jax.random``. Each element is rejected separately, so devices need no communication. The derivative keeps the
quantile of a sample constant (Figurnov et al. 2018, "Implicit reparameterization gradients").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import DTypeError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.op import Builder, Dual, Tangent, Zero
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import emit_traced
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.elementwise.expanded import constant, loop
from meshwright.ops.elementwise.table import (
    add,
    and_,
    div,
    eq,
    exp,
    ge,
    le,
    log,
    log1p,
    mul,
    neg,
    or_,
    pow_,
    scalar_like,
    select,
    sqrt,
    sub,
    zeros_like,
)
from meshwright.ops.random.bits import combined_words, threefry2x32
from meshwright.ops.random.floats import bits_needed, normal_of, unit_of
from meshwright.ops.shape.broadcast_reduce import match_shape
from meshwright.ops.special.incomplete_gamma import random_gamma_grad

_ZERO = np.array(0, np.uint32)


def _split(k0: Any, k1: Any, num: int) -> list[list[Any]]:
    """Split each key into ``num`` new keys, as pairs of words."""
    return [threefry2x32(k0, k1, _ZERO, np.array(i, np.uint32)) for i in range(num)]


def _word(key: Sequence[Any], dtype: np.dtype) -> Any:
    """The bits for one number of ``dtype``."""
    k0, k1 = key
    a, b = threefry2x32(k0, k1, _ZERO, _ZERO)
    return combined_words(a, b, bits_needed(dtype))


def _uniform(key: Sequence[Any], dtype: np.dtype) -> Any:
    return unit_of(_word(key, dtype), dtype)


def _rejected(c: Any, d: Any, k0: Any, k1: Any, x: Any, v: Any, u: Any) -> Any:
    """Whether a proposal (the square ``x`` of a normal number, ``v`` and a uniform number ``u``) is rejected."""
    one = scalar_like(1, u)
    quick = ge(u, sub(one, mul(scalar_like(0.0331, x), mul(x, x))))
    bound = add(mul(x, scalar_like(0.5, x)), mul(d, add(sub(one, v), log(v))))
    return and_(quick, ge(log(u), bound))


def _propose(c: Any, d: Any, k0: Any, k1: Any, x: Any, v: Any, u: Any) -> list[Any]:
    key, x_key, u_key = _split(k0, k1, 3)
    dtype = typeof(c).dtype

    def negative(c: Any, k0: Any, k1: Any, x: Any, v: Any) -> Any:
        return le(v, scalar_like(0, v))

    def draw(c: Any, k0: Any, k1: Any, x: Any, v: Any) -> list[Any]:
        key, subkey = _split(k0, k1, 2)
        x = normal_of(_word(subkey, dtype), dtype)
        return [*key, x, add(scalar_like(1, x), mul(x, c))]

    _, _, x, v = loop(negative, draw, [c], [*x_key, constant(0, c), constant(-1, c)])
    return [*key, mul(x, x), mul(mul(v, v), v), _uniform(u_key, dtype)]


def _sample(log_space: bool, k0: Any, k1: Any, alpha: Any) -> Any:
    """A sample; NaN for negative parameters, for which rejection might never end."""
    valid = ge(alpha, scalar_like(0, alpha))
    value = _valid_sample(log_space, k0, k1, select(valid, alpha, constant(1, alpha)))
    return select(valid, value, constant(np.nan, alpha))


def _valid_sample(log_space: bool, k0: Any, k1: Any, alpha: Any) -> Any:
    dtype = typeof(alpha).dtype
    one, third = scalar_like(1, alpha), scalar_like(1 / 3, alpha)
    # Below 1, Gamma(alpha) is Gamma(alpha + 1) times a power of a uniform number.
    large = ge(alpha, one)
    d = sub(select(large, alpha, add(alpha, one)), third)
    c = div(third, sqrt(d))
    key, boost_key = _split(k0, k1, 2)
    # The initial state is one that is rejected.
    _, _, _, v, _ = loop(_rejected, _propose, [c, d], [*key, constant(0, d), constant(1, d), constant(2, d)])
    u = _uniform(boost_key, dtype)
    inverse = div(one, alpha)
    if not log_space:
        return mul(mul(d, v), select(large, constant(1, d), pow_(sub(one, u), inverse)))
    logs = log1p(neg(u))
    boost = select(or_(large, eq(logs, scalar_like(0, logs))), zeros_like(logs), mul(logs, inverse))
    return add(add(log(d), log(v)), boost)


@dataclass(frozen=True)
class RandomGamma(Elementwise):
    """A Gamma(alpha, 1) variate for each key (two words) and alpha; with ``log_space``, its logarithm."""

    log_space: bool = False
    name: ClassVar[str] = "random_gamma"
    accepts: ClassVar[tuple[str, ...]] = ("u", "u", "f")

    def infer(self, *avals: ShapedArray) -> ShapedArray:
        k0, k1, alpha = avals
        if not dtypes.is_float(alpha.dtype) or {k0.dtype, k1.dtype} != {dtypes.uint32}:
            raise DTypeError(f"random_gamma: expected uint32 keys and a float parameter, got {k0}, {k1} and {alpha}")
        shape = super().infer(k0, k1, k0.update(shape=alpha.shape)).shape
        return ShapedArray(shape, alpha.dtype)

    def check_dtypes(self, *operand_dtypes: np.dtype) -> None:
        pass

    def result_dtype(self, *operand_dtypes: np.dtype) -> np.dtype:
        return operand_dtypes[0]

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        y = self.bind(*primals)
        if isinstance(tangents[2], Zero):
            return y, Zero(typeof(y))
        alpha, value = primals[2], y
        if self.log_space:
            # exp(y) may underflow to 0, but the quotient below does not vanish then.
            tiny = np.asarray(ml_dtypes.finfo(typeof(y).dtype).tiny, typeof(y).dtype)
            value = exp(y)
            value = select(eq(value, scalar_like(0, y)), match_shape(tiny, typeof(value)), value)
        slope = random_gamma_grad(alpha, value)
        slope = div(slope, value) if self.log_space else slope
        return y, mul(match_shape(tangents[2], typeof(y)), slope)

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        return emit_traced(b, self._expand, self.name, *operands)[0]

    def _expand(self, k0: Any, k1: Any, alpha: Any) -> list[Any]:
        shape = max((typeof(x).shape for x in (k0, k1, alpha)), key=len)
        return [_sample(self.log_space, *(match_shape(x, typeof(x).update(shape=shape)) for x in (k0, k1, alpha)))]


def random_gamma(k0: Any, k1: Any, alpha: Any, log_space: bool) -> Any:
    """A gamma variate, or its logarithm, for each key and parameter."""
    return RandomGamma(log_space).bind(k0, k1, alpha)
