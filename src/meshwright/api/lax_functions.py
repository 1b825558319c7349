"""The small functions of ``meshwright.lax``: each is one or two ops with the conventions of ``jax.lax``."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.core import dtypes, pytree
from meshwright.core.avals import ShapedArray
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.ir.state import axis_size as _axis_size
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.ops import markers
from meshwright.ops.broadcast_reduce import broadcast_in_dim
from meshwright.ops.collective import Psum
from meshwright.ops.dot import dot_general
from meshwright.ops.elementwise import (
    BitcastConvert,
    ReducePrecision,
    SelectN,
    convert,
    div,
    eq,
    neg,
    round_half_away,
    round_half_even,
    scalar_like,
    select,
    zeros_like,
)
from meshwright.ops.gather_scatter import ScatterBody, gather_along, scatter_add
from meshwright.ops.indexed import GatherScatterMode, index_array
from meshwright.ops.named_axis import all_to_all, axis_index, ppermute
from meshwright.ops.reduce_body import ReduceBody
from meshwright.ops.shape import expand_dims, reshape, squeeze, transpose
from meshwright.ops.slice_pad import concatenate, slice_in_dim
from meshwright.ops.sort import sort
from meshwright.ops.top_k import top_k


class RoundingMethod(enum.Enum):
    """What :func:`round` does halfway between two integers."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def _axis(name: str, axis: int, ndim: int) -> int:
    if not -ndim <= axis < ndim:
        raise ShapeError(f"{name}: axis {axis} does not exist in an array of {ndim} dimensions")
    return axis % ndim


# --- creation and shape -----------------------------------------------------------------------------------------
def full(shape: Sequence[int], fill_value: Any, dtype: Any = None) -> Any:
    """An array of ``shape`` filled with the scalar ``fill_value``.

    Raises:
      ShapeError: ``fill_value`` is no scalar.
    """
    aval = typeof(fill_value)
    if aval.shape != ():
        raise ShapeError(f"full: fill_value must be a scalar, got {aval}; use broadcast_in_dim for an array")
    wanted = aval.dtype if dtype is None else dtypes.requested(dtype, "full")
    scalar = convert(fill_value, wanted, weak_type=dtype is None and aval.weak_type)
    return broadcast_in_dim(scalar, tuple(shape), ())


def full_like(x: Any, fill_value: Any, dtype: Any = None, shape: Sequence[int] | None = None) -> Any:
    """An array filled with ``fill_value``, of the shape and dtype of ``x`` unless others are given."""
    aval = typeof(x)
    return full(aval.shape if shape is None else shape, fill_value, aval.dtype if dtype is None else dtype)


def empty(shape: Sequence[int], dtype: Any) -> Any:
    """An array of ``shape`` whose contents are not specified (they are zeros)."""
    return full(shape, 0, dtype)


def broadcast(operand: Any, sizes: Sequence[int]) -> Any:
    """``operand`` repeated along new leading dimensions of ``sizes``."""
    shape, n = typeof(operand).shape, len(sizes)
    return broadcast_in_dim(operand, (*sizes, *shape), range(n, n + len(shape)))


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
    """``x`` with leading dimensions of size 1 until it has ``rank`` dimensions."""
    missing = rank - typeof(x).ndim
    if missing < 0:
        raise ShapeError(f"broadcast_to_rank: {typeof(x)} has more than {rank} dimensions")
    return expand_dims(x, range(missing)) if missing else x


def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Any:
    """``operand`` with dimensions ``start_dimension`` up to ``stop_dimension`` merged into one.

    Example:
      >>> lax.collapse(jnp.ones((2, 3, 4)), 1).shape
      (2, 12)
    """
    shape = typeof(operand).shape
    start, stop, _ = slice(start_dimension, stop_dimension).indices(len(shape))
    if start >= stop:
        raise ShapeError(f"collapse: no dimensions from {start_dimension} to {stop_dimension} in shape {shape}")
    return reshape(operand, (*shape[:start], math.prod(shape[start:stop]), *shape[stop:]))


