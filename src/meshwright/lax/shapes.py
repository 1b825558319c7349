"""Creating, filling, repeating, splitting and joining arrays, with the conventions of ``jax.lax``.

``out_sharding`` and ``sharding`` (a sharding, or a ``PartitionSpec`` on the current mesh) are constraints on the
result, as by :func:`meshwright.with_sharding_constraint`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.api.placement import laid_out, made_as
from meshwright.core import dtypes
from meshwright.core.static import static_index, static_indices, static_shape
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError, AxisError, DTypeError, IndexingError, ShapeError
from meshwright.ir.tracing import FOREIGN, typeof
from meshwright.ops.elementwise.table import add, convert, lt, rem, select
from meshwright.ops.indexing.gather_scatter import gather_along
from meshwright.ops.indexing.indexed import index_array
from meshwright.ops.shape import broadcast_reduce
from meshwright.ops.shape import rearrange as shape
from meshwright.ops.shape.rearrange import expand_dims, squeeze, transpose
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim
from meshwright.runtime.values import as_result


def existing_axis(name: str, axis: int, ndim: int) -> int:
    """``axis`` counted from the front.

    Raises:
      AxisError: out of range; ``name`` is the calling function.
    """
    axis = static_index(axis, name, "an axis")
    if not -ndim <= axis < ndim:
        raise AxisError(f"{name}: axis {axis} does not exist in an array of {counted(ndim, 'dimension')}")
    return axis % ndim


# --- creation -----------------------------------------------------------------------------------------------
def full(shape: Sequence[int] | int, fill_value: Any, dtype: Any = None, *, sharding: Any = None) -> Any:
    """An array of ``shape`` filled with the scalar ``fill_value``, in its dtype unless another is given.

    Raises:
      ShapeError: ``fill_value`` is not a scalar, or a size is negative.
      ShardingError, MeshError: ``sharding`` does not fit.

    Example:
      >>> lax.full((2, 3), 7).tolist()
      [[7, 7, 7], [7, 7, 7]]
    """
    scalar = fill_value if dtype is None else convert(fill_value, dtypes.requested(dtype, "full"))
    aval = typeof(scalar)
    if aval.shape != ():
        raise ShapeError(f"full: fill_value must be a scalar, got {aval}; use broadcast_in_dim for an array")
    sizes = static_shape(shape, "full")
    return laid_out(broadcast_reduce.broadcast_in_dim(as_result(scalar), sizes, ()), sharding)


def full_like(
    x: Any, fill_value: Any, dtype: Any = None, shape: Sequence[int] | None = None, sharding: Any = None
) -> Any:
    """An array filled with ``fill_value``, with the shape and dtype of ``x`` unless others are given, and its sharding
    if the shape is the same.

    Raises:
      ShapeError: ``fill_value`` is not a scalar.
      ShardingError, MeshError: ``sharding`` does not fit.

    Example:
      >>> lax.full_like(jnp.array([[1, 2, 3]]), 2.7).tolist()
      [[2, 2, 2]]
    """
    aval = typeof(x)
    target = aval.dtype if dtype is None else dtype
    placed = type(x) not in FOREIGN and getattr(x, "committed", False)
    if sharding is None and placed and shape in (None, aval.shape):
        sharding = x.sharding
    filled = convert(fill_value, dtypes.requested(target, "full_like"), weak_type=dtype is None and aval.weak_type)
    return full(aval.shape if shape is None else shape, filled, sharding=sharding)


def empty(shape: Sequence[int], dtype: Any, *, out_sharding: Any = None) -> Any:
    """An array of ``shape`` with unspecified values (zeros).

    Raises:
      ShapeError: a size is negative.
      ShardingError, MeshError: ``out_sharding`` does not fit.

    Example:
      >>> lax.empty((2, 3), np.float32).shape
      (2, 3)
    """
    return full(shape, 0, dtype, sharding=out_sharding)


def broadcasted_iota(dtype: Any, shape: Sequence[int], dimension: int, *, out_sharding: Any = None) -> Any:
    """An array of ``shape`` whose elements are their positions along ``dimension``.

    Raises:
      ShapeError: ``dimension`` is out of range, or a size is negative.
      DTypeError: ``dtype`` is bool.
      ShardingError, MeshError: ``out_sharding`` does not fit.

    Example:
      >>> lax.broadcasted_iota(np.int32, (2, 3), 1).tolist()
      [[0, 1, 2], [0, 1, 2]]
    """
    target = dtypes.requested(dtype, "broadcasted_iota")
    return laid_out(broadcast_reduce.iota(target, shape, dimension), out_sharding)


def iota(dtype: Any, size: int) -> Any:
    """The vector 0, 1, ..., ``size - 1``.

    Raises:
      ShapeError: ``size`` is negative.
      DTypeError: ``dtype`` is bool.

    Example:
      >>> lax.iota(np.float32, 3).tolist()
      [0.0, 1.0, 2.0]
    """
    return broadcasted_iota(dtype, (size,), 0)


# --- broadcasting -------------------------------------------------------------------------------------------
def broadcast_in_dim(
    operand: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int], *, out_sharding: Any = None
) -> Any:
    """Broadcast ``operand`` to ``shape``: its dimension ``i`` becomes dimension ``broadcast_dimensions[i]``.

    Dimensions of size 1 are repeated.

    Raises:
      ShapeError: a dimension repeats, or sizes do not fit.
      ShardingError, MeshError: ``out_sharding`` does not fit.

    Example:
      >>> lax.broadcast_in_dim(jnp.array([1, 2]), (2, 3), (0,)).tolist()
      [[1, 1, 1], [2, 2, 2]]
    """
    return laid_out(broadcast_reduce.broadcast_in_any_order(operand, shape, broadcast_dimensions), out_sharding)


def broadcast(operand: Any, sizes: Sequence[int], *, out_sharding: Any = None) -> Any:
    """Repeat ``operand`` along new leading dimensions of ``sizes``.

    Raises:
      ShapeError: a size is negative.
      ShardingError, MeshError: ``out_sharding`` does not fit.

    Example:
      >>> lax.broadcast(jnp.array([1, 2]), (3,)).tolist()
      [[1, 2], [1, 2], [1, 2]]
    """
    shape, sizes = typeof(operand).shape, static_indices(sizes, "broadcast")
    n = len(sizes)
    return broadcast_in_dim(operand, (*sizes, *shape), range(n, n + len(shape)), out_sharding=out_sharding)


def broadcast_like(arr: Any, like_arr: Any) -> Any:
    """Broadcast ``arr``, by NumPy's rules, to the shape of ``like_arr``.

    An array on a mesh also gives the result its sharding; inside a traced function that is left to the partitioner.

    Raises:
      ShapeError: ``arr`` does not broadcast to that shape.

    Example:
      >>> lax.broadcast_like(jnp.array([[1], [2]]), jnp.zeros((2, 3))).tolist()
      [[1, 1, 1], [2, 2, 2]]
    """
    mine, target = typeof(arr).shape, typeof(like_arr).shape
    extra = len(target) - len(mine)
    if extra < 0 or any(m not in (1, t) for m, t in zip(mine, target[extra:])):
        raise ShapeError(f"broadcast_like: shape {mine} does not broadcast to {target}")
    y = broadcast_in_dim(arr, target, range(extra, len(target)))
    sharding = getattr(like_arr, "sharding", None)
    return laid_out(y, sharding) if sharding is not None and len(sharding.device_set) > 1 else y


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape to which arrays of ``shapes`` broadcast.

    Raises:
      ShapeError: two sizes differ and neither is 1.

    Example:
      >>> lax.broadcast_shapes((3, 1), (4,), (1, 1, 1))
      (1, 3, 4)
    """
    try:
        return np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        shown = ", ".join(str(tuple(s)) for s in shapes)
        raise ShapeError(f"broadcast_shapes: {shown} do not fit: sizes must be equal, or 1") from None


