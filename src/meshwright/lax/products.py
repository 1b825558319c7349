"""Products of ``meshwright.lax``: :func:`dot_general` with its everyday forms, and convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.api.placement import made_as
from meshwright.core.precision import PrecisionLike
from meshwright.errors import ShapeError
from meshwright.ir.tracing import typeof
from meshwright.ops.products import conv as conv_functions
from meshwright.ops.products import dot as dot_functions


def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any,
    precision: PrecisionLike = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """The product of ``lhs`` and ``rhs`` summed over paired contracting dimensions, for each paired batch index.

    ``dimension_numbers`` is ``((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))``. The result has the batch
    dimensions, then the remaining ones of ``lhs``, then those of ``rhs``; its dtype is the promoted one of the operands
    unless ``preferred_element_type`` is given, in which sums are made too.

    Raises:
      ShapeError: paired dimensions that do not exist or have different sizes.
      ArgumentError: an unknown ``precision``.
      ShardingError, MeshError: ``out_sharding`` does not fit.

    Example:
      >>> x, y = jnp.arange(12).reshape(2, 2, 3), jnp.arange(6).reshape(2, 3)
      >>> lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))).tolist()
      [[5, 14], [86, 122]]
    """
    return made_as(
        out_sharding,
        lambda: dot_functions.dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type),
    )


def dot(
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: Any = None,
    precision: PrecisionLike = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The product of vectors and matrices, or with ``dimension_numbers`` :func:`dot_general`.

    Raises:
      ShapeError: operands of other than 1 or 2 dimensions without ``dimension_numbers``, or sizes that differ.
      ArgumentError: an unknown ``precision``.
      ShardingError, MeshError: ``out_sharding`` does not fit.

    Example:
      >>> x = jnp.array([[1, 2, 3], [4, 5, 6]])
      >>> lax.dot(x, jnp.array([1, 0, -1])).tolist()
      [-2, -2]
    """
    left, right = typeof(lhs).shape, typeof(rhs).shape
    if dimension_numbers is None:
        if not 1 <= len(left) <= 2 or not 1 <= len(right) <= 2:
            raise ShapeError(f"dot: expected vectors or matrices, got shapes {left} and {right}; use dot_general")
        dimension_numbers = (((len(left) - 1,), (0,)), ((), ()))
    return dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type, out_sharding=out_sharding)


def batch_matmul(lhs: Any, rhs: Any, precision: PrecisionLike = None) -> Any:
    """Matrix products over any number of equal leading dimensions: ``[..., m, k]`` and ``[..., k, n]``.

    Raises:
      ShapeError: fewer than two dimensions, or leading dimensions that differ.
      ArgumentError: an unknown ``precision``.

    Example:
      >>> x = jnp.arange(6).reshape(3, 1, 2)
      >>> lax.batch_matmul(x, x.reshape(3, 2, 1)).ravel().tolist()
      [1, 13, 41]
    """
    left, right = typeof(lhs).shape, typeof(rhs).shape
    if len(left) != len(right) or len(left) < 2:
        raise ShapeError(f"batch_matmul: expected equal ranks of two or more, got shapes {left} and {right}")
    batch = tuple(range(len(left) - 2))
    return dot_general(lhs, rhs, (((len(left) - 1,), (len(left) - 2,)), (batch, batch)), precision)


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: PrecisionLike = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """Convolution of ``lhs`` with the kernel ``rhs``, in any number of spatial dimensions.

    Without ``dimension_numbers`` the shapes are ``lhs [N, C, ...]``, ``rhs [O, I, ...]``; see
    :func:`conv_dimension_numbers`. ``padding`` is ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"`` or a ``(low, high)`` pair
    for each spatial dimension (negative ones cut). ``lhs_dilation`` puts zeros between rows of ``lhs`` (transposed
    convolution), ``rhs_dilation`` between rows of the kernel (dilated convolution). ``feature_group_count`` and
    ``batch_group_count`` cut features or batch into groups that do not mix.

    Raises:
      ShapeError: operands that do not fit each other or the parameters.
      DTypeError: operands of different dtypes.
      ArgumentError: malformed parameters.
      ShardingError, MeshError: ``out_sharding`` does not fit.

    Example:
      >>> x = jnp.array([[[1., 2., 3., 4.]]])
      >>> kernel = jnp.array([[[1., -1.]]])
      >>> lax.conv_general_dilated(x, kernel, (1,), "VALID").tolist()
      [[[-1.0, -1.0, -1.0]]]
      >>> lax.conv_general_dilated(x, kernel, (2,), [(1, 0)]).tolist()
      [[[-1.0, -1.0]]]
    """
    return made_as(
        out_sharding,
        lambda: conv_functions.conv_general_dilated(
            lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers, feature_group_count,
            batch_group_count, precision, preferred_element_type,
        ),
    )  # fmt: skip
