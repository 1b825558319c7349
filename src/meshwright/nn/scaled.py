"""Matrix products in narrow floats whose blocks share scales."""

from __future__ import annotations

from typing import Any

from meshwright.core import dtypes
from meshwright.errors import ShapeError
from meshwright.ir.tracing import typeof
from meshwright.lax.scaled import scaled_dot
from meshwright.numpy.creation import asarray
from meshwright.numpy.promotion import converted


def scaled_matmul(
    lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any, preferred_element_type: Any = dtypes.float32
) -> Any:
    """Multiply ``lhs`` by the transpose of ``rhs`` for each batch, with a scale per block of the last dimensions.

    Args:
      lhs: shape (batch, m, k).
      rhs: shape (batch, n, k).
      lhs_scales: shape (batch, m, blocks), each for ``k / blocks`` elements.
      rhs_scales: shape (batch, n, blocks); the number of blocks may differ from that of ``lhs_scales``.
      preferred_element_type: of the result; arithmetic is in float32 or wider.

    Returns:
      An array of shape (batch, m, n).

    Raises:
      ShapeError: shapes do not fit.

    >>> x, s = np.array([[[1.0, 2.0, 3.0]]]), np.array([[[0.5]]])
    >>> scaled_matmul(x, 3 * x, s, s).tolist()
    [[[10.5]]]
    """
    dtype = dtypes.requested(preferred_element_type, "scaled_matmul")
    operands = [asarray(x) for x in (lhs, rhs, lhs_scales, rhs_scales)]
    if any(typeof(x).ndim != 3 for x in operands):
        raise ShapeError(
            f"scaled_matmul: expected operands and scales of three dimensions, got "
            f"{', '.join(str(typeof(x)) for x in operands)}"
        )
    x, y, left, right = operands
    computed = dtypes.float32 if dtypes.bit_width(dtype) < 32 else dtype
    numbers = ((2, 2), (0, 0))
    out = scaled_dot(x, y, lhs_scale=left, rhs_scale=right, dimension_numbers=numbers, preferred_element_type=computed)
    return converted(out, dtype)
