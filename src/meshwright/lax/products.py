"""The products of ``meshwright.lax``: :func:`dot_general` and its common forms, and convolution."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from meshwright.api.placement import made_as
from meshwright.core.precision import PrecisionLike
from meshwright.errors import ShapeError
from meshwright.ir.tracing import typeof
from meshwright.ops.collective.named_axis import psum
from meshwright.ops.products import conv as conv_functions
from meshwright.ops.products import dot as dot_functions


def _placed(product: Callable[..., Any], kind: Any) -> Callable[..., Any]:
    """``product`` with an additional parameter ``out_sharding``, the sharding of the result."""
    signature = inspect.signature(product)
    signature = signature.replace(
        parameters=[*signature.parameters.values(), inspect.Parameter("out_sharding", kind, default=None)]
    )

    @functools.wraps(product)
    def placed(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        out_sharding = given.pop("out_sharding", None)
        return made_as(out_sharding, lambda: product(**given))

    raises = "      ShardingError, MeshError: ``out_sharding`` does not fit.\n\n    Example:"
    placed.__doc__ = (product.__doc__ or "").replace("\n    Example:", raises, 1)
    placed.__module__ = __name__
    placed.__signature__ = signature  # type: ignore[attr-defined]
    return placed


dot_general = _placed(dot_functions.dot_general, inspect.Parameter.KEYWORD_ONLY)
conv_general_dilated = _placed(conv_functions.conv_general_dilated, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def dot(
    lhs: Any, rhs: Any, *, dimension_numbers: Any = None, precision: PrecisionLike = None,
    preferred_element_type: Any = None, out_sharding: Any = None,
) -> Any:  # fmt: skip
    """The product of vectors and matrices, or with ``dimension_numbers`` :func:`dot_general`.

    Raises:
      ShapeError: operands without 1 or 2 dimensions and no ``dimension_numbers``, or sizes that differ.
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


def pdot(
    x: Any, y: Any, axis_name: Any, pos_contract: Any = ((), ()), pos_batch: Any = ((), ()),
    precision: PrecisionLike = None,
) -> Any:  # fmt: skip
    """Contract ``x`` and ``y`` along named axes and the dimensions ``pos_contract``. Prefer ``psum`` of
    :func:`dot_general`.

    Example:
      >>> rows = mw.vmap(lambda x, y: lax.pdot(x, y, "i"), axis_name="i")
      >>> rows(jnp.array([1, 2, 3]), jnp.array([1, 10, 100])).tolist()
      [321, 321, 321]
    """
    return psum(dot_general(x, y, (pos_contract, pos_batch), precision), axis_name)
