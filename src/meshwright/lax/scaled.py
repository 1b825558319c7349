"""Products of operands whose blocks of elements share scales, as in narrow float formats (OCP Microscaling)."""

from __future__ import annotations

from typing import Any

from meshwright.core import dtypes
from meshwright.core.static import static_shape
from meshwright.errors import ShapeError
from meshwright.ir.tracing import typeof
from meshwright.lax.products import dot_general
from meshwright.ops.elementwise.table import convert, mul
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.ops.shape.rearrange import reshape


def scaled_dot(
    lhs: Any, rhs: Any, *, lhs_scale: Any = None, rhs_scale: Any = None, dimension_numbers: Any = None,
    preferred_element_type: Any = None,
) -> Any:  # fmt: skip
    """``(lhs * lhs_scale) @ (rhs * rhs_scale)``: :func:`dot_general` of operands whose blocks share a scale.

    A scale has the operand's shape, except along contracted dimensions, where each of its elements applies to a block
    of equal size. Without ``dimension_numbers``, the last dimension of ``lhs`` is contracted with the last but one of
    ``rhs``, and preceding ones are batches. All arithmetic is in ``preferred_element_type``, by default bfloat16.

    Raises:
      ShapeError: a scale does not fit its operand, or operands do not fit each other.

    Example:
      >>> x, y = jnp.arange(8.0).reshape(2, 4), jnp.ones((4, 1))
      >>> lax.scaled_dot(x, y, lhs_scale=jnp.array([[1.0, 10.0], [1.0, 0.0]])).ravel().tolist()
      [51.0, 9.0]
    """
    dtype = dtypes.requested("bfloat16" if preferred_element_type is None else preferred_element_type, "scaled_dot")
    n = typeof(lhs).ndim
    if dimension_numbers is None:
        if n < 2:
            raise ShapeError(f"scaled_dot: expected two dimensions or more, got {typeof(lhs)}; give dimension_numbers")
        dimension_numbers = ((n - 1, n - 2), (range(n - 2), range(n - 2)))
    (left, right), _ = dimension_numbers
    x = _scaled("lhs", lhs, lhs_scale, static_shape(left, "scaled_dot"), dtype)
    y = _scaled("rhs", rhs, rhs_scale, static_shape(right, "scaled_dot"), dtype)
    return dot_general(x, y, dimension_numbers, preferred_element_type=dtype)


def _scaled(name: str, x: Any, scale: Any, contracted: tuple[int, ...], dtype: Any) -> Any:
    """``x`` in ``dtype``, multiplied by the scales of its blocks."""
    if scale is None:
        return convert(x, dtype)
    sizes, blocks = typeof(x).shape, typeof(scale).shape
    fits = len(sizes) == len(blocks) and all(
        n == b or (d in contracted and b and n % b == 0) for d, (n, b) in enumerate(zip(sizes, blocks))
    )
    if not fits:
        raise ShapeError(
            f"scaled_dot: {name}_scale has shape {blocks}, {name} {sizes}: expected equal sizes, or along contracted "
            f"dimensions ({', '.join(map(str, contracted))}) sizes that divide those of {name}"
        )
    return mul(convert(x, dtype), _repeated(convert(scale, dtype), sizes))


def _repeated(scale: Any, sizes: tuple[int, ...]) -> Any:
    """Each scale repeated for the elements of its block."""
    blocks = typeof(scale).shape
    shape = [s for n, b in zip(sizes, blocks) for s in (b, n // b if b else 1)]
    return reshape(broadcast_in_dim(scale, shape, range(0, len(shape), 2)), sizes)
