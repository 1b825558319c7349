"""Types in which XLA's compiler for NVIDIA's GPUs makes products, and those that it is given instead of others.

As they are given, small products of int8 were on an H200 twice what they should be (they are calls of a library); those
of integers with sums in floats end the process, or are refused, unless they are large and of int8; of operands of two
types one loses digits (int32 beside bfloat16, float16 beside bfloat16); and most sums of other types are refused.
Convolutions of integers are refused but for int8, whose sums in int8 would be cuDNN's: XLA's forms for it clamp them,
where they should wrap; those of
integers with batch groups are clamped too (seen on an H100).
"""

from __future__ import annotations

import numpy as np

from meshwright.core import dtypes

#: how many multiplications of int8 in one matrix are worth a call of a library
WORTH_A_CALL = 1 << 16
#: bits of integers whose products are added in float64, and of their sums: six fewer than float64 has, since cuDNN may
#: choose an algorithm (Winograd's, or by Fourier transforms) that rounds on the way, and sums are rounded to integers
PIECE, EXACT = 16, 46
#: operands of one type, and sums of another
_AS_GIVEN = frozenset({(dtypes.bfloat16, dtypes.float32), (dtypes.float16, dtypes.float32)})
_AS_GIVEN_IF_LARGE = frozenset({(dtypes.int8, dtypes.int32), (dtypes.int8, dtypes.float32)})


def computed_in(lhs: np.dtype, rhs: np.dtype, out: np.dtype, multiplications: int) -> np.dtype | None:
    """The type that operands and sums of a product are given in; None: as they are, as those with floats of 8 bits."""
    both = {lhs, rhs}
    if both == {out} or any(dtypes.is_float(d) and dtypes.bit_width(d) <= 8 for d in (lhs, rhs, out)):
        return None
    known = _AS_GIVEN_IF_LARGE | _AS_GIVEN if multiplications >= WORTH_A_CALL else _AS_GIVEN
    if len(both) == 1 and (lhs, out) in known:
        return None
    if any(map(dtypes.is_inexact, both)):
        return dtypes.join(lhs, rhs, out)
    return dtypes.float32 if dtypes.is_float(out) and dtypes.bit_width(out) < 32 else out


def sums_in_float64(lhs: np.dtype, rhs: np.dtype, out: np.dtype, terms: int) -> bool:
    """Whether a convolution of integers with sums of so many products is given in float64, which is exact: of pieces of
    :data:`PIECE` bits, where they are wider."""
    if any(map(dtypes.is_inexact, (lhs, rhs, out))):
        return False
    return terms << sum(min(dtypes.bit_width(d) - dtypes.is_signed(d), PIECE) for d in (lhs, rhs)) <= 1 << EXACT