def broadcast_to_rank(x: Any, rank: int) -> Any:
    """Add leading dimensions of size 1 to ``x`` until it has at least ``rank`` dimensions.

    Example:
      >>> lax.broadcast_to_rank(jnp.ones((2, 3)), 4).shape
      (1, 1, 2, 3)
    """
    missing = rank - typeof(x).ndim
    return expand_dims(x, range(missing)) if missing > 0 else x


def tile(operand: Any, reps: Sequence[int]) -> Any:
    """Repeat ``operand`` ``reps[d]`` times along each dimension ``d``.

    Raises:
      ShapeError: not one number per dimension, or a negative one.

    Example:
      >>> lax.tile(jnp.array([[1, 2]]), (2, 3)).tolist()
      [[1, 2, 1, 2, 1, 2], [1, 2, 1, 2, 1, 2]]
    """
    shape = typeof(operand).shape
    if len(reps) != len(shape):
        raise ShapeError(f"tile: reps {tuple(reps)} must have one entry for each dimension of shape {shape}")
    pairs = [n for pair in zip(reps, shape) for n in pair]
    repeated = broadcast_in_dim(operand, pairs, range(1, 2 * len(shape), 2))
    return reshape(repeated, [r * s for r, s in zip(reps, shape)])


# --- shape --------------------------------------------------------------------------------------------------
def reshape(
    operand: Any, new_sizes: Sequence[int] | int, dimensions: Sequence[int] | None = None, *, out_sharding: Any = None
) -> Any:
    """Reshape ``operand``, in row-major order, to ``new_sizes``, which may be an integer.

    With ``dimensions``, a permutation, ``operand`` is transposed by it first.

    Raises:
      ShapeError: another number of elements, or ``dimensions`` is not a permutation.
      ShardingError, MeshError: ``out_sharding`` does not fit.

    Example:
      >>> x = jnp.array([[1, 2, 3], [4, 5, 6]])
      >>> lax.reshape(x, (3, 2)).tolist(), lax.reshape(x, (6,), (1, 0)).tolist()
      ([[1, 2], [3, 4], [5, 6]], [1, 4, 2, 5, 3, 6])
    """
    moved = operand if dimensions is None else transpose(operand, dimensions)
    sizes = static_shape(new_sizes, "reshape")
    return made_as(out_sharding, lambda: shape.reshape(moved, sizes))


