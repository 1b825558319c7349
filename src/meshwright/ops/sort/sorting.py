"""sort by several keys or by any comparator, and argsort.

The order is total: -0.0 equals 0.0 (in a sort of a single array, it comes first), NaN is last, and complex numbers are
ordered by real part, then by imaginary part.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.static import static_index
from meshwright.errors import ArgumentError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Kernels, Localizer
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Dual, Op, Tangent, Zero
from meshwright.ir.probing import MOST_ARGUMENTS, grid, run, used
from meshwright.ir.reading import Reader, reads
from meshwright.ir.tracing import eval_jaxpr, typeof
from meshwright.ops.composite import emit_traced, traced
from meshwright.ops.control.cond import Cond
from meshwright.ops.elementwise.table import (
    BitcastConvert,
    and_,
    convert,
    eq,
    imag,
    lt,
    ne,
    neg,
    not_,
    or_,
    real,
    scalar_like,
    select,
    shift_right_arithmetic,
    xor,
)
from meshwright.ops.elementwise.total_order import total_order_direction
from meshwright.ops.indexing.gather_scatter import gather_along
from meshwright.ops.reduce.reductions import reduce_or
from meshwright.ops.scalar_body import along, apply_body, check_body, one_shape, read_body
from meshwright.ops.shape.broadcast_reduce import iota, match_shape
from meshwright.ops.shape.rearrange import above
from meshwright.ops.sort.network import bitonic, merges
from meshwright.ops.sort.tiles import LocalSorts, SortPasses, adds_padding, sort_tiles
from meshwright.sharding.rule import WINDOW, ShardingRule, make_rule

#: floats that are ordered like their bits as integers, once those of negative numbers are reversed
_ORDERED_BITS = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)


# --- order --------------------------------------------------------------------------------------------------
def _parts(x: Any) -> list[Any]:
    """Real keys that order a scalar."""
    if dtypes.is_complex(typeof(x).dtype):
        return [real(x), imag(x)]
    return [convert(x, dtypes.uint8)] if dtypes.is_bool(typeof(x).dtype) else [x]


def _less(a: Any, b: Any) -> Any:
    if not dtypes.is_float(typeof(a).dtype):
        return lt(a, b)
    return or_(lt(a, b), and_(ne(b, b), eq(a, a)))  # NaN is last


@dataclass(frozen=True)
class _Comparator:
    """For ``pairs`` of an element of each operand and its counterpart: whether the first elements come before the
    second."""

    num_keys: int

    def __call__(self, *pairs: Any) -> list[Any]:
        keys: list[Any] = []
        for i in range(self.num_keys):
            keys += zip(_parts(pairs[2 * i]), _parts(pairs[2 * i + 1]))
        a, b = keys.pop()
        before = _less(a, b)
        for a, b in reversed(keys):
            before = or_(_less(a, b), and_(not_(_less(b, a)), before))
        return [before]


def _float_to_ordered(x: Any) -> Any:
    """Signed integers in the order of floats."""
    canonical = select(ne(x, x), match_shape(scalar_like(np.nan, x), typeof(x)), x)
    return _flip_negative(_bits(canonical))


def _bits(x: Any) -> Any:
    return BitcastConvert(dtypes.signed_bits(typeof(x).dtype)).bind(x)


def _flip_negative(bits: Any) -> Any:
    width = dtypes.bit_width(typeof(bits).dtype)
    sign = shift_right_arithmetic(bits, scalar_like(width - 1, bits))
    return xor(bits, and_(sign, scalar_like(2 ** (width - 1) - 1, bits)))


def _last(dtype: np.dtype) -> np.ndarray:
    """A value that sorts after all others."""
    if dtypes.is_complex(dtype):
        return np.array(complex(np.nan, np.nan), dtype)
    return np.array(np.nan).astype(dtype) if dtypes.is_float(dtype) else dtypes.max_value(dtype)


@dataclass(frozen=True)
class _Positioned:
    """A comparator that takes positions as a last pair: equal elements keep their order, and positions from ``size`` on
    (padding) sort last."""

    comparator: ClosedJaxpr
    size: int

    def __call__(self, *args: Any) -> list[Any]:
        *pairs, p, q = args
        swapped = [pairs[i ^ 1] for i in range(len(pairs))]
        (before,), (after,) = (eval_jaxpr(self.comparator, self.comparator.consts, *v) for v in (pairs, swapped))
        earlier, size = lt(p, q), np.array(self.size, np.int32)
        both_exist = and_(lt(p, size), lt(q, size))
        return [select(both_exist, or_(before, and_(not_(after), earlier)), earlier)]


@dataclass(frozen=True)
class _Ignoring:
    """A comparator with an additional operand that it ignores."""

    comparator: ClosedJaxpr

    def __call__(self, *pairs: Any) -> list[Any]:
        return eval_jaxpr(self.comparator, self.comparator.consts, *pairs[:-2])


# --- sort ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Sorting(Op):
    """Base class of sorts: shapes, batching, and sorting along a split dimension."""

    dimension: int
    multiple_results: ClassVar[bool] = True
    takes_whole_rows: ClassVar[bool] = True

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        one_shape(self.name, avals)
        if not 0 <= self.dimension < avals[0].ndim:
            raise ShapeError(f"{self.name}: dimension {self.dimension} does not exist in shape {avals[0].shape}")
        return avals

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        place = next(d for d in dims if d is not None)
        full = [along(x, d, place, axis.size) for x, d in zip(args, dims)]
        outs = dataclasses.replace(self, dimension=above(self.dimension, place)).bind(*full)
        return outs, [place] * len(outs)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        moving = [not isinstance(t, Zero) for t in tangents]
        if not any(moving):
            outs = self.bind(*primals)
            return outs, [Zero(typeof(y)) for y in outs]
        positions = iota(np.int32, typeof(primals[0]).shape, self.dimension)
        *outs, order = self.with_positions().bind(*primals, positions)
        return outs, [
            gather_along(t, order, self.dimension) if m else Zero(typeof(y)) for y, t, m in zip(outs, tangents, moving)
        ]

    def with_positions(self) -> _Sorting:
        """This sort with an additional operand that does not affect the order."""
        return self

    # --- on a split dimension -------------------------------------------------------------------------------
    def carries_positions(self, avals: Sequence[ShapedArray], padded: bool) -> bool:
        """Whether positions must be sorted as well, to distinguish equal elements, or padding."""
        raise NotImplementedError

    def on_tiles(self, ctx: Localizer, arrays: Sequence[Any], positions: Any | None) -> tuple[_Sorting, list[Any], int]:
        """A sort for tiles, its operands (with ``positions`` after the other keys), and the number of them that come
        before the positions."""
        raise NotImplementedError

    def before(self, xs: Sequence[Any], ys: Sequence[Any]) -> Any:
        """Whether elements of ``xs``, arrays that are sorted together, come before those of ``ys``."""
        raise NotImplementedError

    def is_padded(self, ctx: Localizer) -> bool:
        """Whether tiles have padding, at least for a while."""
        d = self.dimension
        return ctx.is_uneven(0, d) or adds_padding(ctx.in_local_shapes[0][d], ctx.num_tiles(0, d))

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        names = [f"d{d}" for d in range(avals[0].ndim)]
        same, split = [names] * len(avals), names[self.dimension]
        nbytes, size = sum(a.dtype.itemsize for a in avals), avals[0].shape[self.dimension]
        growth = (nbytes + 4 * self.carries_positions(avals, False)) / nbytes
        passes = SortPasses(size, growth)
        rule = make_rule(
            same, same, dict(zip(names, avals[0].shape)), {split: WINDOW}, passes={split: passes},
            points=avals[0].size * merges(size), repeats={split: LocalSorts(size, growth)},
        )  # fmt: skip
        return dataclasses.replace(rule, sweeps=merges(size))

    def kernels(self, *avals: ShapedArray) -> Kernels:
        given = sum(a.nbytes for a in avals)
        starts, steps = bitonic(avals[0].shape[self.dimension])
        taken = given + 4 * avals[0].size  # including positions
        return Kernels(starts, starts * taken / max(given, 1), 2 * steps * taken)

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        d = self.dimension
        if not ctx.is_split(0, d):
            return self.bind(*operands)
        positions = None
        if self.carries_positions(ctx.in_avals, self.is_padded(ctx)):
            positions = ctx.number_rows(iota(np.int32, ctx.in_local_shapes[0], d), 0, d)
        op, arrays, place = self.on_tiles(ctx, operands, positions)
        outs = sort_tiles(ctx, d, arrays, lambda xs: op.bind(*xs), op.before, _last)
        return outs if positions is None else [*outs[:place], *outs[place + 1 :]]


@dataclass(frozen=True)
class Sort(_Sorting):
    """The operands, of one shape, permuted along ``dimension`` so that the first ``num_keys`` are in ascending
    lexicographic order."""

    num_keys: int = 1
    is_stable: bool = True
    name: ClassVar[str] = "sort"

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        super().infer(*avals)
        if not 1 <= self.num_keys <= len(avals):
            raise ArgumentError(f"sort: num_keys={self.num_keys} must be between 1 and {len(avals)}, the operand count")
        return avals

    def carries_positions(self, avals: Sequence[ShapedArray], padded: bool) -> bool:
        # Equal elements are indistinguishable, except complex NaN and, if they must keep their order, 0 and -0.
        by_bits = dtypes.is_float(avals[0].dtype) and not self.is_stable
        alone = len(avals) == 1 and (by_bits or not dtypes.is_inexact(avals[0].dtype))
        return not alone and (self.is_stable or padded)

    def on_tiles(self, ctx: Localizer, arrays: Sequence[Any], positions: Any | None) -> tuple[_Sorting, list[Any], int]:
        n, d = self.num_keys, self.dimension
        keys = [ctx.mask(x, i, d, _last(typeof(x).dtype)) for i, x in enumerate(arrays[:n])]
        if positions is None:
            return dataclasses.replace(self, is_stable=True), [*keys, *arrays[n:]], n
        return Sort(d, n + 1), [*keys, positions, *arrays[n:]], n

    def before(self, xs: Sequence[Any], ys: Sequence[Any]) -> Any:
        return _Comparator(self.num_keys)(*itertools.chain.from_iterable(zip(xs, ys)))[0]

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        split = ctx.is_split(0, self.dimension)
        if split and self.carries_positions(ctx.in_avals, self.is_padded(ctx)):
            for i in range(len(operands)):
                if ctx.counts_rows(i, self.dimension):
                    return self._by_counting(ctx, i, operands)
        dtype = ctx.in_avals[0].dtype
        if len(operands) > 1 or self.is_stable or dtype not in _ORDERED_BITS or not split:
            return super().localize(ctx, *operands)
        (ordered,) = super().localize(ctx, _float_to_ordered(operands[0]))  # type: ignore[misc]
        return [BitcastConvert(dtype).bind(_flip_negative(ordered))]

    def _by_counting(self, ctx: Localizer, place: int, operands: Sequence[Any]) -> list[Any]:
        """Sort tiles where the operand at ``place`` counts rows: as the last key, it distinguishes equal elements, and
        padding, as positions would."""
        d, keys = self.dimension, [*range(self.num_keys), *([place] if place >= self.num_keys else [])]
        order = [*keys, *(i for i in range(len(operands)) if i not in keys)]
        masked = {i: ctx.mask(operands[i], i, d, _last(typeof(operands[i]).dtype)) for i in keys}
        op = Sort(d, len(keys))
        arrays = [masked.get(i, operands[i]) for i in order]
        outs = sort_tiles(ctx, d, arrays, lambda xs: op.bind(*xs), op.before, _last)
        return [outs[order.index(i)] for i in range(len(operands))]

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        if len(operands) == 1 and b.in_avals[0].dtype in _ORDERED_BITS:
            return emit_traced(b, self._floats, "sort_floats", *operands)
        scalars = tuple(ShapedArray((), a.dtype) for a in b.in_avals for _ in range(2))
        comparator = traced(_Comparator(self.num_keys), "comparator", scalars)
        return b.op(
            "stablehlo.sort",
            operands,
            b.out_avals,
            regions=[b.jaxpr_region(comparator)],
            dimension=self.dimension,
            is_stable=self.is_stable,
        )

    def _floats(self, x: Any) -> list[Any]:
        if not self.is_stable:
            return self._by_bits(x)
        minus_zero = and_(eq(x, scalar_like(0, x)), lt(_bits(x), scalar_like(0, _bits(x))))
        branches = [traced(f, "sort", (typeof(x),)) for f in (self._by_bits, self._by_comparison)]
        has_minus_zero = reduce_or(minus_zero, range(typeof(x).ndim))
        outs: list[Any] = Cond(tuple(branches)).bind(convert(has_minus_zero, dtypes.int32), x)
        return outs

    def _by_comparison(self, x: Any) -> list[Any]:
        """Used for zeros of either sign, which are equal and keep their order."""
        return [self.bind(x, iota(np.int32, typeof(x).shape, self.dimension))[0]]

    def _by_bits(self, x: Any) -> list[Any]:
        # XLA's CPU sort is five times faster for plain integer comparison than for any order that handles NaN.
        (ordered,) = self.bind(_float_to_ordered(x))
        return [BitcastConvert(typeof(x).dtype).bind(_flip_negative(ordered))]


@dataclass(frozen=True)
class SortBody(_Sorting):
    """The operands, of one shape, permuted along ``dimension`` by a comparator, which tells for one element of each
    operand and another one of each whether the first come before the others."""

    computation: ClosedJaxpr
    is_stable: bool = True
    name: ClassVar[str] = "sort_by"
    holds_jaxprs: ClassVar[bool] = True

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        super().infer(*avals)
        check_body(self.name, self.computation, [a for a in avals for _ in range(2)], 1)
        return avals

    def with_positions(self) -> _Sorting:
        compare, index = self.computation, ShapedArray((), np.dtype(np.int32))
        body = traced(_Ignoring(compare), "comparator", (*compare.in_avals, index, index))
        return dataclasses.replace(self, computation=body)

    def carries_positions(self, avals: Sequence[ShapedArray], padded: bool) -> bool:
        return self.is_stable or padded

    def on_tiles(self, ctx: Localizer, arrays: Sequence[Any], positions: Any | None) -> tuple[_Sorting, list[Any], int]:
        n = len(arrays)
        if positions is None:
            return dataclasses.replace(self, is_stable=True), list(arrays), n
        index = ShapedArray((), typeof(positions).dtype)
        compare = _Positioned(self.computation, ctx.in_avals[0].shape[self.dimension])
        body = traced(compare, "positioned", (*self.computation.in_avals, index, index))
        return SortBody(self.dimension, body), [*arrays, positions], n

    def before(self, xs: Sequence[Any], ys: Sequence[Any]) -> Any:
        return apply_body(self.computation, *itertools.chain.from_iterable(zip(xs, ys)))[0]

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        return b.op(
            "stablehlo.sort",
            operands,
            b.out_avals,
            regions=[b.jaxpr_region(self.computation)],
            dimension=self.dimension,
            is_stable=self.is_stable,
        )


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """Sort ``operand`` in ascending order along ``dimension``; NaN is last.

    A tuple of arrays of one shape is sorted together, by its first ``num_keys`` members (the first is the primary key),
    and returns a tuple. With ``is_stable``, equal elements keep their order, including zeros of different sign; for
    those, floats along a split dimension are sorted with positions, which doubles the communication.

    Raises:
      ShapeError: shapes differ, or the dimension is out of range.
      ArgumentError: more keys than operands.

    Example:
      >>> lax.sort(jnp.array([[3, 1, 2], [6, 5, 4]])).tolist()
      [[1, 2, 3], [4, 5, 6]]
      >>> keys, values = lax.sort((jnp.array([2, 1, 2]), jnp.array([7, 8, 5])), num_keys=2)
      >>> keys.tolist(), values.tolist()
      ([1, 2, 2], [8, 5, 7])
    """
    operands = tuple(operand) if isinstance(operand, (tuple, list)) else (operand,)
    ndim = typeof(operands[0]).ndim if operands else 0
    dimension = static_index(dimension, "sort", "a dimension")
    if -ndim <= dimension < 0:
        dimension += ndim
    outs = Sort(dimension, num_keys, is_stable).bind(*operands)
    return tuple(outs) if isinstance(operand, (tuple, list)) else outs[0]


def argsort(operand: Any, dimension: int = -1, is_stable: bool = True, index_dtype: Any = np.int32) -> Any:
    """The positions that sort ``operand`` in ascending order along ``dimension``; NaN is last."""
    shape, dimension = typeof(operand).shape, static_index(dimension, "argsort", "a dimension")
    if not -len(shape) <= dimension < len(shape):
        raise ShapeError(f"argsort: dimension {dimension} does not exist in shape {shape}")
    dimension %= len(shape)
    positions = iota(dtypes.requested(index_dtype, "argsort"), shape, dimension)
    return Sort(dimension, 1, is_stable).bind(operand, positions)[1]


# --- reading ------------------------------------------------------------------------------------------------
@reads("stablehlo.sort")
def _read_sort(r: Reader) -> list[Any]:
    operands = r.operands
    dimension, stable = r.attr("dimension", -1), r.attr("is_stable", False)
    if dimension < 0:
        dimension += typeof(operands[0]).ndim
    comparator = read_body(r)
    keys, descending = _sort_keys(comparator)
    outs: list[Any]
    if not keys:
        outs = SortBody(dimension, comparator, stable).bind(*operands)
        return outs
    if descending:
        # In ascending order of keys that fall as the operand rises; equal elements stay in order.
        (key,) = keys
        falling = neg if dtypes.is_float(typeof(operands[key]).dtype) else not_
        others = [x for i, x in enumerate(operands) if i != key]
        rising, *outs = Sort(dimension, 1, stable).bind(falling(operands[key]), *others)
        return [*outs[:key], falling(rising), *outs[key:]]
    order = [*keys, *(i for i in range(len(operands)) if i not in keys)]
    outs = Sort(dimension, len(keys), stable).bind(*(operands[i] for i in order))
    return [outs[order.index(i)] for i in range(len(operands))]


def _sort_keys(comparator: ClosedJaxpr) -> tuple[tuple[int, ...], bool]:
    """The operands by which a comparator sorts, the first most significant, and whether it puts large ones first.

    No operands: it does something else.
    """
    arguments = sorted(used(comparator))
    kinds = [comparator.in_avals[i].dtype for i in arguments]
    pairs = sorted({i // 2 for i in arguments})
    if len(arguments) != 2 * len(pairs) or len(arguments) > MOST_ARGUMENTS or any(map(dtypes.is_complex, kinds)):
        return (), False
    values = dict(zip(arguments, grid(kinds)))
    outs = run(comparator, [values.get(i) for i in range(len(comparator.in_avals))], total_order_direction)
    if outs is None:
        return (), False
    known = ~np.any([v != v for v in values.values()], axis=0)
    ordered = not (outs[0] & ~known).any()  # a plain comparison leaves the place of NaN open
    for keys in itertools.permutations(pairs):
        expected = _lexicographic([(values[2 * k], values[2 * k + 1]) for k in keys])
        if np.array_equal(outs[0], expected) or (ordered and np.array_equal(outs[0][known], expected[known])):
            return keys, False
    if len(pairs) == 1 and ordered:
        a, b = values[arguments[0]], values[arguments[1]]
        if np.array_equal(outs[0][known], (a > b)[known]):
            return tuple(pairs), True
    return (), False


def _lexicographic(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """:class:`_Comparator` in NumPy."""
    before = np.zeros(pairs[0][0].shape, np.bool_)
    for a, b in reversed(pairs):
        less, more = ((x < y) | ((y != y) & (x == x)) for x, y in ((a, b), (b, a)))
        before = less | (~more & before)
    return before
