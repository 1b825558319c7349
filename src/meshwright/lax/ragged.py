"""Groups of rows of different sizes, as in mixtures of experts: products with them (``ragged_dot`` of ``jax.lax``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.api.placement import made_as
from meshwright.core import dtypes
from meshwright.core.precision import PrecisionLike
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, DTypeError, RuleError
from meshwright.ir.tracing import typeof
from meshwright.ops.products.dot import free_dims, matrix_precision, product_type
from meshwright.ops.products.ragged import grouped_product


@dataclass(frozen=True)
class RaggedDotDimensionNumbers:
    """Dimension numbers of :func:`ragged_dot_general`: which dimensions are paired, ragged, and count groups.

    dot_dimension_numbers: ``((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))``.
    lhs_ragged_dimensions: the one dimension of ``lhs`` that consists of groups.
    rhs_group_dimensions: the one dimension of ``rhs`` with an entry per group, if any.
    """

    dot_dimension_numbers: Any
    lhs_ragged_dimensions: Sequence[int]
    rhs_group_dimensions: Sequence[int]


_MATRICES = RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))


def ragged_dot(
    lhs: Any, rhs: Any, group_sizes: Any, precision: PrecisionLike = None, preferred_element_type: Any = None,
    group_offset: Any = None, out_sharding: Any = None,
) -> Any:  # fmt: skip
    """Multiply ``lhs [m, k]`` by ``rhs [g, k, n]``: the first ``group_sizes[0]`` rows by ``rhs[0]``, and so on.

    ``group_sizes`` are ``g`` integers, none negative. Rows of no group give zeros. Each row is multiplied once:
    TPUs have a kernel for it; elsewhere, and for gradients of ``rhs``, it is a loop over tiles of the groups.

    Raises:
      ShapeError: shapes do not fit.
      DTypeError: ``group_sizes`` are not integers.
      ArgumentError: an unknown ``precision``.
      RuleError: ``group_offset`` is given.
      ShardingError, MeshError: ``out_sharding`` does not fit.

    Example:
      >>> rows = jnp.array([[1, 2], [3, 4], [5, 6]])
      >>> experts = jnp.array([[[1], [10]], [[100], [0]]])
      >>> lax.ragged_dot(rows, experts, jnp.array([1, 2])).tolist()
      [[21], [300], [500]]
    """
    return ragged_dot_general(
        lhs, rhs, group_sizes, _MATRICES, precision, preferred_element_type, group_offset, out_sharding
    )


def ragged_dot_general(
    lhs: Any, rhs: Any, group_sizes: Any, ragged_dot_dimension_numbers: RaggedDotDimensionNumbers,
    precision: PrecisionLike = None, preferred_element_type: Any = None, group_offset: Any = None,
    out_sharding: Any = None,
) -> Any:  # fmt: skip
    """:func:`dot_general` where one dimension of ``lhs`` consists of groups, whose sizes are data.

    The kind of that dimension determines the result:

    - a free dimension (``m``): its groups are multiplied by the entries of the group dimension of ``rhs``; ``[b.., m..,
    k..]``
      times ``[g, b.., k.., n..]`` gives ``[b.., m.., n..]``;
    - a contracting dimension: each group is summed separately, which gives ``[g, b.., m.., n..]``;
    - a batch dimension: the same as :func:`dot_general`.

    ``group_sizes [g]`` applies to all, or has leading dimensions: the batch dimensions, and the dimensions of the same
    kind as the ragged one that precede it.

    Raises:
      ShapeError: shapes or dimension numbers do not fit.
      DTypeError: ``group_sizes`` are not integers.
      ArgumentError: not exactly one ragged dimension, or an unknown ``precision``.
      RuleError: ``group_offset`` is given.
      ShardingError, MeshError: ``out_sharding`` does not fit.

    Example:
      >>> numbers = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
      >>> x, y = jnp.array([[1, 2], [3, 4], [5, 6]]), jnp.array([[1], [10], [100]])
      >>> lax.ragged_dot_general(x, y, jnp.array([2, 1]), numbers).tolist()
      [[[31], [42]], [[500], [600]]]
    """
    name, numbers = "ragged_dot", ragged_dot_dimension_numbers
    (lc, rc), (lb, rb) = (tuple(map(tuple, pair)) for pair in numbers.dot_dimension_numbers)
    if group_offset is not None:
        raise RuleError(f"{name}: group_offset is not supported; slice rhs and group_sizes")
    if len(numbers.lhs_ragged_dimensions) != 1 or len(numbers.rhs_group_dimensions) > 1:
        raise ArgumentError(f"{name}: expected one ragged dimension and at most one group dimension, got {numbers}")
    if not dtypes.is_integer(typeof(group_sizes).dtype):
        raise DTypeError(f"{name}: group_sizes must be integers, got {typeof(group_sizes)}")
    (ragged,) = numbers.lhs_ragged_dimensions
    kept = tuple(free_dims(typeof(lhs).ndim, lc, lb))
    if (ragged in kept) != (len(numbers.rhs_group_dimensions) == 1):
        raise ArgumentError(
            f"{name}: rhs has a group dimension if the ragged dimension of lhs is one of the result, and else none; "
            f"got {numbers}"
        )
    avals, groups = (typeof(lhs), typeof(rhs)), tuple(numbers.rhs_group_dimensions)
    how = matrix_precision(precision, avals), product_type(name, preferred_element_type, avals)
    return made_as(
        out_sharding,
        lambda: grouped_product(lhs, rhs, group_sizes, ((lc, rc), (lb, rb)), ragged, groups, *how),
    )
