"""The small functions of ``meshwright.lax``: one or two ops each, with the conventions of ``jax.lax``."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.api.control_flow import by_platform
from meshwright.api.jit import jit
from meshwright.core import dtypes, pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.config import platform_named
from meshwright.core.expected import as_integer, as_integers
from meshwright.errors import ArgumentError, ArgumentTypeError, DTypeError
from meshwright.ir.state import axis_size as _axis_size
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.ops.collective.all_reduce import PsumMasked
from meshwright.ops.collective.named_axis import all_to_all, axis_index, ppermute
from meshwright.ops.control import markers
from meshwright.ops.elementwise.bitcast import bitcast
from meshwright.ops.elementwise.monoid import nothing
from meshwright.ops.elementwise.table import (
    ReducePrecision,
    SelectN,
    complex_,
    convert,
    div,
    eq,
    round_half_away,
    round_half_even,
    select,
    zeros_like,
)
from meshwright.ops.elementwise.table import conj as _conj
from meshwright.ops.elementwise.table import mul as multiply
from meshwright.ops.indexing.gather_scatter import ScatterBody
from meshwright.ops.indexing.indexed import GatherScatterMode, index_array
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, match_shape


class RoundingMethod(enum.Enum):
    """How :func:`round` rounds halfway cases."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


# --- elementwise ------------------------------------------------------------------------------------------------
def round(x: Any, rounding_method: RoundingMethod = RoundingMethod.AWAY_FROM_ZERO) -> Any:
    """Round ``x`` to integers, halfway cases by ``rounding_method``.

    Example:
      >>> lax.round(jnp.array([0.5, 1.5, 2.5])).tolist()
      [1.0, 2.0, 3.0]
    """
    return (round_half_away if RoundingMethod(rounding_method) is RoundingMethod.AWAY_FROM_ZERO else round_half_even)(x)


def mul(x: Any, y: Any, *, out_dtype: Any = None) -> Any:
    """``x * y``, elementwise; logical and for bools. With ``out_dtype`` the operands are converted to it first.

    Raises:
      DTypeError: different dtypes. ShapeError: shapes that are neither scalar nor equal except for sizes of 1.

    Example:
      >>> lax.mul(jnp.array([1, 2]), 3).tolist(), lax.mul(np.int8(100), np.int8(2), out_dtype="int32").item()
      ([3, 6], 200)
    """
    if out_dtype is None:
        return multiply(x, y)
    dtype = dtypes.requested(out_dtype, "mul")
    return multiply(convert(x, dtype), convert(y, dtype))


def reciprocal(x: Any) -> Any:
    """``1 / x`` for floats or complex numbers, elementwise.

    Raises:
      DTypeError: ``x`` holds integers or bools.

    Example:
      >>> lax.reciprocal(jnp.array([2., -4.])).tolist()
      [0.5, -0.25]
    """
    aval = typeof(x)
    if not dtypes.is_inexact(aval.dtype):
        raise DTypeError(f"reciprocal: expected floats or complex numbers, got {aval}; convert it with .astype(float)")
    return div(convert(1.0, aval.dtype, weak_type=aval.weak_type), x)


def conj(x: Any) -> Any:
    """The complex conjugate, elementwise; floats become complex numbers with imaginary part 0.

    Raises:
      DTypeError: ``x`` holds integers or bools.

    Example:
      >>> lax.conj(jnp.array([1 + 2j])).tolist(), lax.conj(jnp.array([2.0])).tolist()
      ([(1-2j)], [(2+0j)])
    """
    aval = typeof(x)
    return complex_(x, convert(zeros_like(x), aval.dtype, aval.weak_type)) if dtypes.is_float(aval.dtype) else _conj(x)


def select_n(which: Any, *cases: Any) -> Any:
    """``cases[which]``, elementwise; ``which`` is bool for two cases, int32 for more.

    The cases have one shape and dtype; ``which`` has that shape or is a scalar.

    Raises:
      DTypeError, ShapeError: ``which`` or the cases do not fit.

    Example:
      >>> lax.select_n(jnp.array([2, 0]), jnp.array([1, 2]), jnp.array([3, 4]), jnp.array([5, 6])).tolist()
      [5, 2]
    """
    return SelectN().bind(which, *cases)


def convert_element_type(operand: Any, new_dtype: Any) -> Any:
    """Convert ``operand`` to another dtype, elementwise.

    Floats are rounded to integers towards zero, nonzero numbers become true, and complex numbers lose their imaginary
    parts.

    Raises:
      DTypeError: an unknown dtype.

    Example:
      >>> lax.convert_element_type(jnp.array([1.7, -2.9, 0.]), np.int32).tolist()
      [1, -2, 0]
    """
    return convert(operand, dtypes.requested(new_dtype, "convert_element_type"))


