"""Counter-based random bits: Threefry-2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

The bits at an index are a pure function of the key and of the index's row-major number in the array, so every device
generates its own tile without communication. Keys are raw ``uint32[2]`` arrays; bits, ``split`` and ``fold_in`` agree
with JAX with ``jax_threefry_partitionable``, its default.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, ArgumentTypeError, DTypeError, IntegerRangeError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Kernels, Localizer, Value
from meshwright.ir.op import BatchAxis, BatchedResults, Builder
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import Composite, traced
from meshwright.ops.elementwise import gpu
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.elementwise.table import (
    add,
    and_,
    convert,
    eq,
    ge,
    lt,
    mul,
    or_,
    scalar_like,
    select,
    shift_left,
    shift_right_logical,
    xor,
)
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota
from meshwright.ops.shape.rearrange import expand_dims, not_last, reshape, squeeze
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim
from meshwright.sharding.rule import WINDOW, ShardingRule, make_rule, pointwise_rule

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
#: the constant of Threefish's key schedule
_PARITY = np.uint32(0x1BD11BDA)


# --- threefry -----------------------------------------------------------------------------------------------
def u32(x: int) -> np.ndarray:
    """A word."""
    return np.array(x, np.uint32)


def _rotate(x: Any, distance: int) -> Any:
    return or_(shift_left(x, u32(distance)), shift_right_logical(x, u32(32 - distance)))


def _twenty_rounds(k0: Any, k1: Any, x0: Any, x1: Any) -> list[Any]:
    keys = (k0, k1, xor(xor(k0, k1), _PARITY))
    x0, x1 = add(x0, k0), add(x1, k1)
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x0 = add(x0, x1)
            x1 = xor(x0, _rotate(x1, distance))
        x0 = add(x0, keys[(group + 1) % 3])
        x1 = add(x1, add(keys[(group + 2) % 3], u32(group + 1)))
    return [x0, x1]


@dataclass(frozen=True)
class Threefry2x32(Elementwise):
    """The block cipher: from two key words and two counter words (arrays, or scalars next to them) to two random
    words.

    ``of_keys``: the words are new keys, of which many operations draw. XLA's compiler for CPUs would fuse the rounds
    with each of them, and compile and run them as often; so they are compiled apart from these.
    """

    of_keys: bool = False
    name: ClassVar[str] = "threefry2x32"
    multiple_results: ClassVar[bool] = True
    accepts: ClassVar[tuple[str, ...]] = ("u", "u", "u", "u")

    def infer(self, *avals: ShapedArray) -> Any:
        out = super().infer(*avals)
        if out.dtype != dtypes.uint32:
            raise DTypeError(f"threefry2x32: keys and counters must be uint32, got {out.dtype}")
        return (out, out)

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        outs, place = super().batch(axis, args, dims)
        return outs, [place, place]

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        return pointwise_rule([a.ndim for a in avals], max((a.shape for a in avals), key=len), 2)

    def kernels(self, *avals: ShapedArray) -> Kernels:
        return gpu.random_bits(max(a.size for a in avals))

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        rounds = traced(_twenty_rounds, self.name, tuple(b.in_avals))
        return b.call(self.name, rounds, operands, apart=self.of_keys and b.platform == "cpu")


def threefry2x32(k0: Any, k1: Any, x0: Any, x1: Any) -> list[Any]:
    """Two random words for key ``(k0, k1)`` and counter ``(x0, x1)``, elementwise on uint32."""
    outs: list[Any] = Threefry2x32().bind(k0, k1, x0, x1)
    return outs


def _derived(k0: Any, k1: Any, x0: Any, x1: Any) -> Any:
    """The new keys, as pairs of words, that a key and counters give."""
    return _pair(*Threefry2x32(of_keys=True).bind(k0, k1, x0, x1))


# --- counters -----------------------------------------------------------------------------------------------
def wide_product(i: Any, factor: int) -> tuple[Any, Any]:
    """``i * factor`` modulo 2**64, for uint32 ``i``, as (high, low) words; schoolbook multiplication in 16-bit
    digits."""
    low_factor = factor & 0xFFFFFFFF
    low = mul(i, u32(low_factor))
    a, b = low_factor >> 16, low_factor & 0xFFFF
    c, d = shift_right_logical(i, u32(16)), and_(i, u32(0xFFFF))
    middle = add(mul(c, u32(b)), shift_right_logical(mul(d, u32(b)), u32(16)))
    other = add(mul(d, u32(a)), and_(middle, u32(0xFFFF)))
    high = add(add(mul(c, u32(a)), shift_right_logical(middle, u32(16))), shift_right_logical(other, u32(16)))
    return add(high, mul(i, u32(factor >> 32 & 0xFFFFFFFF))), low


def linear_index(shape: Sequence[int], strides: Sequence[int], starts: Sequence[Any], total: int) -> tuple[Any, Any]:
    """``sum((starts[d] + i[d]) * strides[d])`` at every index ``i`` of ``shape``, as (high, low) words of uint32.

    ``total`` bounds the sum; for small arrays, the high words are a scalar zero.
    """
    shape = tuple(shape)
    high: Any = u32(0)
    low: Any = None
    for d, (stride, start) in enumerate(zip(strides, starts)):
        rows = iota(np.uint32, (shape[d],), 0)
        rows = rows if start is None else add(rows, convert(start, dtypes.uint32))
        if total <= 2**32:
            part = broadcast_in_dim(mul(rows, u32(stride & 0xFFFFFFFF)), shape, (d,))
            low = part if low is None else add(low, part)
            continue
        part_high, part = (broadcast_in_dim(w, shape, (d,)) for w in wide_product(rows, stride))
        if low is None:
            high, low = part_high, part
            continue
        low = add(low, part)
        carry = convert(lt(low, part), dtypes.uint32)
        high = add(add(high, part_high), carry)
    return high, u32(0) if low is None else low


# --- bits ---------------------------------------------------------------------------------------------------
def combined_words(a: Any, b: Any, bit_width: int) -> Any:
    """One word of ``bit_width`` bits from the cipher's two words."""
    dtype = np.dtype(f"uint{bit_width}")
    if bit_width < 64:
        return convert(xor(a, b), dtype)
    a, b = convert(a, dtype), convert(b, dtype)
    return or_(shift_left(a, scalar_like(32, a)), b)


