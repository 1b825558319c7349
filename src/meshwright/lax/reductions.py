"""Reductions and sorting in ``meshwright.lax``: reduction by any function, sums, sorting by keys, largest elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.api.placement import laid_out, made_as
from meshwright.core import pytree
from meshwright.core.static import static_indices
from meshwright.ir.tracing import typeof
from meshwright.lax.shapes import existing_axis
from meshwright.ops.elementwise.table import neg
from meshwright.ops.reduce.body import ReduceBody
from meshwright.ops.reduce.by_name import reduce_by, reduces_by
from meshwright.ops.reduce.function import reduction_function
from meshwright.ops.shape import broadcast_reduce
from meshwright.ops.shape.rearrange import transpose
from meshwright.ops.sort.sorting import sort
from meshwright.ops.sort.top_k import top_k


def reduce(
    operands: Any,
    init_values: Any,
    computation: Callable[[Any, Any], Any],
    dimensions: Sequence[int],
    out_sharding: Any = None,
) -> Any:
    """Reduce a tree of arrays of one shape together over ``dimensions`` with an associative ``computation``.

    ``computation(a, b)`` takes two trees of scalars and returns one, as are ``init_values``. A ``computation`` that is
    an op with a reduction (``add``, ``max``, ...) becomes that reduction; any other is differentiable if it consists of
    elementwise ops.

    Raises:
      ArgumentError: trees differ.
      ShapeError, DTypeError: operands and initial values do not fit each other.
      AxisError: a dimension is out of range.
      ShardingError, MeshError: ``out_sharding`` does not fit.

    Example:
      >>> x = jnp.array([3, 1, 2])
      >>> lax.reduce((x, x), (0, 1), lambda a, b: (a[0] + b[0], a[1] * b[1]), [0])
      (Array(6, dtype=int32), Array(6, dtype=int32))
    """
    asked = reduction_function("reduce", operands, init_values, computation)
    ndim = typeof(asked.arrays[0]).ndim
    axes = tuple(sorted(existing_axis("reduce", d, ndim) for d in static_indices(dimensions, "reduce")))
    if reduces_by(asked.op_name):
        outs = [reduce_by(asked.op_name, asked.arrays[0], asked.inits[0], axes)]
    else:
        outs = ReduceBody(axes, asked.body).bind(*asked.arrays, *asked.inits)
    return pytree.map(lambda y: laid_out(y, out_sharding), asked.results(outs))


def reduce_sum(operand: Any, axes: Sequence[int], *, out_sharding: Any = None) -> Any:
    """Sum ``operand`` over its dimensions ``axes``, which are removed.

    Negative axes count from the end. The dtype is kept.

    Raises:
      ShapeError: an axis is out of range or repeats.
      ShardingError, MeshError: ``out_sharding`` does not fit.

    Example:
      >>> x = jnp.array([[3, 1, 2], [4, 6, 5]])
      >>> lax.reduce_sum(x, (1,)).tolist(), int(lax.reduce_sum(x, (0, 1)))
      ([6, 15], 21)
    """
    return made_as(out_sharding, lambda: broadcast_reduce.reduce_sum(operand, axes))


def sort_key_val(keys: Any, values: Any, dimension: int = -1, is_stable: bool = True) -> tuple[Any, Any]:
    """Sort ``keys`` in ascending order along ``dimension``, and permute ``values`` in the same way.

    Raises:
      ShapeError: shapes differ, or the dimension is out of range.

    Example:
      >>> lax.sort_key_val(jnp.array([3, 1, 2]), jnp.array([30, 10, 20]))[1].tolist()
      [10, 20, 30]
    """
    return sort((keys, values), dimension, is_stable, num_keys=1)


def _approx_k(name: str, sign: Callable[[Any], Any], what: str, example: str) -> Callable[..., tuple[Any, Any]]:
    def approx_k(
        operand: Any, k: int, reduction_dimension: int = -1, recall_target: float = 0.95,
        reduction_input_size_override: int = -1, aggregate_to_topk: bool = True,
    ) -> tuple[Any, Any]:  # fmt: skip
        last = typeof(operand).ndim - 1
        dim = existing_axis(name, reduction_dimension, last + 1)
        order = [*(d for d in range(last + 1) if d != dim), dim]
        back = np.argsort(order).tolist()
        values, positions = top_k(sign(transpose(operand, order)), k)
        return sign(transpose(values, back)), transpose(positions, back)

    approx_k.__name__ = approx_k.__qualname__ = name
    approx_k.__doc__ = f"""The ``k`` {what} order, and their positions: all of them, always.

    ``recall_target`` and the parameters after it are about how many may be missed on a TPU; none are missed here.

    Raises:
      AxisError: a dimension that does not exist.
      ShapeError: ``k`` is negative or larger than the dimension.
      DTypeError: complex numbers or bools.

    Example:
      {example}
    """
    return approx_k


approx_max_k = _approx_k(
    "approx_max_k",
    lambda x: x,
    "largest elements along a dimension, in descending",
    """>>> values, positions = lax.approx_max_k(jnp.array([[3., 9., 5.], [8., 2., 7.]]), 1, reduction_dimension=0)
      >>> values.tolist(), positions.tolist()
      ([[8.0, 9.0, 7.0]], [[1, 0, 1]])""",
)
approx_min_k = _approx_k(
    "approx_min_k",
    neg,
    "smallest elements along a dimension, in ascending",
    """>>> values, positions = lax.approx_min_k(jnp.array([[3., 9., 5.], [8., 2., 7.]]), 2)
      >>> values.tolist(), positions.tolist()
      ([[3.0, 5.0], [2.0, 7.0]], [[0, 2], [1, 2]])""",
)