def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Any:
    """Merge the dimensions of ``operand`` from ``start_dimension`` up to ``stop_dimension`` into one.

    Raises:
      ShapeError: the range is empty.

    Example:
      >>> lax.collapse(jnp.ones((2, 3, 4)), 1).shape
      (2, 12)
    """
    shape = typeof(operand).shape
    start, stop, _ = slice(start_dimension, stop_dimension).indices(len(shape))
    if start >= stop:
        raise ShapeError(f"collapse: no dimensions from {start_dimension} to {stop_dimension} in shape {shape}")
    return reshape(operand, (*shape[:start], math.prod(shape[start:stop]), *shape[stop:]))


# --- parts --------------------------------------------------------------------------------------------------
def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> list[Any]:
    """Split ``operand`` into consecutive parts of the given ``sizes`` along ``axis``.

    Raises:
      AxisError: the axis is out of range.
      ShapeError: the sizes do not add up to that of the dimension.

    Example:
      >>> [part.tolist() for part in lax.split(jnp.arange(5), [2, 3])]
      [[0, 1], [2, 3, 4]]
    """
    shape, sizes = typeof(operand).shape, static_indices(sizes, "split")
    axis = existing_axis("split", axis, len(shape))
    if sum(sizes) != shape[axis] or any(s < 0 for s in sizes):
        raise ShapeError(f"split: sizes {list(sizes)} must add up to {shape[axis]}, dimension {axis} of shape {shape}")
    ends = np.cumsum([0, *sizes]).tolist()
    return [slice_in_dim(operand, a, b, 1, axis) for a, b in pairwise(ends)]


def stack(operands: Sequence[Any], axis: int = 0) -> Any:
    """Stack arrays of equal shape and dtype along a new dimension ``axis``.

    Raises:
      ArgumentError: there are no arrays.
      AxisError: the axis is out of range.
      ShapeError, DTypeError: the arrays differ.

    Example:
      >>> lax.stack([jnp.array([1, 2]), jnp.array([3, 4])], axis=1).tolist()
      [[1, 3], [2, 4]]
    """
    if not operands:
        raise ArgumentError("stack: expected one array or more")
    avals = [typeof(x) for x in operands]
    axis = existing_axis("stack", axis, avals[0].ndim + 1)
    if len({a.shape for a in avals}) > 1:
        raise ShapeError(f"stack: shapes must be equal, got {', '.join(str(a.shape) for a in avals)}")
    if len({a.dtype for a in avals}) > 1:
        listed = ", ".join(str(a.dtype) for a in avals)
        raise DTypeError(f"stack: dtypes must be equal, got {listed}; convert them with .astype")
    return concatenate([expand_dims(x, [axis]) for x in operands], axis)