def bitcast_convert_type(operand: Any, new_dtype: Any) -> Any:
    """The bits of ``operand`` reinterpreted as ``new_dtype``.

    A narrower dtype adds a last dimension, a wider one consumes it, as in StableHLO.

    Raises:
      DTypeError: widths that do not divide each other, or bools or complex numbers.
      ShapeError: the last dimension does not match the widths.

    Example:
      >>> lax.bitcast_convert_type(jnp.array([1., -2.]), np.uint32).tolist()
      [1065353216, 3221225472]
      >>> lax.bitcast_convert_type(jnp.array([258, 7]), np.uint8).tolist()
      [[2, 1, 0, 0], [7, 0, 0, 0]]
    """
    own, other = typeof(operand).dtype, dtypes.requested(new_dtype, "bitcast_convert_type")
    if own != other and any(dtypes.is_bool(t) or dtypes.is_complex(t) for t in (own, other)):
        raise DTypeError(
            f"bitcast_convert_type: expected numbers that are not complex, got {own} to become {other}; use x.view"
        )
    return bitcast(operand, other)


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """Round floats to a format with the given exponent and mantissa bits, keeping their dtype.

    Values too large for the format become infinite.

    Raises:
      DTypeError: ``operand`` is not of floats. ArgumentError: no exponent bits, or a negative number of bits.

    Example:
      >>> lax.reduce_precision(jnp.array([1.2, 3.3, 1e6]), 5, 2).tolist()
      [1.25, 3.5, inf]
    """
    exponent = as_integer("reduce_precision: exponent_bits", exponent_bits, least=1)
    mantissa = as_integer("reduce_precision: mantissa_bits", mantissa_bits)
    return ReducePrecision(exponent, mantissa).bind(operand)


def dtype(x: Any) -> np.dtype:
    """The dtype of an array or Python number, or of a type or name.

    Raises:
      DTypeError: an unknown dtype.

    Example:
      >>> lax.dtype(jnp.arange(3)), lax.dtype(2.5), lax.dtype("int8")
      (dtype('int32'), dtype('float32'), dtype('int8'))
    """
    if isinstance(x, (str, type, np.dtype)):
        return dtypes.requested(x, "dtype")
    return typeof(x).dtype


def shape_as_value(shape: Sequence[int]) -> Any:
    """The sizes of ``shape`` as an int32 vector.

    Example:
      >>> lax.shape_as_value((2, 5)).tolist()
      [2, 5]
    """
    return convert(np.array(tuple(shape), np.int32), np.dtype(np.int32))


def optimization_barrier(operand: Any, /) -> Any:
    """A tree of arrays, unchanged; XLA computes it before anything that uses the results, and does not recompute it.

    Example:
      >>> x, y = lax.optimization_barrier((jnp.array([1, 2]), jnp.array(3)))
      >>> x.tolist(), int(y)
      ([1, 2], 3)
    """
    leaves, tree = pytree.flatten(operand)
    return pytree.unflatten(tree, markers.optimization_barrier(leaves))


