"""Distributions of counts: Poisson, binomial and multinomial, as in JAX.

For small rates, waiting times are counted (Knuth); for large ones, transformed rejection is used (Hörmann 1993). Both
loop until all elements are done. On a mesh, devices only communicate one bool per step, for the loop's condition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.api.control_flow import scan, while_loop
from meshwright.core import dtypes
from meshwright.errors import DrawnTypeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.arithmetic import ceil, clip, floor, sqrt
from meshwright.numpy.creation import asarray, full, zeros
from meshwright.numpy.functions import log, log1p
from meshwright.numpy.indexing import take
from meshwright.numpy.logic import isinf, isnan, where
from meshwright.numpy.manipulation import broadcast_to, moveaxis
from meshwright.numpy.out_sharding import placed
from meshwright.numpy.promotion import aval_of, inexact, result_type
from meshwright.ops.elementwise import table as ops
from meshwright.ops.reduce.cumulative import cumsum
from meshwright.random.continuous import uniform
from meshwright.random.drawing import drawn
from meshwright.random.keys import clone, split
from meshwright.random.parameters import Shape, draw_shape, float_dtype, parameter

#: the maximum number of steps of a loop: an element needs more with a probability of less than 1e-99
_MOST_STEPS = 1000


def _while_any(unfinished: Callable[[Any], Any], step: Callable[[Any], Any], start: Any) -> Any:
    """Apply ``step`` to a value, from ``start`` on, while any element is unfinished; returns its first component."""

    def again(carry: Any) -> Any:
        return unfinished(carry[0]).any() & (carry[1] < _MOST_STEPS)

    return while_loop(again, lambda carry: (step(carry[0]), carry[1] + 1), (start, np.int32(0)))[0][0]


def _until_accepted(
    key: Any, shape: tuple[int, ...], dtype: Any, propose: Callable[[Any, Any], tuple[Any, Any]]
) -> Any:
    """The first accepted value of each element; ``propose(u, v)`` returns values and whether each is accepted."""

    def step(carry: Any) -> Any:
        value, accepted, key = carry
        key, key_u, key_v = split(key, 3)
        candidate, good = propose(uniform(key_u, shape, dtype) - 0.5, uniform(key_v, shape, dtype))
        return where(good, candidate, value), accepted | good, key

    start = full(shape, -1, dtype), zeros(shape, "bool"), asarray(key)
    return _while_any(lambda carry: ~carry[1], step, start)


def _poisson_small(key: Any, rate: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """The number of exponential waiting times whose sum is within the rate."""

    def step(carry: Any) -> Any:
        count, log_product, key = carry
        key, subkey = split(key)
        count = where(log_product > -rate, count + 1, count)
        return count, log_product + log(uniform(subkey, shape, "float32")), key

    start = zeros(shape, dtype), zeros(shape, "float32"), asarray(key)
    return _while_any(lambda carry: carry[1] > -rate, step, start) - 1


def _poisson_large(key: Any, rate: Any, shape: tuple[int, ...]) -> Any:
    b = 0.931 + 2.53 * sqrt(rate)
    a = -0.059 + 0.02483 * b
    inverse_alpha, squeeze = 1.1239 + 1.1328 / (b - 3.4), 0.9277 - 3.6224 / (b - 2)
    log_rate = log(rate)

    def propose(u: Any, v: Any) -> tuple[Any, Any]:
        edge = 0.5 - abs(u)
        k = floor((2 * a / edge + b) * u + rate + 0.43)
        quick = (edge >= 0.07) & (v <= squeeze)
        out = (k < 0) | ((edge < 0.013) & (v > edge))
        bound = -rate + k * log_rate - ops.lgamma(k + 1)
        return k, quick | (~out & (log(v * inverse_alpha / (a / (edge * edge) + b)) <= bound))

    return _until_accepted(key, shape, typeof(rate).dtype, propose)


@placed
@drawn
def poisson(key: Any, lam: Any, shape: Shape | None = None, dtype: Any = None) -> Any:
    """Draw from the Poisson distribution with rate ``lam``: probability ``lam**k * exp(-lam) / k!``.

    Args:
      lam: number or array. The result has its shape unless ``shape`` is given. Where it is negative, infinite or NaN,
        the result is -1, as integers have no NaN.
      dtype: an integer dtype. In an unsigned dtype, -1 wraps around.

    Raises:
      DrawnTypeError: ``dtype`` is not an integer dtype.
      ShapeError: ``lam`` does not broadcast to ``shape``.

    >>> poisson(PRNGKey(0), 3.0, (4,)).shape
    (4,)
    """
    target = dtypes.default_int() if dtype is None else dtypes.requested(dtype, "random.poisson")
    if not dtypes.is_integer(target):
        raise DrawnTypeError(f"random.poisson: dtype must be an integer type, got {target}; convert the result")
    sizes = draw_shape("poisson", shape, lam)
    rate = parameter(lam, dtypes.float32, sizes)
    small, large = (rate >= 0) & (rate < 10), (rate >= 10) & (rate < np.inf)
    few = _poisson_small(key, where(small, rate, 0), sizes, target)
    many = _poisson_large(clone(key), where(large, rate, 1e5), sizes)
    drawn = where(small, few, ops.convert(many, target))
    none = np.asarray(-1).astype(target)
    return where(rate == 0, 0, where(small | large, drawn, none))


#: the difference of log k! and Stirling's approximation, for k up to 9
_STIRLING = np.array(
    [
        0.0810614667953272, 0.0413406959554092, 0.0276779256849983, 0.02079067210376509, 0.0166446911898211,
        0.0138761288230707, 0.0118967099458917, 0.0104112652619720, 0.00925546218271273, 0.00833056343336287,
    ]
)  # fmt: skip


def _stirling_rest(k: Any) -> Any:
    small = clip(k, 0, 9)
    squared = (small + 1) * (small + 1)
    series = (1 / 12 - (1 / 360 - 1 / 1260 / squared) / squared) / (small + 1)
    table = asarray(_STIRLING.astype(typeof(k).dtype))
    return where(k <= 9, take(table, ops.convert(floor(small), dtypes.int32), mode="clip"), series)


def _binomial_small(key: Any, count: Any, q: Any, shape: tuple[int, ...]) -> Any:
    """The number of geometric waiting times whose sum is within the count."""
    dtype = typeof(q).dtype
    log_miss = log1p(-q)

    def step(carry: Any) -> Any:
        number, total, key = carry
        subkey, key = split(key)
        number = where(total <= count, number + 1, number)
        return number, total + ceil(log(uniform(subkey, shape, dtype)) / log_miss), key

    start = zeros(shape, dtype), zeros(shape, dtype), asarray(key)
    return _while_any(lambda carry: carry[1] <= count, step, start) - 1


def _binomial_large(key: Any, count: Any, q: Any, shape: tuple[int, ...]) -> Any:
    deviation = sqrt(count * q * (1 - q))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * q
    center, squeeze, odds = count * q + 0.5, 0.92 - 4.2 / b, q / (1 - q)
    alpha = (2.83 + 5.1 / b) * deviation
    mode = floor((count + 1) * q)

    def propose(u: Any, v: Any) -> tuple[Any, Any]:
        edge = 0.5 - abs(u)
        k = floor((2 * a / edge + b) * u + center)
        quick = (edge >= 0.07) & (v <= squeeze)
        bound = (
            (mode + 0.5) * log((mode + 1) / (odds * (count - mode + 1)))
            + (count + 1) * log((count - mode + 1) / (count - k + 1))
            + (k + 0.5) * log(odds * (count - k + 1) / (k + 1))
            + _stirling_rest(mode)
            + _stirling_rest(count - mode)
            - _stirling_rest(k)
            - _stirling_rest(count - k)
        )
        out = (k < 0) | (k > count)
        return k, quick | (~out & (log(v * alpha / (a / (edge * edge) + b)) <= bound))

    return _until_accepted(key, shape, typeof(q).dtype, propose)


@drawn
def binomial(key: Any, n: Any, p: Any, shape: Shape | None = None, dtype: Any = None) -> Any:
    """Draw from the binomial distribution: the number of successes in ``n`` trials with probability ``p``.

    The result is NaN where ``n`` or ``p`` is negative or NaN.

    Args:
      n, p: numbers or arrays. The result has the shape that they broadcast to unless ``shape`` is given.
      dtype: a float dtype.

    Raises:
      DTypeError: ``dtype`` is not a float dtype.
      ShapeError: ``n`` and ``p`` do not broadcast to ``shape``.

    >>> binomial(PRNGKey(0), 10, 0.3, (4,)).shape
    (4,)
    """
    target, sizes = float_dtype(dtype, "binomial"), draw_shape("binomial", shape, n, p)
    inner = inexact(aval_of(p, "random.binomial", 2).dtype)
    given, chance = parameter(n, inner, sizes), parameter(p, inner, sizes)
    below = chance < 0.5
    q = where(below, chance, 1 - chance)
    bad_count, bad_chance = isnan(given) | (given < 0), isnan(q) | (q < 0)
    q = where(bad_chance, 0.01, q)
    small = bad_count | isinf(given) | (given * q <= 10)
    whole = floor(given)
    few = _binomial_small(key, where(small & ~(bad_count | isinf(given)), whole, 0), q, sizes)
    many = _binomial_large(clone(key), where(small, 1e4, whole), where(small, 0.5, q), sizes)
    drawn = ops.convert(where(small, few, many), target)
    invalid = bad_count | bad_chance
    drawn = where(invalid, np.nan, where(isinf(given) & ~invalid, np.inf, drawn))
    as_is = below | bad_count | isnan(chance) | isinf(given)
    return where(as_is, drawn, ops.convert(whole, target) - drawn)


@drawn
def multinomial(
    key: Any, n: Any, p: Any, *, shape: Shape | None = None, dtype: Any = None, unroll: int | bool = 1
) -> Any:
    """Draw from the multinomial distribution: the count of each class in ``n`` draws with probabilities ``p``.

    Args:
      n: number or array that broadcasts to the result's shape without classes.
      p: shape (..., classes).
      shape: the shape of the result, with classes; by default the shape that ``n`` and ``p`` broadcast to.
      dtype: a float or integer dtype.

    Raises:
      DrawnTypeError: another ``dtype``.

    >>> multinomial(PRNGKey(0), 10, np.array([0.2, 0.8])).sum().item()
    10.0
    """
    target = dtypes.default_float() if dtype is None else dtypes.requested(dtype, "random.multinomial")
    if not (dtypes.is_float(target) or dtypes.is_integer(target)):
        raise DrawnTypeError(f"random.multinomial: dtype must be a float or integer type, got {target}")
    within = inexact(result_type(n, p))
    chances = asarray(p)
    lead, classes = typeof(chances).shape[:-1], typeof(chances).shape[-1]
    sizes = (*draw_shape("multinomial", None, n, zeros(lead)), classes) if shape is None else tuple(shape)
    total = parameter(n, within, sizes[:-1])
    chances = moveaxis(broadcast_to(ops.convert(chances, within), sizes), -1, 0)
    left = cumsum(chances, 0, reverse=True)
    ratios = chances / where(left == 0, 1, left)

    def step(rest: Any, given: Any) -> tuple[Any, Any]:
        ratio, subkey = given
        count = binomial(subkey, rest, clip(ratio, 0, 1), dtype=within)
        return rest - count, count

    drawn = scan(step, total, (ratios, split(key, classes)), unroll=unroll)[1]
    return ops.convert(moveaxis(drawn, 0, -1), target)