@dataclass(frozen=True)
class RandomBits(Composite):
    """Random words of ``bit_width`` bits: an array of ``shape`` for each key of ``uint32[..., 2]``."""

    shape: tuple[int, ...]
    bit_width: int
    name: ClassVar[str] = "random_bits"
    draws: ClassVar[bool] = True

    def infer(self, key: ShapedArray) -> ShapedArray:
        check_key(self.name, key)
        if self.bit_width not in (8, 16, 32, 64):
            raise ArgumentError(f"random_bits: bit_width must be 8, 16, 32 or 64, got {self.bit_width}")
        if dtypes.canonical(self.dtype) != self.dtype:
            raise DTypeError("random_bits: 64-bit words need config.update('enable_x64', True)")
        if math.prod(self.shape) > 2**64:
            raise ShapeError(f"random_bits: shape {self.shape} has more elements than the generator's period, 2**64")
        return ShapedArray((*key.shape[:-1], *self.shape), self.dtype)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(f"uint{self.bit_width}")

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (key,), (dim,) = args, dims
        assert dim is not None
        key, dim = not_last(key, dim)
        return self.bind(key), dim

    def kernels(self, *avals: ShapedArray) -> Kernels:
        return gpu.random_bits(self.infer(*avals).size)

    def expand(self, key: Value) -> list[Value]:
        return [self._words(key, self.shape, [None] * len(self.shape))]

    def _words(self, key: Any, shape: tuple[int, ...], starts: Sequence[Any]) -> Any:
        """The words of a tile of ``shape`` that starts at ``starts``."""
        strides = [math.prod(self.shape[d + 1 :]) for d in range(len(shape))]
        high, low = linear_index(shape, strides, starts, math.prod(self.shape))
        lead = typeof(key).shape[:-1]
        keys: list[Any] = [squeeze(slice_in_dim(key, i, i + 1, axis=len(lead)), [len(lead)]) for i in (0, 1)]
        counters = [high, low]
        if lead:
            full = (*lead, *shape)
            keys = [broadcast_in_dim(k, full, range(len(lead))) for k in keys]
            counters = [
                broadcast_in_dim(c, full, range(len(lead), len(full))) if typeof(c).ndim else c for c in counters
            ]
        first, second = threefry2x32(*keys, *counters)
        return combined_words(first, second, self.bit_width)

    def sharding_rule(self, key: ShapedArray) -> ShardingRule:
        keys = [f"k{d}" for d in range(key.ndim - 1)]
        names = [f"d{d}" for d in range(len(self.shape))]
        sizes = {**dict(zip(keys, key.shape)), **dict(zip(names, self.shape))}
        return make_rule([[*keys, None]], [[*keys, *names]], sizes, dict.fromkeys(names, WINDOW))

    def localize(self, ctx: Localizer, key: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        lead = typeof(key).ndim - 1
        shape = ctx.out_local_shapes[0][lead:]
        starts: list[Any] = []
        for d, size in enumerate(shape):
            axes = ctx.result_axes(0, lead + d)
            starts.append(mul(convert(ctx.tile_index(axes), dtypes.uint32), u32(size)) if axes else None)
        if all(s is None for s in starts):
            return self.bind(key)
        return self._words(key, shape, starts)


def random_bits(key: Any, bit_width: int = 32, shape: Sequence[int] = ()) -> Any:
    """Uniformly random unsigned integers of ``bit_width`` bits and ``shape``, equal to those of ``jax.random.bits``."""
    return RandomBits(tuple(int(s) for s in shape), bit_width).bind(key)


# --- keys ---------------------------------------------------------------------------------------------------
def check_key(where: str, key: ShapedArray) -> None:
    """Raise unless ``key`` is the type of raw keys."""
    if key.dtype != dtypes.uint32 or key.ndim < 1 or key.shape[-1] != 2:
        raise ArgumentTypeError(
            f"{where}: a key is a uint32 array of shape (2,), got {key}; make one with random.key(seed)"
        )


def _words_of(key: Any, where: str) -> list[Any]:
    aval = typeof(key)
    check_key(where, aval)
    if aval.ndim != 1:
        raise ArgumentTypeError(f"{where}: expected one key, got {aval}; use vmap for an array of keys")
    return [reshape(slice_in_dim(key, i, i + 1), ()) for i in (0, 1)]


def _pair(a: Any, b: Any) -> Any:
    """Stack two arrays along a new last dimension."""
    ndim = typeof(a).ndim
    return concatenate([expand_dims(a, [ndim]), expand_dims(b, [ndim])], ndim)


def threefry_seed(seed: Any) -> Any:
    """The key of an integer seed: its upper and lower 32 bits.

    Raises:
      ArgumentTypeError: not an integer scalar. IntegerRangeError: a Python integer of more than 64 bits.
    """
    if isinstance(seed, int) and not isinstance(seed, bool):
        if not -(2**63) <= seed < 2**64:
            raise IntegerRangeError(f"a seed must be an integer of 64 bits, got {seed}; take its remainder, or a hash")
        # Without 64-bit types only the lower half is used, as in JAX.
        seed = np.array(np.uint64(seed & 0xFFFFFFFFFFFFFFFF).astype(np.int64))
        seed = seed.astype(dtypes.canonical(dtypes.int64))
    aval = typeof(seed)
    if aval.shape != () or not dtypes.is_integer(aval.dtype):
        raise ArgumentTypeError(f"a seed must be an integer scalar, got {aval}")
    wide = dtypes.bit_width(aval.dtype) == 64
    high = convert(shift_right_logical(seed, scalar_like(32, seed)), dtypes.uint32) if wide else u32(0)
    low = convert(and_(seed, scalar_like(0xFFFFFFFF, seed)) if wide else seed, dtypes.uint32)
    return _pair(high, low)


def threefry_split(key: Any, shape: Sequence[int] = (2,)) -> Any:
    """Split a key into new keys of ``shape``: an array of ``uint32[*shape, 2]``."""
    shape = tuple(shape)
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    high, low = linear_index(shape, strides, [None] * len(shape), math.prod(shape))
    k0, k1 = _words_of(key, "split")
    return _derived(k0, k1, high, low)


def folded_seed(data: Any) -> Any:
    """The key of an integer to fold in: the same in 64 bits as in 32 if these can represent it.

    Raises:
      ArgumentTypeError: not an integer scalar.
    """
    if type(data) is int and 2**31 <= data < 2**32:
        data = np.uint32(data)
    seed, dtype = threefry_seed(data), typeof(data).dtype
    if dtypes.bit_width(dtype) < 64 or dtypes.is_unsigned(dtype):
        return seed
    high, low = _words_of(seed, "fold_in")
    is_sign = and_(eq(high, u32(0xFFFFFFFF)), ge(low, u32(0x80000000)))
    return _pair(select(is_sign, u32(0), high), low)


def threefry_fold_in(key: Any, data: Any) -> Any:
    """A new key from a key and an integer.

    Raises:
      ArgumentTypeError: ``data`` is not an integer scalar.
    """
    k0, k1 = _words_of(key, "fold_in")
    d0, d1 = _words_of(folded_seed(data), "fold_in")
    return _derived(k0, k1, d0, d1)