def scatter_apply(
    operand: Any, scatter_indices: Any, func: Callable[[Any], Any], dimension_numbers: Any, *,
    update_shape: Sequence[int] = (), indices_are_sorted: bool = False, unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Any:  # fmt: skip
    """Apply ``func`` to the elements of ``operand`` in the windows at ``scatter_indices``.

    ``update_shape`` is the shape that the updates of another scatter would have. Where windows overlap, ``func`` is
    applied once for each.

    Raises:
      ShapeError: dimension numbers do not fit the shapes.
      DTypeError: indices are not integers.
      ArgumentError: an unknown mode.

    Example:
      >>> elements = lax.ScatterDimensionNumbers((), (0,), (0,))
      >>> indices = jnp.array([[2], [0]])
      >>> lax.scatter_apply(jnp.array([5, 6, 7]), indices, lambda x: x * x, elements, update_shape=(2,)).tolist()
      [25, 6, 49]
    """
    scalar = ShapedArray((), typeof(operand).dtype)
    body = trace_to_jaxpr(lambda x, _: [convert(func(x), scalar.dtype)], [scalar, scalar])
    chosen = GatherScatterMode.from_any(mode)
    op = ScatterBody(dimension_numbers, indices_are_sorted, unique_indices, chosen, computation=body)
    indices = index_array(scatter_indices, "scatter_apply")
    updates = broadcast_in_dim(np.zeros((), scalar.dtype), tuple(update_shape), ())
    return op.bind(operand, indices, updates)[0]


# --- named axes ---------------------------------------------------------------------------------------------
def axis_size(axis_name: str | Sequence[str]) -> int:
    """The number of positions along the named axes.

    Raises:
      UnboundAxisError: an axis is not in scope.

    Example:
      >>> mw.vmap(lambda v: v * lax.axis_size("i"), axis_name="i")(jnp.array([1, 2, 5])).tolist()
      [3, 6, 15]
    """
    names = (axis_name,) if isinstance(axis_name, str) else axis_name
    return math.prod(_axis_size(n) for n in names)


def pbroadcast(x: Any, axis_name: str | Sequence[str], source: int) -> Any:
    """The ``x`` of position ``source`` along the named axis, or several, the first being major, at every position.

    Raises:
      UnboundAxisError: the axis is not in scope.

    Example:
      >>> mw.vmap(lambda v: lax.pbroadcast(v, "i", 1), axis_name="i")(jnp.array([4, 6, 9])).tolist()
      [6, 6, 6]
    """
    source = as_integers("pbroadcast: source", (source,))[0]
    if not 0 <= source < axis_size(axis_name):
        raise ArgumentError(
            f"pbroadcast: source {source} must be a position along {axis_name!r}, 0 to {axis_size(axis_name) - 1}"
        )
    here = eq(axis_index(axis_name), np.int32(source))
    mine = select(here, x, match_shape(nothing(typeof(x).dtype), typeof(x)))
    names = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
    return PsumMasked(names, tuple(map(_axis_size, names))).bind(mine)


def pshuffle(x: Any, axis_name: str | Sequence[str], perm: Sequence[int]) -> Any:
    """Position ``i`` along the named axis receives the ``x`` of position ``perm[i]``.

    Positions along several axes are numbered as by :func:`ppermute`.

    Raises:
      UnboundAxisError: the axis is not in scope.
      ArgumentError: ``perm`` is not a permutation of the positions.

    Example:
      >>> mw.vmap(lambda v: lax.pshuffle(v, "i", [2, 0, 1]), axis_name="i")(jnp.array([4, 6, 9])).tolist()
      [9, 4, 6]
    """
    if sorted(perm) != list(range(axis_size(axis_name))):
        raise ArgumentError(
            f"pshuffle: perm {list(perm)} must be a permutation of 0 to {axis_size(axis_name) - 1}, the positions of "
            f"axis {axis_name!r}"
        )
    return ppermute(x, axis_name, [(source, target) for target, source in enumerate(perm)])


def pswapaxes(x: Any, axis_name: str, axis: int, *, axis_index_groups: Sequence[Sequence[int]] | None = None) -> Any:
    """Swap the named axis, or each of its groups, with dimension ``axis``, which must have the same size.

    Raises:
      UnboundAxisError: the axis is not in scope.
      ShapeError: the dimension has another size.
      AxisError: it is out of range.
      ArgumentError: the groups do not contain each position once.

    Example:
      >>> mw.vmap(lambda row: lax.pswapaxes(row, "i", 0), axis_name="i")(jnp.array([[1, 2], [3, 4]])).tolist()
      [[1, 3], [2, 4]]
    """
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


def platform_dependent(
    *args: Any, default: Callable[..., Any] | None = None, **per_platform: Callable[..., Any]
) -> Any:
    """Apply to ``args`` the function given for the platform (``cpu``, ``cuda``, ``tpu``, ...), or else ``default``.

    In traced functions, that is the platform for which the program is partitioned, compiled or exported. So all
    functions are traced, and must return the same types.

    Raises:
      ArgumentError: neither is given.

    Example:
      >>> lax.platform_dependent(jnp.array([1, 2]), cpu=lambda x: x + 1, default=lambda x: x - 1).tolist()
      [2, 3]
    """
    named = {platform_named(name): fun for name, fun in per_platform.items()}
    if not named and default is not None:
        return default(*args)
    functions, platforms = list(named.values()), [(name,) for name in named]
    if default is not None:
        functions.append(default)
    return by_platform(functions, (*platforms, *([None] if default is not None else [])), args)


# --- functions as one -----------------------------------------------------------------------------------------
def composite(decomposition: Callable[..., Any], name: str, version: int = 0) -> Callable[..., Any]:
    """Name ``decomposition`` as one operation: one call in jaxprs, inlined when compiled.

    Keyword arguments of the returned function are attributes: hashable Python values, not arrays. Derivatives, batching
    and partitioning are those of the decomposition. ``version`` is for compilers that know the operation; none here do.

    Raises:
      ArgumentTypeError: ``name`` is not a nonempty string, or ``version`` not an integer.

    Example:
      >>> tangent = lax.composite(lambda x, scale: scale * jnp.sin(x) / jnp.cos(x), "my.tangent")
      >>> print(tangent(jnp.array([0., 0.5]), scale=2).round(3))
      [0.    1.093]
    """
    if not isinstance(name, str) or not name or not isinstance(version, int):
        raise ArgumentTypeError(f"composite: expected a name and an integer version, got {name!r} and {version!r}")

    def named_decomposition(*args: Any, **attributes: Any) -> Any:
        return decomposition(*args, **attributes)

    named_decomposition.__name__ = named_decomposition.__qualname__ = name
    jitted: dict[tuple[str, ...], Callable[..., Any]] = {}

    def called(*args: Any, **attributes: Any) -> Any:
        names = tuple(sorted(attributes))
        if names not in jitted:
            jitted[names] = jit(named_decomposition, static_argnames=names)
        return jitted[names](*args, **attributes)

    called.__name__ = called.__qualname__ = name
    return called
