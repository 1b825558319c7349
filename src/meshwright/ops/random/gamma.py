"""Gamma variates, one for each key and shape parameter, and their derivative with respect to the parameter.

Sampling follows Marsaglia and Tsang ("A simple method for generating gamma variables", TOMS 2000), with draws in the
order of ``jax.random``. Each element is rejected separately, so devices need no communication. The derivative keeps the
quantile of a sample constant (Figurnov et al. 2018, "Implicit reparameterization gradients").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


@dataclass(frozen=True)
class Source:
    """A generator for draws with many keys. A key is a list of words, each an array with an element per key."""

    #: ``split(key, number of keys)``
    split: Callable[[Sequence[Any], int], list[list[Any]]]
    #: ``bits(key, width)``: one word for each key
    bits: Callable[[Sequence[Any], int], Any]


def _threefry_split(key: Sequence[Any], num: int) -> list[list[Any]]:
    k0, k1 = key
    return [threefry2x32(k0, k1, _ZERO, np.array(i, np.uint32)) for i in range(num)]


def _threefry_bits(key: Sequence[Any], width: int) -> Any:
    k0, k1 = key
    high, low = threefry2x32(k0, k1, _ZERO, _ZERO)
    return combined_words(high, low, width)


_THREEFRY = Source(_threefry_split, _threefry_bits)


def gamma_sample(source: Source, log_space: bool, key: Sequence[Any], alpha: Any) -> Any:
    """A sample for each key and ``alpha``; NaN for negative parameters, for which rejection might never end."""
    valid = ge(alpha, scalar_like(0, alpha))
    value = _valid_sample(source, log_space, key, select(valid, alpha, constant(1, alpha)))
    return select(valid, value, constant(np.nan, alpha))


def _valid_sample(source: Source, log_space: bool, key: Sequence[Any], alpha: Any) -> Any:
    dtype, words = typeof(alpha).dtype, len(key)

    def uniform(key: Sequence[Any]) -> Any:
        return unit_of(source.bits(key, bits_needed(dtype)), dtype)

    def rejected(c: Any, d: Any, *carry: Any) -> Any:
        """Whether a proposal (the square ``x`` of a normal number, ``v`` and a uniform number ``u``) is rejected."""
        x, v, u = carry[words:]
        one = scalar_like(1, u)
        quick = ge(u, sub(one, mul(scalar_like(0.0331, x), mul(x, x))))
        bound = add(mul(x, scalar_like(0.5, x)), mul(d, add(sub(one, v), log(v))))
        return and_(quick, ge(log(u), bound))

    def propose(c: Any, d: Any, *carry: Any) -> list[Any]:
        key, x_key, u_key = source.split(carry[:words], 3)

        def negative(c: Any, *carry: Any) -> Any:
            return le(carry[-1], scalar_like(0, carry[-1]))

        def draw(c: Any, *carry: Any) -> list[Any]:
            key, subkey = source.split(carry[:words], 2)
            x = normal_of(source.bits(subkey, bits_needed(dtype)), dtype)
            return [*key, x, add(scalar_like(1, x), mul(x, c))]

        x, v = loop(negative, draw, [c], [*x_key, constant(0, c), constant(-1, c)])[words:]
        return [*key, mul(x, x), mul(mul(v, v), v), uniform(u_key)]

    one, third = scalar_like(1, alpha), scalar_like(1 / 3, alpha)
    # Below 1, Gamma(alpha) is Gamma(alpha + 1) times a power of a uniform number.
    large = ge(alpha, one)
    d = sub(select(large, alpha, add(alpha, one)), third)
    c = div(third, sqrt(d))
    key, boost_key = source.split(key, 2)
    # The initial state is one that is rejected.
    v = loop(rejected, propose, [c, d], [*key, constant(0, d), constant(1, d), constant(2, d)])[words + 1]
    u = uniform(boost_key)
    inverse = div(one, alpha)
    if not log_space:
        return mul(mul(d, v), select(large, constant(1, d), pow_(sub(one, u), inverse)))
    logs = log1p(neg(u))
    boost = select(or_(large, eq(logs, scalar_like(0, logs))), zeros_like(logs), mul(logs, inverse))
    return add(add(log(d), log(v)), boost)


def gamma_slope(log_space: bool, alpha: Any, y: Any) -> Any:
    """The derivative by ``alpha`` of the sample ``y``."""
    if not log_space:
        return random_gamma_grad(alpha, y)
    # exp(y) may underflow to 0, but the quotient below does not vanish then.
    tiny = np.asarray(ml_dtypes.finfo(typeof(y).dtype).tiny, typeof(y).dtype)
    value = exp(y)
    value = select(eq(value, scalar_like(0, y)), match_shape(tiny, typeof(value)), value)
    return div(random_gamma_grad(alpha, value), value)


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
        return y, mul(match_shape(tangents[2], typeof(y)), gamma_slope(self.log_space, primals[2], y))

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        return emit_traced(b, self._expand, self.name, *operands)[0]

    def _expand(self, k0: Any, k1: Any, alpha: Any) -> list[Any]:
        shape = max((typeof(x).shape for x in (k0, k1, alpha)), key=len)
        *key, alpha = (match_shape(x, typeof(x).update(shape=shape)) for x in (k0, k1, alpha))
        return [gamma_sample(_THREEFRY, self.log_space, key, alpha)]


def random_gamma(k0: Any, k1: Any, alpha: Any, log_space: bool) -> Any:
    """A gamma variate, or its logarithm, for each key and parameter."""
    return RandomGamma(log_space).bind(k0, k1, alpha)
