"""The types of products that XLA's compiler for NVIDIA GPUs handles well, and replacements for the others.

If products are passed unchanged, small int8 products took twice the expected time on an H200 (they are library calls).
Integer products with float sums end the process, or are refused, unless they are large and int8. Operands of two types
lose digits (int32 with bfloat16, float16 with bfloat16), and most sums of other types are refused. Integer convolutions
are refused except for int8; with sums in int8 they would be cuDNN's, whose forms clamp where sums should wrap. Those
with batch groups are clamped too (seen on an H100).
"""

from __future__ import annotations

import numpy as np

from meshwright.core import dtypes

#: the number of int8 multiplications per matrix that justifies a library call
WORTH_A_CALL = 1 << 16
#: bits of integers whose products are summed in float64, and of their sums: six fewer than float64 has, since cuDNN may
#: choose an algorithm with intermediate rounding (Winograd, or Fourier transforms), and sums are rounded to integers
PIECE, EXACT = 16, 46
#: (type of both operands, type of sums)
_AS_GIVEN = frozenset({(dtypes.bfloat16, dtypes.float32), (dtypes.float16, dtypes.float32)})
_AS_GIVEN_IF_LARGE = frozenset({(dtypes.int8, dtypes.int32), (dtypes.int8, dtypes.float32)})


def computed_in(lhs: np.dtype, rhs: np.dtype, out: np.dtype, multiplications: int) -> np.dtype | None:
    """The type to which operands and sums of a product are converted; None: unchanged, as with 8-bit floats."""
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
    """Whether an integer convolution with sums of ``terms`` products is exact in float64, with wider integers split
    into pieces of :data:`PIECE` bits."""
    if any(map(dtypes.is_inexact, (lhs, rhs, out))):
        return False
    return terms << sum(min(dtypes.bit_width(d) - dtypes.is_signed(d), PIECE) for d in (lhs, rhs)) <= 1 << EXACT
