"""Domains and images of ops: the rules ``domain`` and ``image`` of :class:`~meshwright.ir.op.Op`.

A domain is the interval in which an operand must be for the result to be defined, and to lie where it is used later.
The rules are in one place since each takes a line or two, and only together they determine suitable inputs of a
program: nonnegative if a square root is taken of them, within a dimension if they index it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.ir.interval import ANYWHERE, BITS, INF, NON_NEGATIVE, POSITIVE, UNIT, Interval
from meshwright.ir.op import REGISTRY

# imported to register their ops
from meshwright.ops.collective import exchange  # noqa: F401
from meshwright.ops.control import remat  # noqa: F401
from meshwright.ops.indexing import dynamic_slice, gather_scatter  # noqa: F401
from meshwright.ops.indexing.gather_add import ScatterBase
from meshwright.ops.linalg import cholesky  # noqa: F401
from meshwright.ops.products import conv, dot  # noqa: F401
from meshwright.ops.random import gamma  # noqa: F401
from meshwright.ops.reduce import cumulative, reductions  # noqa: F401
from meshwright.ops.sort import sorting  # noqa: F401
from meshwright.ops.special import incomplete_beta, incomplete_gamma  # noqa: F401
from meshwright.ops.window import reductions as windowed  # noqa: F401

Intervals = Sequence[Interval]
Avals = Sequence[ShapedArray]
Domain = Callable[[Any, Intervals, Intervals, Avals], Intervals]
Image = Callable[[Intervals], Interval]


def _declare(names: str, domain: Domain | None = None, image: Image | None = None) -> None:
    """Set the rules of the ops with these names."""
    for name in names.split():
        cls: Any = REGISTRY[name]
        if domain is not None:
            cls.domain = domain
        if image is not None:
            cls.image = lambda self, known, avals, image=image: image(known)


def _fixed(*domains: Interval) -> Domain:
    """Fixed domains of the operands, independent of the interval wanted for the result."""
    return lambda op, wishes, known, avals: domains


def _bounds(f: Callable[[float], float], low: float = -INF) -> Image:
    """The image under an increasing function that is defined from ``low`` on."""

    def image(known: Intervals) -> Interval:
        ends = [_or_infinite(f, max(x, low), x) for x in (known[0].low, known[0].high)]
        return Interval(min(ends), max(ends))

    return image


def _or_infinite(f: Callable[[float], float], x: float, sign: float) -> float:
    try:
        return f(x)
    except (OverflowError, ValueError):
        return math.copysign(INF, sign)


def _inverse(inverse: Callable[[float], float], domain: Interval = ANYWHERE) -> Domain:
    """The operands of an increasing function, within its domain, whose results are in the wanted interval."""

    def rule(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
        wish = wishes[0]
        low, high = (_or_infinite(inverse, x, x) for x in (wish.low, wish.high))
        return [wish.between(low, high).meet(domain) if domain.holds(Interval(low, high)) else domain]

    return rule


def _through(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
    """The interval wanted for the result applies to all operands."""
    return [wishes[0].without_columns()] * len(avals)


def _signs(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
    """Sums and products of nonnegative numbers are nonnegative."""
    return [NON_NEGATIVE if wishes[0].low >= 0 else ANYWHERE] * len(avals)


def _hull(known: Intervals) -> Interval:
    hull = known[0]
    for other in known[1:]:
        hull = hull.hull(other)
    return hull


# --- functions of one number --------------------------------------------------------------------------------
_declare("sqrt", _inverse(lambda x: x * abs(x), NON_NEGATIVE), _bounds(math.sqrt, 0))
_declare("rsqrt log lgamma digamma", _fixed(POSITIVE))
_declare("log", _inverse(math.exp, POSITIVE), _bounds(lambda x: math.log(x) if x else -INF, 0))
_declare("log1p", _inverse(math.expm1, Interval(-1 + 1e-6)), _bounds(lambda x: math.log1p(x) if x > -1 else -INF, -1))
_declare("exp", _inverse(lambda x: math.log(x) if x > 0 else -INF), _bounds(math.exp))
_declare("expm1", _inverse(lambda x: math.log1p(x) if x > -1 else -INF), _bounds(math.expm1))
_declare("asin acos atanh erf_inv", _fixed(Interval(-1 + 1e-6, 1 - 1e-6)))
_declare("acosh", _fixed(Interval(low=1)))
_declare("tanh erf sin cos", image=lambda known: UNIT)
_declare("logistic is_finite not eq ne lt le gt ge", image=lambda known: BITS)
_declare("square abs exp2 cosh erfc rsqrt", image=lambda known: NON_NEGATIVE)
_declare("neg", lambda op, wishes, known, avals: [-wishes[0]], lambda known: -known[0])
_declare("floor ceil round_nearest_even round_nearest_afz reduce_precision copy stop_gradient rev", _through, _hull)
_declare("convert_element_type real sort", _through, _hull)
_declare("zeta", _fixed(Interval(1.1, 10), POSITIVE))
_declare("polygamma", _fixed(Interval(0, 4, whole=True), POSITIVE))
_declare("igamma igammac igamma_grad_a gamma_density random_gamma_grad", _fixed(POSITIVE, NON_NEGATIVE))
_declare("betainc", _fixed(POSITIVE, POSITIVE, Interval(0, 1)))
_declare("random_gamma", lambda op, wishes, known, avals: [*[ANYWHERE] * (len(avals) - 1), POSITIVE])


def _square(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
    root = math.sqrt(wishes[0].high) if wishes[0].high > 0 else INF
    return [wishes[0].between(-root, root)]


def _power(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
    return [NON_NEGATIVE if op.y % 2 and wishes[0].low >= 0 else ANYWHERE]


_declare("square", _square)
_declare("integer_pow", _power)
REGISTRY["integer_pow"].image = lambda self, known, avals: (  # type: ignore
    ANYWHERE if self.y % 2 and known[0].low < 0 else NON_NEGATIVE  # type: ignore
)


# --- arithmetic ---------------------------------------------------------------------------------------------
def _term(wish: Interval, other: Interval) -> Interval:
    """The interval for one term such that its sum with the other, known term is in the wanted interval."""
    low, high = wish.low - other.low, wish.high - other.high
    return wish.between(low, high) if low <= high else ANYWHERE


def _halved(wish: Interval) -> Interval:
    return replace(wish, low=wish.low / 2, high=wish.high / 2, columns=())


def _is_bounded(x: Interval) -> bool:
    return x.low > -INF and x.high < INF


def _add(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
    (wish,), (a, b) = wishes, known
    if _is_bounded(a) or _is_bounded(b):
        return [_term(wish, b) if _is_bounded(b) else ANYWHERE, _term(wish, a) if _is_bounded(a) else ANYWHERE]
    return [_halved(wish), _halved(wish)]


def _sub(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
    (wish,), (a, b) = wishes, known
    minus_a = Interval(-a.high, -a.low)
    return [
        _term(wish, Interval(-b.high, -b.low)) if _is_bounded(b) else ANYWHERE,
        _term(-wish, minus_a) if _is_bounded(a) else ANYWHERE,
    ]


def _factor(wish: Interval, other: Interval) -> Interval:
    """The interval for one factor, given another that is positive or nonnegative."""
    if other.low > 0 and other.high < INF:
        low = max(wish.low / other.low, wish.low / other.high)
        high = min(wish.high / other.low, wish.high / other.high)
        return replace(wish, low=low, high=high, columns=()) if low <= high else ANYWHERE
    return wish.between(0, INF) if wish.low >= 0 else ANYWHERE


def _mul(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
    (wish,), (a, b) = wishes, known
    return [_factor(wish, b), _factor(wish, a)]


def _div(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
    (wish,), (_, b) = wishes, known
    if not dtypes.is_inexact(avals[1].dtype):
        return [ANYWHERE, Interval(low=1)]
    inverse = Interval(1 / b.high, 1 / b.low) if 0 < b.low and b.high < INF else ANYWHERE
    return [_factor(wish, inverse), POSITIVE if wish.low >= 0 else ANYWHERE]


def _pow(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
    (wish,), (a, b) = wishes, known
    if b.low == b.high and b.low.is_integer():
        return [NON_NEGATIVE if b.low % 2 and wish.low >= 0 else ANYWHERE, ANYWHERE]
    if 0 < a.low and a.high < 1 and wish.high <= 1:
        return [ANYWHERE, wish.between(max(0.0, math.log(wish.high) / math.log(a.high)) if wish.high > 0 else 1, INF)]
    return [POSITIVE, ANYWHERE]


def _of_power(known: Intervals) -> Interval:
    a, b = known
    if 0 <= a.low and a.high <= 1 and b.low >= 0:
        return Interval(0, a.high if b.low >= 1 else 1)
    return NON_NEGATIVE if a.low >= 0 else ANYWHERE


def _clamp(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
    inside = Interval(known[0].low, known[2].high)
    wish = inside if dtypes.is_integer(avals[1].dtype) else wishes[0]
    return [ANYWHERE, wish if wish.low <= wish.high else ANYWHERE, ANYWHERE]


_declare("add", _add, lambda known: known[0] + known[1])
_declare("sub", _sub, lambda known: known[0] + -known[1])
_declare("mul", _mul, lambda known: known[0] * known[1])
_declare("div", _div, lambda known: NON_NEGATIVE if known[0].low >= 0 and known[1].low >= 0 else ANYWHERE)
_declare("rem", _div)
REGISTRY["mul"].even = True
_declare("pow", _pow, _of_power)
_declare("clamp", _clamp, lambda known: Interval(known[0].low, known[2].high))
_declare("max", _through, lambda known: Interval(max(k.low for k in known), max(k.high for k in known)))
_declare("min", _through, lambda known: Interval(min(k.low for k in known), min(k.high for k in known)))
_declare("shift_left shift_right_logical shift_right_arithmetic", _fixed(ANYWHERE, Interval(0, 7)))
_declare("select_n", lambda op, wishes, known, avals: [
    BITS if len(avals) == 3 else Interval(0, len(avals) - 2), *[wishes[0].without_columns()] * (len(avals) - 1)
], lambda known: _hull(known[1:]))  # fmt: skip
_declare("and or xor", image=lambda known: BITS if all(BITS.holds(k) for k in known) else ANYWHERE)


# --- comparisons --------------------------------------------------------------------------------------------
def _beside(other: Interval, below: float, above: float) -> Interval:
    """Numbers on both sides of a known integer or range of integers."""
    return Interval(other.low - below, other.high + above, weak=True) if _is_bounded(other) else ANYWHERE


def _equality(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
    """Intervals in which operands are sometimes equal: a 0/1 mask, a label among classes, a padding token among
    tokens."""
    intervals = [_beside(k, 0, 1 if k.low == k.high else 0) for k in known[::-1]]
    if dtypes.is_inexact(avals[0].dtype):
        return [replace(f, whole=True) if f.low == 0 and f.high == 1 else ANYWHERE for f in intervals]
    return intervals


def _order(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
    if dtypes.is_inexact(avals[0].dtype):
        return [ANYWHERE, ANYWHERE]
    return [_beside(k, 0, 1) for k in known[::-1]]


_declare("eq ne", _equality)
_declare("lt le gt ge", _order)


#: the maximum length of index vectors
_MOST_COLUMNS = 8


# --- sums, products, and what moves elements ----------------------------------------------------------------
_declare("reduce_sum cumsum dot_general conv_general_dilated reduce_prod cumprod reduce_window_sum psum", _signs)
_declare("reduce_sum cumsum reduce_prod cumprod", image=lambda known: NON_NEGATIVE if known[0].low >= 0 else ANYWHERE)
_declare("dot_general", image=lambda known: NON_NEGATIVE if min(k.low for k in known) >= 0 else ANYWHERE)
_declare("reduce_max reduce_min cummax cummin pmax pmin", _through, lambda known: known[0])
_declare("optimization_barrier", lambda op, wishes, known, avals: [w.without_columns() for w in wishes])
_declare("cholesky", _fixed(Interval(definite=True)))


def _concatenate(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
    columns = wishes[0].columns
    if not columns or op.dimension != avals[0].ndim - 1:
        return _through(op, wishes, known, avals)
    intervals, at = [], 0
    for aval in avals:
        mine = columns[at : at + aval.shape[-1]]
        intervals.append(mine[0] if len(mine) == 1 else replace(_hull(mine), columns=mine) if mine else ANYWHERE)
        at += aval.shape[-1]
    return intervals


def _slice(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
    """A column of an index matrix has the range of the dimension that it indexes."""
    wish, shape = wishes[0].without_columns(), avals[0].shape
    if not shape or not 1 < shape[-1] <= _MOST_COLUMNS or wish.says_nothing or wish.definite:
        return [wish]
    taken = range(op.start_indices[-1], op.limit_indices[-1], op.strides[-1])
    if len(taken) == shape[-1]:
        return [wish]
    return [Interval(weak=wish.weak, columns=tuple(wish if i in taken else ANYWHERE for i in range(shape[-1])))]


_declare("concatenate", _concatenate, _hull)
_declare("slice", _slice)
_declare("pad", lambda op, wishes, known, avals: [wishes[0].without_columns(), ANYWHERE], _hull)
REGISTRY["iota"].image = lambda self, known, avals: Interval(0, max(0, self.shape[self.dimension] - 1))  # type: ignore


# --- positions ----------------------------------------------------------------------------------------------
def _position(limit: int) -> Interval:
    return Interval(0, max(0, limit))


def _vectors(limits: Sequence[int]) -> Interval:
    """Index vectors, with one component per indexed dimension."""
    columns = tuple(map(_position, limits))
    return replace(_hull(columns), columns=columns) if columns else ANYWHERE


def _gather(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
    return [wishes[0].without_columns(), _vectors(op.dimension_numbers.limits(avals[0].shape, op.slice_sizes))]


def _scatter(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
    x, updates, count = avals[0], avals[-1], len(wishes)
    sizes = op.window(x.shape, updates.shape)
    values = [w.without_columns() for w in wishes]
    return [*values, _vectors(op.dimension_numbers.gather().limits(x.shape, sizes)), *values][: 2 * count + 1]


def _starts(op: Any, wishes: Intervals, known: Intervals, avals: Avals) -> Intervals:
    wish = wishes[0].without_columns()
    if op.name == "dynamic_slice":
        return [wish, *(_position(n - k) for n, k in zip(avals[0].shape, op.slice_sizes))]
    return [wish, wish, *(_position(n - k) for n, k in zip(avals[0].shape, avals[1].shape))]


_declare("gather", _gather)
_declare(" ".join(name for name, cls in REGISTRY.items() if issubclass(cls, ScatterBase)), _scatter)
_declare("dynamic_slice dynamic_update_slice", _starts)
_declare("cond", lambda op, wishes, known, avals: [_position(len(op.branches) - 1), *[ANYWHERE] * (len(avals) - 1)])