def unstack(x: Any, axis: int = 0) -> tuple[Any, ...]:
    """The slices of ``x`` along ``axis``, which is removed.

    Raises:
      AxisError: the axis is out of range.

    Example:
      >>> [part.tolist() for part in lax.unstack(jnp.array([[1, 2, 3], [4, 5, 6]]), axis=1)]
      [[1, 4], [2, 5], [3, 6]]
    """
    axis = existing_axis("unstack", axis, typeof(x).ndim)
    size = typeof(x).shape[axis]
    return tuple(squeeze(slice_in_dim(x, i, i + 1, 1, axis), [axis]) for i in range(size))


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Any:
    """The slice of ``operand`` at ``index`` along ``axis``, which keeps size 1, or is removed without ``keepdims``.

    A negative index counts from the end.

    Raises:
      ArgumentTypeError: ``index`` is not an integer.
      AxisError: the axis is out of range.
      ShapeError: the index is out of range.

    Example:
      >>> x = jnp.array([[1, 2, 3], [4, 5, 6]])
      >>> lax.index_in_dim(x, -1, 1).tolist(), lax.index_in_dim(x, 1, keepdims=False).tolist()
      ([[3], [6]], [4, 5, 6])
    """
    axis = existing_axis("index_in_dim", axis, typeof(operand).ndim)
    size = typeof(operand).shape[axis]
    if not isinstance(index, (int, np.integer)):
        raise ArgumentTypeError(f"index_in_dim: index must be an integer, got {index!r}; see dynamic_index_in_dim")
    if not -size <= index < size:
        raise IndexingError(f"index_in_dim: index {index} is out of bounds for axis {axis} of size {size}")
    start = int(index) % size
    out = slice_in_dim(operand, start, start + 1, 1, axis)
    return out if keepdims else squeeze(out, [axis])


def _wrapped(ids: Any, size: int) -> Any:
    """Positions modulo ``size``, as JAX interprets them."""
    rest = rem(ids, np.int32(size))
    return select(lt(rest, np.int32(0)), add(rest, np.int32(size)), rest)


def index_take(src: Any, idxs: Sequence[Any], axes: Sequence[int]) -> Any:
    """The slices of ``src`` at the positions given by 1-D index arrays along ``axes``, stacked along the first
    dimension.

    Positions are modulo the size of their axis, so negative ones count from its end.

    Raises:
      ArgumentError: not one index array per axis.
      AxisError: an axis is out of range.
      DTypeError: indices are not integers.

    Example:
      >>> x = jnp.array([[1, 2, 3], [4, 5, 6]])
      >>> lax.index_take(x, (jnp.array([1, 0, 1]), jnp.array([2, 0, 0])), (0, 1)).tolist()
      [6, 1, 4]
    """
    if len(idxs) != len(axes):
        raise ArgumentError(
            f"index_take: {len(idxs)} index arrays for {counted(len(axes), 'axis', 'axes')}; give one for each"
        )
    ndim = typeof(src).ndim
    axes = [existing_axis("index_take", a, ndim) for a in axes]
    moved = transpose(src, [*axes, *(d for d in range(ndim) if d not in axes)])
    shape = typeof(moved).shape
    linear: Any = 0
    for ids, size in zip(idxs, shape):
        linear = linear * size + _wrapped(convert(index_array(ids, "index_take"), np.dtype(np.int32)), size)
    rows = reshape(moved, (math.prod(shape[: len(axes)]), *shape[len(axes) :]))
    spread = broadcast_in_dim(linear, (typeof(linear).shape[0], *typeof(rows).shape[1:]), [0])
    return gather_along(rows, spread, 0)