def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> list[Any]:
    """Consecutive parts of ``operand`` of the given ``sizes`` along ``axis``.

    Raises:
      ShapeError: the sizes do not add up to the dimension.

    Example:
      >>> [part.tolist() for part in lax.split(jnp.arange(5), [2, 3])]
      [[0, 1], [2, 3, 4]]
    """
    shape = typeof(operand).shape
    axis = _axis("split", axis, len(shape))
    if sum(sizes) != shape[axis] or any(s < 0 for s in sizes):
        raise ShapeError(f"split: sizes {list(sizes)} must add up to {shape[axis]}, dimension {axis} of shape {shape}")
    ends = np.cumsum([0, *sizes]).tolist()
    return [slice_in_dim(operand, a, b, 1, axis) for a, b in pairwise(ends)]


def stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Arrays of one shape joined along a new dimension ``axis``."""
    if not arrays:
        raise ArgumentError("stack: expected one array or more")
    axis = _axis("stack", axis, typeof(arrays[0]).ndim + 1)
    return concatenate([expand_dims(x, [axis]) for x in arrays], axis)


def unstack(x: Any, axis: int = 0) -> tuple[Any, ...]:
    """The slices of ``x`` along ``axis``, without that dimension."""
    axis = _axis("unstack", axis, typeof(x).ndim)
    size = typeof(x).shape[axis]
    return tuple(squeeze(slice_in_dim(x, i, i + 1, 1, axis), [axis]) for i in range(size))


def tile(operand: Any, reps: Sequence[int]) -> Any:
    """``operand`` repeated ``reps[d]`` times along each dimension ``d``."""
    shape = typeof(operand).shape
    if len(reps) != len(shape):
        raise ShapeError(f"tile: reps {tuple(reps)} must have one entry for each dimension of shape {shape}")
    pairs = [n for pair in zip(reps, shape) for n in pair]
    repeated = broadcast_in_dim(operand, pairs, range(1, 2 * len(shape), 2))
    return reshape(repeated, [r * s for r, s in zip(reps, shape)])


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Any:
    """The slice at ``index`` along ``axis``; a negative index counts from the end."""
    axis = _axis("index_in_dim", axis, typeof(operand).ndim)
    size = typeof(operand).shape[axis]
    if not -size <= index < size:
        raise ShapeError(f"index_in_dim: index {index} is out of bounds for axis {axis} of size {size}")
    index %= size
    out = slice_in_dim(operand, index, index + 1, 1, axis)
    return out if keepdims else squeeze(out, [axis])


def index_take(src: Any, idxs: Sequence[Any], axes: Sequence[int]) -> Any:
    """The slices of ``src`` at the 1-D index arrays ``idxs`` along ``axes``, stacked in front."""
    if len(idxs) != len(axes):
        raise ArgumentError(f"index_take: {len(idxs)} index arrays for {len(axes)} axes; give one for each")
    ndim = typeof(src).ndim
    axes = [_axis("index_take", a, ndim) for a in axes]
    moved = transpose(src, [*axes, *(d for d in range(ndim) if d not in axes)])
    shape = typeof(moved).shape
    linear: Any = 0
    for ids, size in zip(idxs, shape):
        linear = linear * size + convert(ids, np.dtype(np.int32))
    rows = reshape(moved, (math.prod(shape[: len(axes)]), *shape[len(axes) :]))
    spread = broadcast_in_dim(linear, (typeof(linear).shape[0], *typeof(rows).shape[1:]), [0])
    return gather_along(rows, spread, 0)


# --- elementwise ------------------------------------------------------------------------------------------------
def round(x: Any, rounding_method: RoundingMethod = RoundingMethod.AWAY_FROM_ZERO) -> Any:
    """``x`` rounded to integers, halves by ``rounding_method``.

    Example:
      >>> lax.round(jnp.array([0.5, 1.5, 2.5])).tolist()
      [1.0, 2.0, 3.0]
    """
    return (round_half_away if RoundingMethod(rounding_method) is RoundingMethod.AWAY_FROM_ZERO else round_half_even)(x)


def reciprocal(x: Any) -> Any:
    """``1 / x``."""
    return div(scalar_like(1, x), x)


def select_n(which: Any, *cases: Any) -> Any:
    """``cases[which]``, elementwise; ``which`` is bool for two cases, int32 for more.

    Raises:
      DTypeError, ShapeError: ``which`` or the cases do not fit.
    """
    return SelectN().bind(which, *cases)


def bitcast_convert_type(operand: Any, new_dtype: Any) -> Any:
    """The bits of ``operand`` read as ``new_dtype``.

    To a narrower dtype a last dimension is added, to a wider one the last dimension is consumed, as in StableHLO.

    Raises:
      DTypeError: widths that do not divide each other. ShapeError: a last dimension that does not fit.
    """
    return BitcastConvert(dtypes.requested(new_dtype, "bitcast_convert_type")).bind(operand)


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """Floats rounded to a format with fewer exponent and mantissa bits, kept in their dtype."""
    return ReducePrecision(int(exponent_bits), int(mantissa_bits)).bind(operand)


def optimization_barrier(operand: Any) -> Any:
    """A tree of arrays which XLA computes before anything that uses the results, and not again."""
    leaves, tree = pytree.flatten(operand)
    return pytree.unflatten(tree, markers.optimization_barrier(leaves))


# --- products -----------------------------------------------------------------------------------------------
def dot(lhs: Any, rhs: Any, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """Vector, matrix-vector or matrix product.

    Raises:
      ShapeError: operands of other than 1 or 2 dimensions, or sizes that differ.
    """
    left, right = typeof(lhs).shape, typeof(rhs).shape
    if not 1 <= len(left) <= 2 or not 1 <= len(right) <= 2:
        raise ShapeError(f"dot: expected vectors or matrices, got shapes {left} and {right}; use dot_general")
    return dot_general(
        lhs, rhs, (((len(left) - 1,), (0,)), ((), ())), precision, preferred_element_type
    )  # fmt: skip


def batch_matmul(lhs: Any, rhs: Any, precision: Any = None) -> Any:
    """Matrix products over any number of equal leading dimensions.

    Raises:
      ShapeError: fewer than two dimensions, or leading dimensions that differ.
    """
    left, right = typeof(lhs).shape, typeof(rhs).shape
    if len(left) != len(right) or len(left) < 2:
        raise ShapeError(f"batch_matmul: expected equal ranks of two or more, got shapes {left} and {right}")
    batch = tuple(range(len(left) - 2))
    return dot_general(lhs, rhs, (((len(left) - 1,), (len(left) - 2,)), (batch, batch)), precision)


# --- reductions and order -------------------------------------------------------------------------------------
def reduce(operands: Any, init_values: Any, computation: Callable[..., Any], dimensions: Sequence[int]) -> Any:
    """A tree of arrays of one shape reduced together over ``dimensions`` by an associative ``computation``.

    ``computation(a, b)`` takes two trees of scalars and returns one; ``init_values`` is such a tree too.

    Raises:
      ShapeError, DTypeError: operands, initial values or what ``computation`` returns do not fit each other.

    Example:
      >>> x = jnp.array([3, 1, 2])
      >>> lax.reduce((x, x), (0, 1), lambda a, b: (a[0] + b[0], a[1] * b[1]), [0])
      (Array(6, dtype=int32), Array(6, dtype=int32))
    """
    arrays, tree = pytree.flatten(operands)
    inits, init_tree = pytree.flatten(init_values)
    if tree != init_tree:
        raise ArgumentError(f"reduce: operands {tree} and init_values {init_tree} must have one structure")
    avals = [typeof(x) for x in arrays]
    for value, aval in zip(inits, avals):
        if typeof(value).shape != ():
            raise ShapeError(f"reduce: init_values must be scalars, got {typeof(value)}")
        if typeof(value).dtype != aval.dtype and not typeof(value).weak_type:
            raise DTypeError(f"reduce: init_value has dtype {typeof(value).dtype}, the operand {aval.dtype}")

    def flat(*scalars: Any) -> list[Any]:
        n = len(arrays)
        out = computation(pytree.unflatten(tree, scalars[:n]), pytree.unflatten(tree, scalars[n:]))
        return [convert(x, a.dtype) for x, a in zip(pytree.flatten(out)[0], avals)]

    scalars = [ShapedArray((), a.dtype) for a in avals]
    axes = tuple(sorted(_axis("reduce", d, avals[0].ndim) for d in dimensions)) if avals else ()
    body = trace_to_jaxpr(flat, [*scalars, *scalars])
    starts = [convert(x, a.dtype) for x, a in zip(inits, avals)]
    return pytree.unflatten(tree, ReduceBody(axes, body).bind(*arrays, *starts))


def sort_key_val(keys: Any, values: Any, dimension: int = -1, is_stable: bool = True) -> tuple[Any, Any]:
    """``keys`` in ascending order along ``dimension``, and ``values`` moved along with them.

    Example:
      >>> lax.sort_key_val(jnp.array([3, 1, 2]), jnp.array([30, 10, 20]))[1].tolist()
      [10, 20, 30]
    """
    return sort((keys, values), dimension, is_stable, num_keys=1)


def approx_max_k(
    operand: Any, k: int, reduction_dimension: int = -1, recall_target: float = 0.95, **_: Any
) -> tuple[Any, Any]:
    """The ``k`` largest elements along a dimension and their positions: all of them, always."""
    last = typeof(operand).ndim - 1
    dim = _axis("approx_max_k", reduction_dimension, last + 1)
    order = [*(d for d in range(last + 1) if d != dim), dim]
    back = np.argsort(order).tolist()
    values, positions = top_k(transpose(operand, order), k)
    return transpose(values, back), transpose(positions, back)


def approx_min_k(
    operand: Any, k: int, reduction_dimension: int = -1, recall_target: float = 0.95, **_: Any
) -> tuple[Any, Any]:
    """The ``k`` smallest elements along a dimension and their positions: all of them, always."""
    values, positions = approx_max_k(neg(operand), k, reduction_dimension, recall_target)
    return neg(values), positions


# --- scatter ------------------------------------------------------------------------------------------------
def scatter_sub(operand: Any, scatter_indices: Any, updates: Any, dimension_numbers: Any, **options: Any) -> Any:
    """``operand`` with ``updates`` subtracted from its windows; as :func:`scatter_add` otherwise."""
    return scatter_add(operand, scatter_indices, neg(updates), dimension_numbers, **options)


def scatter_apply(
    operand: Any, scatter_indices: Any, func: Callable[[Any], Any], dimension_numbers: Any, *,
    update_shape: Sequence[int] = (), indices_are_sorted: bool = False, unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Any:  # fmt: skip
    """``operand`` with ``func`` applied to the elements in its windows at ``scatter_indices``.

    ``update_shape`` is that of the updates which another scatter would take. Where windows overlap, ``func`` is applied
    once for each.
    """
    scalar = ShapedArray((), typeof(operand).dtype)
    body = trace_to_jaxpr(lambda x, _: [convert(func(x), scalar.dtype)], [scalar, scalar])
    chosen = GatherScatterMode.from_any(mode)
    op = ScatterBody(dimension_numbers, indices_are_sorted, unique_indices, chosen, computation=body)
    indices = index_array(scatter_indices, "scatter_apply")
    return op.bind(operand, indices, full(update_shape, 0, scalar.dtype))[0]


# --- named axes ---------------------------------------------------------------------------------------------
def axis_size(axis_name: str | Sequence[str]) -> int:
    """The number of positions along the named axes.

    Raises:
      UnboundAxisError: an axis is not in scope.
    """
    names = (axis_name,) if isinstance(axis_name, str) else axis_name
    return math.prod(_axis_size(n) for n in names)


def pbroadcast(x: Any, axis_name: str, source: int) -> Any:
    """The ``x`` of position ``source`` along the named axis, at every position."""
    here = eq(axis_index(axis_name), np.int32(source))
    return Psum((axis_name,), (_axis_size(axis_name),)).bind(select(here, x, zeros_like(x)))


def pshuffle(x: Any, axis_name: str, perm: Sequence[int]) -> Any:
    """Position ``i`` along the named axis receives the ``x`` of position ``perm[i]``.

    Raises:
      ArgumentError: ``perm`` is no permutation of the positions.
    """
    if sorted(perm) != list(range(axis_size(axis_name))):
        raise ArgumentError(
            f"pshuffle: perm {list(perm)} must be a permutation of 0 to {axis_size(axis_name) - 1}, the positions of "
            f"axis {axis_name!r}"
        )
    return ppermute(x, axis_name, [(source, target) for target, source in enumerate(perm)])


def pswapaxes(x: Any, axis_name: str, axis: int) -> Any:
    """The named axis and dimension ``axis``, which must be as large, change places."""
    return all_to_all(x, axis_name, axis, axis)


def platform_dependent(
    *args: Any, default: Callable[..., Any] | None = None, **per_platform: Callable[..., Any]
) -> Any:
    """The function given for the platform that programs are compiled for (``cpu``), else ``default``, of ``args``.

    Raises:
      ArgumentError: neither is given.
    """
    chosen = per_platform.get("cpu", default)
    if chosen is None:
        raise ArgumentError(f"platform_dependent: no function for cpu among {sorted(per_platform)}, and no default")
    return chosen(*args)
