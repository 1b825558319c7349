"""The scatters other than scatter_add, and gather and scatter as functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentTypeError, RuleError
from meshwright.ir.contract import ArrayLike, Region
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import Builder, Cotangents, Dual, Linear, Tangent, Zero
from meshwright.ir.reading import Reader, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import traced
from meshwright.ops.elementwise.monoid import MAX, MIN, PROD, Monoid, member
from meshwright.ops.elementwise.table import (
    add,
    convert,
    div,
    eq,
    materialize,
    mul,
    neg,
    or_,
    scalar_like,
    select,
    zeros_like,
)
from meshwright.ops.indexing.gather_add import Gather, ScatterAdd, ScatterBase, ScatterDimensionNumbers, read_indices
from meshwright.ops.indexing.indexed import GatherDimensionNumbers, GatherScatterMode, fill_parameter, index_array
from meshwright.ops.scalar_body import as_body_takes, check_body, one_shape, read_body
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota
from meshwright.ops.shape.rearrange import expand_dims, reshape

__all__ = [
    "Gather",
    "GatherDimensionNumbers",
    "GatherScatterMode",
    "Scatter",
    "ScatterAdd",
    "ScatterDimensionNumbers",
    "ScatterMax",
    "ScatterMin",
    "ScatterMul",
    "gather",
    "gather_along",
    "scatter",
    "scatter_add",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_sub",
]


def _second(x: Any, y: Any) -> list[Any]:
    return [y]


@dataclass(frozen=True)
class Scatter(ScatterBase):
    """Replaces windows by updates. If several updates write an element, it is unspecified which one remains."""

    name: ClassVar[str] = "scatter"
    takes_keys: ClassVar[bool] = True
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0, 2),)

    def region(self, b: Builder, scalar: ShapedArray) -> Region:
        return b.jaxpr_region(traced(_second, "second", (scalar, scalar)))

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        x, indices, updates = primals
        y = self.bind(x, indices, updates)
        if isinstance(tangents[0], Zero) and isinstance(tangents[2], Zero):
            return y, Zero(typeof(y))
        tx, tu = materialize(tangents[0]), materialize(tangents[2])
        if self.unique_indices:
            return y, self.bind(tx, indices, tu)
        # Scatter the numbers of updates to see which remained in each element, and use only those updates' tangents.
        numbers = self._numbers(indices, typeof(updates))
        stayed = self.bind(broadcast_in_dim(np.uint32(0), typeof(x).shape, ()), indices, numbers)
        mine = eq(self.read(stayed, indices, numbers), numbers)
        kept = select(eq(stayed, np.uint32(0)), tx, zeros_like(tx))
        return y, self.as_add().bind(kept, indices, select(mine, tu, zeros_like(tu)))

    def _numbers(self, indices: Any, updates: ShapedArray) -> Any:
        """Numbers 1, 2, ... for the index vectors, each repeated over its window."""
        batch = typeof(indices).shape[:-1]
        number = add(iota(np.uint32, (int(np.prod(batch)),), 0), np.uint32(1))
        places = self.dimension_numbers.gather().index_places(updates.ndim)
        return broadcast_in_dim(reshape(number, batch), updates.shape, places)

    def transpose(self, ct: Any, x: Any, indices: Any, updates: Any) -> Cotangents:
        ct_x = ct_updates = None
        if isinstance(x, Linear):
            ct_x = self.bind(ct, indices, materialize(Zero(typeof(updates))))
        if isinstance(updates, Linear):
            ct_updates = self.read(ct, indices, updates)
        return [ct_x, None, ct_updates]


@dataclass(frozen=True)
class ScatterMul(ScatterBase):
    """Multiplies windows by updates."""

    name: ClassVar[str] = "scatter_mul"
    monoid: ClassVar[Monoid] = PROD
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        x, indices, updates = primals
        tx, _, tu = tangents
        y = self.bind(x, indices, updates)
        parts = [] if isinstance(tx, Zero) else [self.bind(tx, indices, updates)]
        if not isinstance(tu, Zero):
            if not self.unique_indices:
                raise RuleError(
                    "scatter_mul: the derivative by the updates needs unique_indices=True; if several updates may go "
                    "to one element, multiply with reduce_prod over them instead"
                )
            product = mul(tu, self.read(x, indices, updates))
            parts.append(self.as_add().bind(zeros_like(x), indices, product))
        return y, (parts[0] if len(parts) == 1 else add(*parts)) if parts else Zero(typeof(y))

    def transpose(self, ct: Any, x: Any, indices: Any, updates: Any) -> Cotangents:
        return [self.bind(ct, indices, updates), None, None]


@dataclass(frozen=True)
class _ScatterExtremum(ScatterBase):
    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        x, indices, updates = primals
        y = self.bind(x, indices, updates)
        if isinstance(tangents[0], Zero) and isinstance(tangents[2], Zero):
            return y, Zero(typeof(y))
        # All values equal to the extremum of an element, updates and old value alike, share the derivative. NaN is
        # equal to nothing, so its derivative is zero, except where there is no update.
        dtype, accumulate = typeof(x).dtype, self.as_add()
        nothing, one = zeros_like(x), scalar_like(1, x)
        touched = accumulate.bind(nothing, indices, broadcast_in_dim(one, typeof(updates).shape, ()))
        old = convert(or_(eq(x, y), eq(touched, nothing)), dtype)
        new = convert(eq(self.read(y, indices, updates), updates), dtype)
        count = accumulate.bind(old, indices, new)
        tx, tu = materialize(tangents[0]), materialize(tangents[2])
        shares = accumulate.bind(mul(tx, old), indices, mul(tu, new))
        return y, div(shares, select(eq(count, nothing), broadcast_in_dim(one, typeof(x).shape, ()), count))


ScatterMin = member(_ScatterExtremum, MIN, "ScatterMin", "scatter_min", "Windows with their minimum with updates.")
ScatterMax = member(_ScatterExtremum, MAX, "ScatterMax", "scatter_max", "Windows with their maximum with updates.")


@dataclass(frozen=True)
class ScatterBody(ScatterBase):
    """Combines windows with updates by ``computation``, for several operands of equal shape with their updates.

    The order in which updates of the same element are combined is unspecified.
    """

    computation: ClosedJaxpr = field(kw_only=True)
    name: ClassVar[str] = "scatter_body"
    multiple_results: ClassVar[bool] = True
    holds_jaxprs: ClassVar[bool] = True

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        count = len(avals) // 2
        xs, indices, updates = avals[:count], avals[count], avals[count + 1 :]
        one_shape(self.name, xs)
        check_body(self.name, self.computation, xs)
        return tuple(super(ScatterBody, self).infer(x, indices, u) for x, u in zip(xs, updates))

    def region(self, b: Builder, scalar: ShapedArray) -> Region:
        return b.jaxpr_region(self.computation)


# --- functions ----------------------------------------------------------------------------------------------
def gather(
    operand: Any,
    start_indices: Any,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: str | GatherScatterMode | None = None,
    fill_value: float | int | None = None,
) -> Any:
    """Windows of ``operand`` at ``start_indices``, whose last dimension holds the index vectors.

    ``dimension_numbers`` says which operand dimensions an index vector indexes (``start_index_map``), which are dropped
    from a window of ``slice_sizes`` (``collapsed_slice_dims``), and where the others are in the result
    (``offset_dims``); see StableHLO's ``gather``. Windows not inside the operand are clamped with ``mode="clip"``, and
    otherwise filled with ``fill_value`` (default: NaN, or the least integer). ``mode="promise_in_bounds"``,
    ``unique_indices`` and ``indices_are_sorted`` are promises by the caller.

    Raises:
      ShapeError: dimension numbers or slice sizes do not fit the shapes.
      DTypeError: indices are not integers.
      ArgumentError: an unknown mode. ArgumentTypeError: a complex ``fill_value`` for real numbers.

    Example:
      >>> x = jnp.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
      >>> rows = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
      >>> lax.gather(x, jnp.array([[2], [0]]), rows, (1, 3)).tolist()
      [[7, 8, 9], [1, 2, 3]]
    """
    dtype, fill_value = typeof(operand).dtype, fill_parameter(fill_value)
    if isinstance(fill_value, complex) and not dtypes.is_complex(dtype):
        raise ArgumentTypeError(f"gather: fill_value {fill_value!r} is no {dtype}; take its real part")
    sizes = tuple(int(k) for k in slice_sizes)
    chosen = GatherScatterMode.from_any(mode)
    op = Gather(dimension_numbers, sizes, chosen, indices_are_sorted, unique_indices, fill_value)
    return op.bind(operand, index_array(start_indices, "gather"))


def _scatter_function(
    op: type[ScatterBase],
    what: str,
    result: list[int],
    name: str = "",
    of_updates: Callable[[Any], Any] = lambda updates: updates,
) -> Any:
    name = name or op.name

    def scatter(
        operand: Any,
        scatter_indices: Any,
        updates: Any,
        dimension_numbers: ScatterDimensionNumbers,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | GatherScatterMode | None = None,
    ) -> Any:
        chosen = GatherScatterMode.from_any(mode)
        bound = op(dimension_numbers, indices_are_sorted, unique_indices, chosen)
        return bound.bind(operand, index_array(scatter_indices, name), of_updates(updates))

    scatter.__name__ = scatter.__qualname__ = name
    scatter.__doc__ = f"""``operand`` with its windows at ``scatter_indices`` {what} ``updates``.

    The last dimension of ``scatter_indices`` holds the index vectors. ``dimension_numbers`` says which dimensions of
    the operand these are about (``scatter_dims_to_operand_dims``), which the updates lack
    (``inserted_window_dims``), and where the others stand in the updates (``update_window_dims``); see StableHLO's
    ``scatter``. Windows that are not inside the operand are moved inside with ``mode="clip"``, and left out without.
    ``indices_are_sorted`` and ``unique_indices`` are promises.

    Raises:
      ShapeError: dimension numbers that do not fit the shapes.
      DTypeError: indices that are not integers, or updates of another dtype.
      ArgumentError: an unknown mode.

    Example:
      >>> elements = lax.ScatterDimensionNumbers((), (0,), (0,))
      >>> lax.{name}(jnp.array([5, 6, 7]), jnp.array([[2], [0]]), jnp.array([9, 2]), elements).tolist()
      {result}
    """
    return scatter


scatter = _scatter_function(Scatter, "replaced by", [2, 6, 9])
scatter_add = _scatter_function(ScatterAdd, "plus", [7, 6, 16])
scatter_sub = _scatter_function(ScatterAdd, "less", [3, 6, -2], "scatter_sub", neg)
scatter_mul = _scatter_function(ScatterMul, "times", [10, 6, 63])
scatter_min = _scatter_function(ScatterMin, "lowered to", [2, 6, 7])
scatter_max = _scatter_function(ScatterMax, "raised to", [5, 6, 9])


def gather_along(x: Any, indices: Any, dim: int) -> Any:
    """NumPy's ``take_along_axis``: element ``i`` along ``dim`` is read from the position in ``indices``.

    Indices must be in range, and the other dimensions of both must be equal.
    """
    ndim = typeof(x).ndim
    if 0 in typeof(indices).shape:  # nothing is read, and the operand may be empty
        return broadcast_in_dim(scalar_like(0, x), typeof(indices).shape, ())
    others = tuple(d for d in range(ndim) if d != dim)
    numbers = GatherDimensionNumbers((), (dim,), (dim,), others, others)
    return Gather(numbers, (1,) * ndim, GatherScatterMode.PROMISE_IN_BOUNDS).bind(x, expand_dims(indices, [ndim]))


# --- reading ------------------------------------------------------------------------------------------------
_SCATTERS = {"add": ScatterAdd, "mul": ScatterMul, "min": ScatterMin, "max": ScatterMax}


@reads("stablehlo.scatter")
def _read_scatter(r: Reader) -> Any:
    operands = r.operands
    count = len(operands) // 2
    kind: Any = None
    if count == 1:
        kind = Scatter if _keeps_second(r) else _SCATTERS.get(r.reducer())
    n = r.attr("scatter_dimension_numbers")
    numbers = ScatterDimensionNumbers.read(
        n, "update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims", "input_batching_dims",
        "scatter_indices_batching_dims",
    )  # fmt: skip
    given = (numbers, r.attr("indices_are_sorted", False), r.attr("unique_indices", False))
    indices = read_indices(operands[count], n.get("index_vector_dim", 0))
    if kind is not None:
        return kind(*given).bind(operands[0], indices, operands[2])
    body = read_body(r)
    xs, updates = as_body_takes(body, operands[:count]), as_body_takes(body, operands[count + 1 :])
    return ScatterBody(*given, computation=body).bind(*xs, indices, *updates)


def _keeps_second(r: Reader) -> bool:
    inner = r.region().jaxpr.jaxpr
    return not inner.eqns and inner.outvars == inner.invars[1:2]
