"""``rng_bit_generator`` of StableHLO, with its state: Philox-4x32-10 and Threefry-2x32, as XLA computes them.

Both are counter-based (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): word ``i`` of the result
is a function of the state and ``i``. So every device generates its own tile, without communication. The assignment of
words to elements was found by experiment, and is tested against XLA:

- The state is ``key, counter`` as 64-bit words. For Philox ``key, counter, upper counter`` is also possible; if the
  last word is missing, the key is used. Without 64-bit types, each word is two of 32 bits, the lower one first.
- Philox numbers elements row-major. A counter yields four words of 32 bits or two of 64.
- Threefry yields one 64-bit word per counter, or two of 32 bits, which are neighbours along the first even dimension
  (the first of the largest ones, if none is even).
- Narrower elements are the low bits of 32-bit words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, DTypeError
from meshwright.ir.contract import ArrayLike, Emitted, Localizer
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Op
from meshwright.ir.reading import Reader, Unreadable, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import emit_traced
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.elementwise.bitcast import bitcast
from meshwright.ops.random.bits import threefry2x32, u32, wide_product
from meshwright.ops.scalar_body import batch_sharding, split_first
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota, match_shape
from meshwright.ops.shape.rearrange import expand_dims, move_dim, reshape
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim
from meshwright.ops.sharding.constraint import with_type
from meshwright.sharding.rule import WINDOW, ShardingRule, make_rule, pointwise_rule

#: the maximum number of counters in an array whose tiles are numbered in 32 bits
_MOST_COUNTERS = 2**32 - 1
_PHILOX_FACTORS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_STEPS = (0x9E3779B9, 0xBB67AE85)


# --- philox -------------------------------------------------------------------------------------------------
def _ten_rounds(k0: Any, k1: Any, *counter: Any) -> list[Any]:
    c0, c1, c2, c3 = counter
    for number in range(10):
        if number:
            k0, k1 = ops.add(k0, u32(_PHILOX_STEPS[0])), ops.add(k1, u32(_PHILOX_STEPS[1]))
        (high0, low0), (high1, low1) = (wide_product(c, f) for c, f in zip((c0, c2), _PHILOX_FACTORS))
        c0, c1, c2, c3 = ops.xor(ops.xor(high1, c1), k0), low1, ops.xor(ops.xor(high0, c3), k1), low0
    return [c0, c1, c2, c3]


@dataclass(frozen=True)
class Philox4x32(Elementwise):
    """The block cipher: from two key words and four counter words to four random words."""

    name: ClassVar[str] = "philox4x32"
    multiple_results: ClassVar[bool] = True
    accepts: ClassVar[tuple[str, ...]] = ("u",) * 6

    def infer(self, *avals: ShapedArray) -> Any:
        out = super().infer(*avals)
        if out.dtype != dtypes.uint32:
            raise DTypeError(f"philox4x32: keys and counters must be uint32, got {out.dtype}")
        return (out,) * 4

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        outs, place = super().batch(axis, args, dims)
        return outs, [place] * 4

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        return pointwise_rule([a.ndim for a in avals], max((a.shape for a in avals), key=len), 4)

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        return emit_traced(b, _ten_rounds, self.name, *operands)


def _mapped(state: ShapedArray) -> int:
    """The number of dimensions before those of a state: pairs of 32 bits, or words of 64."""
    return max(0, state.ndim - (2 if state.dtype == np.uint32 else 1))


def _one_of(state: ShapedArray) -> ShapedArray:
    """A state without the dimensions before it."""
    return state.update(shape=state.shape[_mapped(state) :])


# --- the op -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class RngBitGenerator(Op):
    """The next state, and random bits of ``shape``; ``algorithm`` is ``PHILOX`` or ``THREE_FRY``.

    The state may have further dimensions before it, of size 1: those of states that are mapped, in the order in which
    their bits are drawn. As in JAX, the dimension that is mapped last is the first of them, or, where the state is
    that of a random key (``of_key``), they have the order that they have in the array of keys."""

    algorithm: str
    shape: tuple[int, ...]
    dtype: np.dtype
    of_key: bool = False
    name: ClassVar[str] = "rng_bit_generator"
    multiple_results: ClassVar[bool] = True

    def infer(self, state: ShapedArray) -> tuple[ShapedArray, ...]:
        words = {"PHILOX": (2, 3), "THREE_FRY": (2,)}.get(self.algorithm)
        if words is None:
            raise ArgumentError(f"{self.name}: algorithm {self.algorithm!r} is not PHILOX or THREE_FRY")
        one, mapped = _one_of(state), state.shape[: _mapped(state)]
        of_halves = state.dtype == np.uint32 and one.shape[1:] == (2,)
        is_state = of_halves or (state.dtype == np.uint64 and one.ndim == 1)
        if not is_state or one.shape[0] not in words or set(mapped) - {1}:
            n = words[-1]
            raise DTypeError(f"{self.name}: a state of {self.algorithm} is uint64[{n}] or uint32[{n},2], got {state}")
        if not dtypes.is_integer(self.dtype) or dtypes.bit_width(self.dtype) < 8:
            raise DTypeError(f"{self.name}: bits come as integers of 8 to 64 bits, not {self.dtype}")
        return state, ShapedArray(self.shape, self.dtype)

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        """All bits are drawn at once from the first state, which alone advances, so that they are those of JAX."""
        (states,), (dim,) = args, dims
        assert dim is not None
        split = batch_sharding(states, dim)
        place = dim if self.of_key and split is None and dim < _mapped(typeof(states)) else 0
        states = move_dim(states, dim, place)
        if split is not None:
            states = with_type(
                states, typeof(states).update(explicit=split.replaced(((),) * typeof(states).ndim, (), ()))
            )
        first = slice_in_dim(states, 0, 1, axis=place)
        shape = (*self.shape[:place], axis.size, *self.shape[place:])
        after, bits = replace(self, shape=shape).bind(first)
        outs = [concatenate([after, slice_in_dim(states, 1, axis.size, axis=place)], place), bits]
        return outs if split is None else [split_first(y, split) for y in outs], [place, place]

    def emit(self, b: Builder, state: Emitted) -> Emitted | Sequence[Emitted]:
        algorithm = f"#stablehlo<rng_algorithm {self.algorithm}>"
        given, bits = b.out_avals
        one = _one_of(given)
        words = ShapedArray(one.shape[:1], dtypes.uint64)
        if mapped := one.shape != given.shape:
            (state,) = b.op("stablehlo.reshape", [state], [one])
        if of_halves := given.dtype != words.dtype:
            (state,) = b.op("stablehlo.bitcast_convert", [state], [words])
        after, drawn = b.op("stablehlo.rng_bit_generator", [state], [words, bits], rng_algorithm=algorithm)
        if of_halves:
            (after,) = b.op("stablehlo.bitcast_convert", [after], [one])
        return [b.op("stablehlo.reshape", [after], [given])[0] if mapped else after, drawn]

    # --- on tiles -------------------------------------------------------------------------------------------
    @property
    def wide(self) -> bool:
        return dtypes.bit_width(self.dtype) == 64

    @property
    def words(self) -> int:
        """The number of elements per counter."""
        whole = 4 if self.algorithm == "PHILOX" else 2
        return whole // 2 if self.wide else whole

    @property
    def paired(self) -> int:
        """The dimension along which Threefry's two words are neighbours."""
        even = [d for d, n in enumerate(self.shape) if n % 2 == 0]
        return even[0] if even else self.shape.index(max(self.shape))

    @property
    def counters(self) -> int:
        """The number of counters consumed."""
        if self.algorithm == "PHILOX" or self.words == 1:
            return -(-math.prod(self.shape) // self.words)
        return math.prod(-(-n // 2) if d == self.paired else n for d, n in enumerate(self.shape))

    def sharding_rule(self, state: ShapedArray) -> ShardingRule:
        names = [f"d{d}" for d in range(len(self.shape))]
        splittable = self.counters <= _MOST_COUNTERS
        out = [n if splittable else None for n in names]
        sizes = dict(zip(names, self.shape))
        whole = [None] * state.ndim
        return make_rule([whole], [whole, out], sizes, dict.fromkeys(names, WINDOW))

    def localize(self, ctx: Localizer, state: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        shape = ctx.out_local_shapes[1]
        if shape == self.shape:
            return self.bind(state)
        rows = []
        for d, n in enumerate(shape):
            axes = ctx.result_axes(1, d)
            number = iota(np.uint32, (n,), 0)
            if axes:
                number = ops.add(number, ops.mul(ops.convert(ctx.tile_index(axes), dtypes.uint32), u32(n)))
            rows.append(number)
        counter, word = self._places(rows, shape)
        given = typeof(state)
        words = _halves(reshape(state, _one_of(given).shape))
        after = self._next(words)
        after = after if given.dtype == np.uint32 else bitcast(after, given.dtype)
        return [reshape(after, given.shape), self._bits(words, counter, word)]

    def _places(self, rows: Sequence[Any], shape: tuple[int, ...]) -> tuple[Any, Any]:
        """The counter of each element at ``rows`` of each dimension, and the number of its word in that counter."""
        sizes, word = list(self.shape), u32(0)
        rows = list(rows)
        if self.algorithm == "THREE_FRY" and self.words == 2:
            d = self.paired
            word = broadcast_in_dim(ops.and_(rows[d], u32(1)), shape, (d,))
            rows[d], sizes[d] = ops.shift_right_logical(rows[d], u32(1)), -(-sizes[d] // 2)
        number: Any = match_shape(u32(0), ShapedArray(shape, dtypes.uint32))
        for d, row in enumerate(rows):
            stride = u32(math.prod(sizes[d + 1 :]))
            number = ops.add(number, broadcast_in_dim(ops.mul(row, stride), shape, (d,)))
        if self.algorithm == "PHILOX":
            word = ops.and_(number, u32(self.words - 1))
            number = ops.shift_right_logical(number, u32(self.words.bit_length() - 1))
        return number, word

    def _bits(self, words: Sequence[Any], counter: Any, word: Any) -> Any:
        key, *counters = words
        if self.algorithm == "THREE_FRY":
            drawn = threefry2x32(*key, *_counted(counters, counter))
        else:
            drawn = Philox4x32().bind(*key, *_counted([*counters, key][:2], counter))
        if self.wide:
            drawn = [_joined(a, b) for a, b in zip(drawn[::2], drawn[1::2])]
        bits = drawn[0]
        for number, other in enumerate(drawn[1:], 1):
            bits = ops.select(ops.eq(word, u32(number)), other, bits)
        return ops.convert(bits, self.dtype)

    def _next(self, words: Sequence[Any]) -> Any:
        """The state after the draw, as 32-bit words."""
        key, *counters = words
        halves = [*key, *_counted(counters, u32(self.counters))]
        return reshape(concatenate([expand_dims(h, [0]) for h in halves], 0), (len(words), 2))


def _counted(counters: Sequence[Sequence[Any]], count: Any) -> list[Any]:
    """The halves of a counter of several words, lowest first, after adding ``count`` (of 32 bits)."""
    lowest, *others = [half for word in counters for half in word]
    halves = [ops.add(lowest, count)]
    carry = ops.convert(ops.lt(halves[0], count), dtypes.uint32)
    for half in others:
        halves.append(ops.add(half, carry))
        carry = ops.and_(carry, ops.convert(ops.eq(halves[-1], u32(0)), dtypes.uint32))
    return halves


def _halves(state: Any) -> list[list[Any]]:
    """The lower and the upper half of each word of a state."""
    halves = bitcast(state, dtypes.uint32) if typeof(state).dtype == np.uint64 else state
    rows = [slice_in_dim(halves, i, i + 1) for i in range(typeof(halves).shape[0])]
    return [[reshape(slice_in_dim(row, i, i + 1, axis=1), ()) for i in (0, 1)] for row in rows]


def _joined(low: Any, high: Any) -> Any:
    low, high = ops.convert(low, dtypes.uint64), ops.convert(high, dtypes.uint64)
    return ops.or_(low, ops.shift_left(high, ops.scalar_like(32, high)))


# --- reading ------------------------------------------------------------------------------------------------
@reads("stablehlo.rng_bit_generator")
def _read_rng_bit_generator(r: Reader) -> list[Any]:
    (state,), out = r.operands, r.out_avals[1]
    algorithm = r.attr("rng_algorithm")
    # DEFAULT is XLA's choice: on CPU, where this library's arrays are, it is Philox.
    given = typeof(state).dtype
    if given not in (np.uint64, np.int64) or not dtypes.is_integer(out.dtype):
        raise Unreadable
    # Bits have no sign; XLA computes them of unsigned types alone.
    op = RngBitGenerator("PHILOX" if algorithm == "DEFAULT" else algorithm, out.shape, _unsigned(out.dtype))
    after, bits = op.bind(_as(state, _unsigned(given)))
    return [_as(after, given), _as(bits, out.dtype)]


def _as(x: Any, dtype: np.dtype) -> Any:
    return x if typeof(x).dtype == dtype else bitcast(x, dtype)


def _unsigned(dtype: np.dtype) -> np.dtype:
    """The unsigned integers with as many bits as those of ``dtype``."""
    return np.dtype(f"uint{dtypes.bit_width(dtype)}")
