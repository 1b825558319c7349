"""sort by several keys, argsort, and the largest elements.

The order is total: -0.0 equals 0.0 (a sort of one array alone puts it first), NaN comes last, complex numbers go by
real part and then by imaginary part.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import BatchAxis, Builder, Op, Zero
from meshwright.ir.probing import MOST_ARGUMENTS, grid, run, used
from meshwright.ir.reading import Reader, Unreadable, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.broadcast_reduce import broadcast_in_dim, iota, match_shape
from meshwright.ops.composite import emit_traced, traced
from meshwright.ops.elementwise import (
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
from meshwright.ops.gather_scatter import gather_along
from meshwright.ops.shape import above, move_dim
from meshwright.ops.total_order import total_order_direction
from meshwright.sharding.rule import REPLICATED, ShardingRule, make_rule

#: floats whose order is that of their bits as integers, once those of negative numbers are reversed
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
    return or_(lt(a, b), and_(ne(b, b), eq(a, a)))  # NaN comes last


@dataclass(frozen=True)
class _Comparator:
    """``pairs`` are an element of each operand, then its counterpart: is the first before the second?"""

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
    dtype = typeof(x).dtype
    canonical = select(ne(x, x), match_shape(scalar_like(np.nan, x), typeof(x)), x)
    bits = BitcastConvert(np.dtype(f"int{dtypes.bit_width(dtype)}")).bind(canonical)
    return _flip_negative(bits)


def _flip_negative(bits: Any) -> Any:
    width = dtypes.bit_width(typeof(bits).dtype)
    sign = shift_right_arithmetic(bits, scalar_like(width - 1, bits))
    return xor(bits, and_(sign, scalar_like(2 ** (width - 1) - 1, bits)))


# --- sort ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Sort(Op):
    """The operands, of one shape, rearranged along ``dimension`` so that the first ``num_keys`` are in ascending
    lexicographic order."""

    dimension: int
    num_keys: int = 1
    is_stable: bool = True
    name: ClassVar[str] = "sort"
    multiple_results: ClassVar[bool] = True

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        if not avals or any(a.shape != avals[0].shape for a in avals):
            shapes = ", ".join(str(a.shape) for a in avals)
            raise ShapeError(f"sort: operands must have one shape, got {shapes or 'no operands'}")
        if not 0 <= self.dimension < avals[0].ndim:
            raise ShapeError(f"sort: dimension {self.dimension} does not exist in shape {avals[0].shape}")
        if not 1 <= self.num_keys <= len(avals):
            raise ArgumentError(f"sort: num_keys={self.num_keys} must be between 1 and {len(avals)}, the operand count")
        return avals

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        moving = [not isinstance(t, Zero) for t in tangents]
        if not any(moving):
            outs = self.bind(*primals)
            return outs, [Zero(typeof(y)) for y in outs]
        positions = iota(np.int32, typeof(primals[0]).shape, self.dimension)
        *outs, order = self.bind(*primals, positions)
        return outs, [
            gather_along(t, order, self.dimension) if m else Zero(typeof(y)) for y, t, m in zip(outs, tangents, moving)
        ]

    def batch(self, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        place = next(d for d in dims if d is not None)
        full = []
        for x, d in zip(args, dims):
            if d is not None:
                full.append(move_dim(x, d, place))
                continue
            shape = typeof(x).shape
            kept = [above(i, place) for i in range(len(shape))]
            full.append(broadcast_in_dim(x, (*shape[:place], axis.size, *shape[place:]), kept))
        outs = Sort(above(self.dimension, place), self.num_keys, self.is_stable).bind(*full)
        return outs, [place] * len(outs)

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        names = [f"d{d}" for d in range(avals[0].ndim)]
        same = [names] * len(avals)
        return make_rule(same, same, dict(zip(names, avals[0].shape)), {names[self.dimension]: REPLICATED})

    def emit(self, b: Builder, *operands: Any) -> Any:
        if len(operands) == 1 and b.in_avals[0].dtype in _ORDERED_BITS:
            return emit_traced(b, self._by_bits, "sort_floats", *operands)
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

    def _by_bits(self, x: Any) -> list[Any]:
        # XLA's CPU sort is five times faster for a plain comparison of integers than for any order that knows NaN.
        (ordered,) = self.bind(_float_to_ordered(x))
        return [BitcastConvert(typeof(x).dtype).bind(_flip_negative(ordered))]


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """``operand`` in ascending order along ``dimension``; NaN comes last.

    A tuple of arrays is sorted together, by its first ``num_keys`` members, and gives a tuple.

    Raises:
      ShapeError: different shapes, or a dimension that does not exist.
      ArgumentError: more keys than operands.
    """
    operands = tuple(operand) if isinstance(operand, (tuple, list)) else (operand,)
    ndim = typeof(operands[0]).ndim if operands else 0
    if -ndim <= dimension < 0:
        dimension += ndim
    outs = Sort(dimension, num_keys, is_stable).bind(*operands)
    return tuple(outs) if isinstance(operand, (tuple, list)) else outs[0]


def argsort(operand: Any, dimension: int = -1, is_stable: bool = True, index_dtype: Any = np.int32) -> Any:
    """The positions that put ``operand`` in ascending order along ``dimension``; NaN comes last."""
    shape = typeof(operand).shape
    if not -len(shape) <= dimension < len(shape):
        raise ShapeError(f"argsort: dimension {dimension} does not exist in shape {shape}")
    dimension %= len(shape)
    positions = iota(dtypes.requested(index_dtype, "argsort"), shape, dimension)
    return Sort(dimension, 1, is_stable).bind(operand, positions)[1]


# --- top_k --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TopK(Op):
    """The ``k`` largest elements along the last dimension, in descending order, and their positions."""

    k: int
    name: ClassVar[str] = "top_k"
    multiple_results: ClassVar[bool] = True

    def infer(self, x: ShapedArray) -> tuple[ShapedArray, ...]:
        if x.ndim == 0 or not 0 <= self.k <= x.shape[-1]:
            raise ShapeError(f"top_k: k={self.k} must be between 0 and the size of the last dimension of {x.shape}")
        if dtypes.is_complex(x.dtype) or dtypes.is_bool(x.dtype):
            raise DTypeError(f"top_k: expected real numbers, got {x}; convert it with .astype")
        shape = (*x.shape[:-1], self.k)
        return x.update(shape=shape), ShapedArray(shape, dtypes.int32)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        y, order = self.bind(*primals)
        t = tangents[0]
        moved = Zero(typeof(y)) if isinstance(t, Zero) else gather_along(t, order, typeof(y).ndim - 1)
        return [y, order], [moved, Zero(typeof(order))]

    def batch(self, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (x,), (dim,) = args, dims
        assert dim is not None
        last = typeof(x).ndim - 1
        if dim == last:
            x, dim = move_dim(x, last, last - 1), last - 1
        return self.bind(x), [dim, dim]

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        names: list[str | None] = [f"d{d}" for d in range(x.ndim)]
        sizes = {f"d{d}": s for d, s in enumerate(x.shape)}
        out = [*names[:-1], None]
        return make_rule([names], [out, out], sizes, {f"d{x.ndim - 1}": REPLICATED})

    def emit(self, b: Builder, x: Any) -> Any:
        return b.op("chlo.top_k", [x], b.out_avals, k=self.k)


def top_k(operand: Any, k: int) -> tuple[Any, Any]:
    """The ``k`` largest elements along the last dimension, in descending order, and their positions as int32.

    Raises:
      ShapeError: ``k`` is larger than the dimension.
    """
    values, positions = TopK(int(k)).bind(operand)
    return values, positions


# --- reading ------------------------------------------------------------------------------------------------
@reads("stablehlo.sort")
def _read_sort(r: Reader) -> list[Any]:
    operands = r.operands
    keys, descending = _sort_keys(r.region().jaxpr)
    dimension, stable = r.attr("dimension", -1), r.attr("is_stable", False)
    if dimension < 0:
        dimension += typeof(operands[0]).ndim
    if descending:
        # In ascending order of keys that fall as the operand rises; equal elements stay in order.
        key = operands[keys[0]]
        falling = neg(key) if dtypes.is_float(typeof(key).dtype) else not_(key)
        return Sort(dimension, 1, stable).bind(falling, *operands)[1:]
    order = [*keys, *(i for i in range(len(operands)) if i not in keys)]
    outs = Sort(dimension, len(keys), stable).bind(*(operands[i] for i in order))
    return [outs[order.index(i)] for i in range(len(operands))]


def _sort_keys(comparator: ClosedJaxpr) -> tuple[tuple[int, ...], bool]:
    """The operands by which a comparator sorts, the first most significant, and whether it puts large ones first.

    Raises:
      Unreadable: it does something else.
    """
    arguments = sorted(used(comparator))
    kinds = [comparator.in_avals[i].dtype for i in arguments]
    pairs = sorted({i // 2 for i in arguments})
    if len(arguments) != 2 * len(pairs) or len(arguments) > MOST_ARGUMENTS or any(map(dtypes.is_complex, kinds)):
        raise Unreadable
    values = dict(zip(arguments, grid(kinds)))
    outs = run(comparator, [values.get(i) for i in range(len(comparator.in_avals))], total_order_direction)
    if outs is None:
        raise Unreadable
    known = ~np.any([v != v for v in values.values()], axis=0)
    ordered = not (outs[0] & ~known).any()  # a plain comparison leaves the place of NaN open
    for keys in itertools.permutations(pairs):
        wanted = _lexicographic([(values[2 * k], values[2 * k + 1]) for k in keys])
        if np.array_equal(outs[0], wanted) or (ordered and np.array_equal(outs[0][known], wanted[known])):
            return keys, False
    if len(pairs) == 1 and ordered:
        a, b = values[arguments[0]], values[arguments[1]]
        if np.array_equal(outs[0][known], (a > b)[known]):
            return tuple(pairs), True
    raise Unreadable


def _lexicographic(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """:class:`_Comparator` in NumPy."""
    before = np.zeros(pairs[0][0].shape, np.bool_)
    for a, b in reversed(pairs):
        less, more = ((x < y) | ((y != y) & (x == x)) for x, y in ((a, b), (b, a)))
        before = less | (~more & before)
    return before


@reads("chlo.top_k")
def _read_top_k(r: Reader) -> list[Any]:
    values, positions = TopK(r.attr("k")).bind(*r.operands)
    return [values, convert(positions, r.out_avals[1].dtype)]
