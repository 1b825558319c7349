"""Reductions other than the sum: max, min, prod, and, or, xor; argmax and argmin.

All except ``xor``, ``argmax`` and ``argmin`` leave a partial result if a reduced dimension is split. Positions of
extrema cannot be combined without their values: ``argmax`` first exchanges the local maxima, never the operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.static import static_indices
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Localizer, Value
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Dual, Op, Tangent
from meshwright.ir.tracing import infer_cached, trace_to_jaxpr, typeof
from meshwright.ops.composite import Composite
from meshwright.ops.elementwise.monoid import AND, MAX, MIN, OR, PROD, XOR, Monoid, member
from meshwright.ops.elementwise.table import add, convert, div, eq, gt, lt, mul, ne, or_, scalar_like, select
from meshwright.ops.shape.broadcast_reduce import (
    axes_before_merging,
    batch_reduce_axes,
    broadcast_in_dim,
    emit_reduce,
    infer_reduce,
    iota,
    match_shape,
    reduce_rule,
    reduce_sum,
)
from meshwright.ops.shape.rearrange import expand_dims, squeeze
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim
from meshwright.sharding.rule import REDUCTION, WINDOW, ShardingRule


@dataclass(frozen=True)
class Reduction(Op):
    """Base class: reduces over ``axes`` with the binary op of a commutative monoid."""

    axes: tuple[int, ...]
    monoid: ClassVar[Monoid]
    accepts: ClassVar[Callable[[np.dtype], bool]] = staticmethod(lambda d: True)
    expects: ClassVar[str] = ""

    def infer(self, x: ShapedArray) -> ShapedArray:
        if not type(self).accepts(x.dtype):
            raise DTypeError(f"{self.name}: operand {x} has dtype {x.dtype}, expected {self.expects}; convert it first")
        return infer_reduce(self.name, x, self.axes)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        y = self.bind(*primals)
        return y, self.tangent(primals[0], tangents[0], y)

    def tangent(self, x: Any, t: Any, y: Any) -> Any:
        """The tangent of the result ``y`` for the tangent ``t`` of ``x``."""
        raise NotImplementedError

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        new, out = batch_reduce_axes(self.axes, dims[0])  # type: ignore[arg-type]
        return type(self)(new).bind(*args), out

    def before_merging(self, x: Value, groups: Sequence[tuple[int, ...]]) -> list[Value] | None:
        return [type(self)(axes_before_merging(self.axes, groups)).bind(x)]

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        return reduce_rule(x, self.axes, self.monoid.kind)

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        dtype = b.in_avals[0].dtype
        return emit_reduce(b, x, self.axes, self.monoid.region(b, dtype), self.monoid.identity(dtype))


def _bits(dtype: np.dtype) -> bool:
    return dtypes.is_bool(dtype) or dtypes.is_integer(dtype)


@dataclass(frozen=True)
class _Extremum(Reduction):
    def tangent(self, x: Any, t: Any, y: Any) -> Any:
        # Elements equal to the extremum share the derivative equally.
        if typeof(x).size == 0:  # there are none
            return match_shape(np.zeros((), typeof(y).dtype), typeof(y))
        kept = [d for d in range(typeof(x).ndim) if d not in self.axes]
        mine = convert(eq(x, broadcast_in_dim(y, typeof(x).shape, kept)), typeof(x).dtype)
        return div(reduce_sum(mul(t, mine), self.axes), reduce_sum(mine, self.axes))


ReduceMax = member(_Extremum, MAX, "ReduceMax", "reduce_max", "Maximum over ``axes``; NaN if there is one.")
ReduceMin = member(_Extremum, MIN, "ReduceMin", "reduce_min", "Minimum over ``axes``; NaN if there is one.")


@dataclass(frozen=True)
class ReduceProd(Reduction):
    """Product over ``axes``."""

    name: ClassVar[str] = "reduce_prod"
    monoid: ClassVar[Monoid] = PROD
    accepts: ClassVar[Callable[[np.dtype], bool]] = staticmethod(lambda d: not dtypes.is_bool(d))
    expects: ClassVar[str] = "numbers"

    def tangent(self, x: Any, t: Any, y: Any) -> Any:
        # Dividing the product by each factor fails at zeros. A tree of pairwise products is right there too, and so are
        # its higher derivatives.
        for axis in self.axes:
            x, t = _tree_product(x, t, axis)
        return squeeze(t, self.axes)


def _tree_product(x: Any, t: Any, axis: int) -> tuple[Any, Any]:
    """The product along ``axis``, which keeps size 1, and its tangent."""
    shape = typeof(x).shape
    n = shape[axis]
    if n == 0:
        one = broadcast_in_dim(scalar_like(1, x), (*shape[:axis], 1, *shape[axis + 1 :]), ())
        return one, reduce_sum(expand_dims(t, [axis]), [axis + 1])
    while n > 1:
        half = n // 2
        (x0, t0), (x1, t1) = ([slice_in_dim(v, start, start + half, axis=axis) for v in (x, t)] for start in (0, half))
        rest = [slice_in_dim(v, 2 * half, n, axis=axis) for v in (x, t)] if n % 2 else None
        x, t = mul(x0, x1), add(mul(t0, x1), mul(x0, t1))
        if rest is not None:
            x, t = concatenate([x, rest[0]], axis), concatenate([t, rest[1]], axis)
        n = half + n % 2
    return x, t


@dataclass(frozen=True)
class _Bitwise(Reduction):
    accepts: ClassVar[Callable[[np.dtype], bool]] = staticmethod(_bits)
    expects: ClassVar[str] = "bool or integer"

    def infer(self, x: ShapedArray) -> ShapedArray:
        return super().infer(x).strong()


ReduceAnd = member(_Bitwise, AND, "ReduceAnd", "reduce_and", "Bitwise and over ``axes``.")
ReduceOr = member(_Bitwise, OR, "ReduceOr", "reduce_or", "Bitwise or over ``axes``.")


def _split_axes(ctx: Localizer, axes: Sequence[int]) -> tuple[str, ...]:
    """The mesh axes that split the reduced dimensions of operand 0."""
    return tuple(a for d in axes if ctx.is_split(0, d) for a in ctx.axes(0, d))


@dataclass(frozen=True)
class ReduceXor(_Bitwise):
    """Bitwise exclusive or over ``axes``. No collective supports it, so the local results are gathered."""

    name: ClassVar[str] = "reduce_xor"
    monoid: ClassVar[Monoid] = XOR

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        return _exchanging_rule(x, self.axes)

    def localize(self, ctx: Localizer, x: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        for d in self.axes:
            x = ctx.mask(x, 0, d, self.monoid.identity(typeof(x).dtype))
        y = self.bind(x)
        axes = _split_axes(ctx, self.axes)
        return ReduceXor((0,)).bind(ctx.all_gather(expand_dims(y, [0]), axes, 0)) if axes else y


def _exchanging_rule(x: ShapedArray, axes: Sequence[int]) -> ShardingRule:
    """The rule of a reduction for which a split needs an exchange in ``localize``, and leaves no partial result."""
    rule = reduce_rule(x, axes, "sum")
    factors = tuple(type(f)(f.name, f.size, WINDOW if f.kind == REDUCTION else f.kind) for f in rule.factors)
    return ShardingRule(factors, rule.operands, rule.results)


# --- argmax, argmin -----------------------------------------------------------------------------------------
#: the longest dimension that is reduced in pairs on CPUs: up to here they take .4 to 1.2 times the time of two
#: reductions (.67 in the mean), beyond it 2 to 8 times; on TPUs half the cycles (as estimated) and half the memory
_MOST_PAIRS = 16


@dataclass(frozen=True)
class _ArgExtremum(Composite):
    """Position of the extremum along the single dimension in ``axes``: the first NaN if there is one, else the
    first."""

    axes: tuple[int, ...]
    index_dtype: np.dtype
    reduction: ClassVar[type[Reduction]] = Reduction

    def infer(self, x: ShapedArray) -> ShapedArray:
        out = infer_reduce(self.name, x, self.axes)
        if len(self.axes) != 1 or x.shape[self.axes[0]] == 0:
            raise ShapeError(
                f"{self.name}: expected one axis of positive size, got axes {self.axes} of shape {x.shape}; flatten "
                "the array for the position among all elements"
            )
        if not dtypes.is_integer(self.index_dtype):
            raise DTypeError(f"{self.name}: index_dtype must be an integer dtype, got {self.index_dtype}")
        return ShapedArray(out.shape, self.index_dtype)

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        new, out = batch_reduce_axes(self.axes, dims[0])  # type: ignore[arg-type]
        return type(self)(new, self.index_dtype).bind(*args), out

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        (x,), (out,) = b.in_avals, b.out_avals
        if not self._has_pairs(b.platform, x):
            return super().emit(b, *operands)
        pair = [out.update(dtype=x.dtype), out]
        firsts = self.reduction.monoid.identity(x.dtype), dtypes.max_value(self.index_dtype)
        inits = [b.constant(first, ShapedArray((), a.dtype)) for first, a in zip(firsts, pair)]
        positions = ShapedArray(x.shape, self.index_dtype)
        iotas = b.op("stablehlo.iota", [], [positions], iota_dimension=self.axes[0])
        region = b.jaxpr_region(_first_best(self.reduction is ReduceMin, x.dtype, self.index_dtype))
        return b.op("stablehlo.reduce", [*operands, *iotas, *inits], pair, regions=[region], dimensions=self.axes)[1]

    def _has_pairs(self, platform: str, x: ShapedArray) -> bool:
        """Whether values are best reduced together with their positions, which reads them once."""
        if not (dtypes.is_float(x.dtype) or dtypes.is_integer(x.dtype)):
            return False
        return platform != "cpu" or x.shape[self.axes[0]] <= _MOST_PAIRS

    def expand(self, x: Value) -> list[Value]:
        # Two plain reductions, the second of which compares with the result of the first.
        shape = typeof(x).shape
        extremum = self.reduction(self.axes).bind(x)
        positions = iota(self.index_dtype, shape, self.axes[0])
        return [self._least_position(x, extremum, positions)]

    def _least_position(self, x: Any, extremum: Any, positions: Any) -> Any:
        """The smallest of ``positions`` where ``x`` is the extremum, or NaN."""
        shape = typeof(x).shape
        kept = [d for d in range(len(shape)) if d not in self.axes]
        candidates = select(
            _is_best(x, broadcast_in_dim(extremum, shape, kept)),
            positions,
            match_shape(dtypes.max_value(self.index_dtype), typeof(positions)),
        )
        return ReduceMin(self.axes).bind(candidates)

    def before_merging(self, x: Value, groups: Sequence[tuple[int, ...]]) -> list[Value] | None:
        """Reduce within each row of the last dimension, then among the rows, and so on."""
        *rest, d = groups[self.axes[0]]
        value, position, size = self.reduction((d,)).bind(x), type(self)((d,), self.index_dtype).bind(x), x.shape[d]
        for d in reversed(rest):
            rows = iota(self.index_dtype, typeof(value).shape, d)
            extremum = self.reduction((d,)).bind(value)
            along = type(self)((d,), self.index_dtype)
            position = along._least_position(value, extremum, add(position, mul(rows, scalar_like(size, rows))))
            value, size = extremum, size * x.shape[d]
        return [position]

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        return _exchanging_rule(x, self.axes)

    def localize(self, ctx: Localizer, x: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        (d,) = self.axes
        if not ctx.is_split(0, d):
            return self.bind(x)
        axes = ctx.axes(0, d)
        reduction = self.reduction(self.axes)
        x = ctx.mask(x, 0, d, reduction.monoid.identity(typeof(x).dtype))
        value = reduction.bind(x)
        first = convert(ctx.tile_index(axes), self.index_dtype)
        first = mul(first, np.array(ctx.in_local_shapes[0][d], self.index_dtype))
        position = add(self.bind(x), first)
        best = ctx.all_reduce(value, axes, reduction.monoid.kind)
        nowhere = match_shape(dtypes.max_value(self.index_dtype), typeof(position))
        return ctx.all_reduce(select(_is_best(value, best), position, nowhere), axes, "min")


@lru_cache(maxsize=256)
def _first_best(least: bool, dtype: np.dtype, index_dtype: np.dtype) -> ClosedJaxpr:
    """Of two pairs of a value and its position, the one with NaN, else with the better value, else the first one."""

    def choose(a: Any, i: Any, b: Any, j: Any) -> list[Any]:
        a_wins, b_wins = (lt(a, b), lt(b, a)) if least else (gt(a, b), gt(b, a))
        if dtypes.is_inexact(dtype):
            a_wins, b_wins = or_(a_wins, ne(a, a)), or_(b_wins, ne(b, b))
        keep = select(eq(a_wins, b_wins), lt(i, j), a_wins)
        return [select(keep, a, b), select(keep, i, j)]

    pair = [ShapedArray((), dtype), ShapedArray((), index_dtype)]
    return trace_to_jaxpr(choose, [*pair, *pair])


def _is_best(x: Any, best: Any) -> Any:
    """Whether ``x`` equals the extremum, or is NaN (then the extremum is NaN, which equals nothing)."""
    equal = eq(x, best)
    return or_(equal, ne(x, x)) if dtypes.is_inexact(typeof(x).dtype) else equal


@dataclass(frozen=True)
class ArgMax(_ArgExtremum):
    """Position of the maximum; the first of equal ones."""

    name: ClassVar[str] = "argmax"
    reduction: ClassVar[type[Reduction]] = ReduceMax


@dataclass(frozen=True)
class ArgMin(_ArgExtremum):
    """Position of the minimum; the first of equal ones."""

    name: ClassVar[str] = "argmin"
    reduction: ClassVar[type[Reduction]] = ReduceMin


# --- functions ----------------------------------------------------------------------------------------------
def _normal(x: Any, axes: Sequence[int]) -> tuple[int, ...]:
    ndim = typeof(x).ndim
    return tuple(d + ndim if -ndim <= d < 0 else d for d in static_indices(axes, "a reduction"))


def _reducer(op: type[Reduction], what: str, example: str) -> Callable[[Any, Sequence[int]], Any]:
    def reduce(operand: Any, axes: Sequence[int]) -> Any:
        axes = _normal(operand, axes)
        if not axes:
            infer_cached(op(axes), (typeof(operand),))  # the checks of all operands
            return operand
        return op(axes).bind(operand)

    takes = f"      DTypeError: ``operand`` does not hold {op.expects}.\n" if op.expects else ""
    reduce.__name__ = reduce.__qualname__ = op.name
    reduce.__doc__ = f"""{what} of the elements of ``operand`` over its dimensions ``axes``, which go.

    Negative axes count from the end. The dtype stays.

    Raises:
      ShapeError: axes that do not exist, or are named twice.
{takes}
    Example:
      {example}
    """
    return reduce


reduce_max = _reducer(
    ReduceMax,
    "The maximum, or NaN if there is one,",
    """>>> x = jnp.array([[3, 1, 2], [4, 6, 5]])
      >>> lax.reduce_max(x, (1,)).tolist(), int(lax.reduce_max(x, (0, 1)))
      ([3, 6], 6)""",
)
reduce_min = _reducer(
    ReduceMin,
    "The minimum, or NaN if there is one,",
    """>>> x = jnp.array([[3, 1, 2], [4, 6, 5]])
      >>> lax.reduce_min(x, (0,)).tolist(), int(lax.reduce_min(x, (0, 1)))
      ([3, 1, 2], 1)""",
)
reduce_prod = _reducer(
    ReduceProd,
    "The product",
    """>>> lax.reduce_prod(jnp.array([[3, 1, 2], [4, 6, 5]]), (1,)).tolist()
      [6, 120]""",
)
reduce_and = _reducer(
    ReduceAnd,
    "The bitwise and",
    """>>> flags = jnp.array([[True, True], [False, True]])
      >>> lax.reduce_and(flags, (0,)).tolist(), int(lax.reduce_and(jnp.array([7, 13]), (0,)))
      ([False, True], 5)""",
)
reduce_or = _reducer(
    ReduceOr,
    "The bitwise or",
    """>>> flags = jnp.array([[True, True], [False, False]])
      >>> lax.reduce_or(flags, (1,)).tolist(), int(lax.reduce_or(jnp.array([4, 9]), (0,)))
      ([True, False], 13)""",
)
reduce_xor = _reducer(
    ReduceXor,
    "The bitwise exclusive or",
    """>>> int(lax.reduce_xor(jnp.array([6, 3, 9]), (0,)))
      12""",
)


def _position(op: type[_ArgExtremum], what: str, example: str) -> Callable[..., Any]:
    def position(operand: Any, axis: int, index_dtype: Any = np.int32) -> Any:
        return op(_normal(operand, [axis]), dtypes.requested(index_dtype, op.name)).bind(operand)

    position.__name__ = position.__qualname__ = op.name
    position.__doc__ = f"""The position of the {what} along ``axis``, which goes: of equal ones the lowest, and that of
    the first NaN if there is one.

    Raises:
      ShapeError: an axis that does not exist, or an empty one.
      DTypeError: an ``index_dtype`` that is no integer dtype.

    Example:
      {example}
    """
    return position


argmax = _position(
    ArgMax,
    "maximum",
    """>>> lax.argmax(jnp.array([[3, 7, 7], [9, 6, 5]]), 1, np.int32).tolist()
      [1, 0]""",
)
argmin = _position(
    ArgMin,
    "minimum",
    """>>> lax.argmin(jnp.array([[3, 7, 7], [9, 6, 5]]), 0, np.int32).tolist()
      [0, 1, 1]""",
)
