"""``meshwright.lax``: random bits and numbers as XLA's operations make them, beside :mod:`meshwright.random`."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.api.placement import laid_out
from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.static import static_indices
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.ops.random.bit_generator import RngBitGenerator
from meshwright.ops.random.floats import uniform_between
from meshwright.ops.shape.rearrange import reshape

_DRAWS = itertools.count()


class RandomAlgorithm(enum.Enum):
    """What :func:`rng_bit_generator` computes with; the default is Philox."""

    RNG_DEFAULT = 0
    RNG_THREE_FRY = 1
    RNG_PHILOX = 2


_NAMES = {
    RandomAlgorithm.RNG_DEFAULT: "PHILOX",
    RandomAlgorithm.RNG_PHILOX: "PHILOX",
    RandomAlgorithm.RNG_THREE_FRY: "THREE_FRY",
}


def rng_bit_generator(
    key: Any,
    shape: Sequence[int],
    dtype: Any = np.uint32,
    algorithm: RandomAlgorithm | int = RandomAlgorithm.RNG_DEFAULT,
    *,
    out_sharding: Any = None,
) -> tuple[Any, Any]:
    """The key of the next draw, and random bits.

    Args:
      key: uint32[4] or uint64[2].
      shape: shape of the bits.
      dtype: their dtype, an unsigned integer of 8 to 64 bits.
      algorithm: a :class:`RandomAlgorithm`.
      out_sharding: a constraint on the bits; see :func:`with_sharding_constraint`.

    Raises:
      DTypeError: ``key`` or ``dtype`` is of another type.

    Example:
      >>> key, bits = lax.rng_bit_generator(np.arange(4, dtype="uint32"), (3,))
      >>> key.tolist(), bits.tolist()
      ([0, 1, 3, 3], [895509795, 3230209149, 3834998268])
    """
    aval, bits_dtype = typeof(key), dtypes.requested(dtype, "rng_bit_generator")
    if (aval.shape, aval.dtype) not in [((4,), np.uint32), ((2,), np.uint64)]:
        raise DTypeError(f"rng_bit_generator: key must be uint32[4] or uint64[2], got {aval}")
    if not dtypes.is_unsigned(bits_dtype):
        raise DTypeError(f"rng_bit_generator: bits come as unsigned integers of 8 to 64 bits, not {bits_dtype}")
    op = RngBitGenerator(_NAMES[RandomAlgorithm(algorithm)], tuple(shape), bits_dtype)
    state, bits = op.bind(key if aval.dtype == np.uint64 else reshape(key, (2, 2)))
    return reshape(state, aval.shape), laid_out(bits, out_sharding)


def rng_uniform(a: Any, b: Any, shape: Sequence[int]) -> Any:
    """Uniform numbers in [a, b), without a key: each call in a program draws others, each run of it the same.

    Args:
      a, b: scalars of one float or integer dtype, which is that of the result.
      shape: shape of the result.

    Raises:
      ShapeError: no scalars. DTypeError: dtypes that differ, or are neither float nor integer.

    Example:
      >>> x = lax.rng_uniform(np.float32(1), np.float32(2), (100,))
      >>> bool((x >= 1).all() and (x < 2).all())
      True
    """
    low, high = typeof(a), typeof(b)
    if low.shape or high.shape:
        raise ShapeError(f"rng_uniform: a and b must be scalars, got {low} and {high}")
    if low.dtype != high.dtype or not (dtypes.is_float(low.dtype) or dtypes.is_integer(low.dtype)):
        raise DTypeError(f"rng_uniform: a and b must have one float or integer dtype, got {low} and {high}")
    key = np.array([0, next(_DRAWS)], np.uint32)
    return uniform_between(key, a, b, ShapedArray(static_indices(shape, "rng_uniform"), low.dtype))
