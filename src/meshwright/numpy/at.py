"""``x.at[index].set(y)`` and its kin: arrays with some elements changed.

A basic index selects every element at most once, so that an update reads the block, computes, and puts it back. Index
arrays scatter, into the block that the basic part of the index selects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.errors import ArgumentError, ConcretizationError, ShapeError
from meshwright.ir.tracing import Tracer, typeof
from meshwright.numpy.arithmetic import add, divide, maximum, minimum, multiply, power
from meshwright.numpy.creation import asarray
from meshwright.numpy.index_plan import Block, IndexPlan, plan_index
from meshwright.numpy.indexing import (
    gather_numbers,
    index_vectors,
    read,
    read_block,
    read_mode,
    scalar_starts,
)
from meshwright.numpy.logic import where
from meshwright.numpy.promotion import (
    aval_of,
    broadcast_shapes,
    converted,
    is_arraylike,
    is_python_number,
    scalar_like,
    spread,
)
from meshwright.ops import gather_scatter as gs
from meshwright.ops.broadcast_reduce import broadcast_in_dim
from meshwright.ops.dynamic_slice import dynamic_update_slice
from meshwright.ops.elementwise import and_, neg, select
from meshwright.ops.gather_scatter import ScatterDimensionNumbers
from meshwright.ops.indexed import GatherScatterMode
from meshwright.ops.shape import reshape, rev
from meshwright.ops.slice_pad import pad

_DROP = GatherScatterMode.FILL_OR_DROP


def put_block(x: Any, block: Block, value: Any) -> Any:
    """``x`` with a basic index replaced by ``value``, which has the block's shape."""
    if block.whole:
        return value
    value = rev(reshape(value, block.sizes), block.reverse)
    if all(s == 1 for s in block.stride):
        return dynamic_update_slice(x, value, [np.int32(s) for s in block.start], allow_negative_indices=False)
    config, mask = [], None
    for d, (n, start, stride, size) in enumerate(zip(block.sizes, block.start, block.stride, block.shape)):
        covered = (n - 1) * stride + 1 if n else 0
        config.append((start, size - covered - start, stride - 1) if n else (0, size, 0))
        if n != size:
            taken = np.zeros(size, bool)
            taken[start : start + covered : stride] = True
            row = broadcast_in_dim(taken, block.shape, (d,))
            mask = row if mask is None else and_(mask, row)
    return select(mask, pad(value, scalar_like(0, value), config), x)


class IndexUpdater:
    """``x.at``: index it, then say what to do with the elements.

    >>> from meshwright.numpy import zeros
    >>> zeros(3).at[1].set(5).tolist()
    [0.0, 5.0, 0.0]
    """

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getitem__(self, index: Any) -> IndexUpdateRef:
        return IndexUpdateRef(self.array, index)

    def __repr__(self) -> str:
        return f"{self.array!r}.at"


class IndexUpdateRef:
    """``x.at[index]``. Its methods return a new array; ``x`` stays as it is.

    Positions out of range are dropped by updates and clipped by :meth:`get`, unless ``mode`` says otherwise: "drop"
    (or "fill"), "clip", "promise_in_bounds". ``indices_are_sorted`` and ``unique_indices`` are promises.
    """

    __slots__ = ("array", "index")

    def __init__(self, array: Any, index: Any) -> None:
        self.array = array
        self.index = index

    def __repr__(self) -> str:
        return f"{self.array!r}.at[{self.index!r}]"

    def get(
        self,
        *,
        mode: Any = None,
        fill_value: Any = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
    ) -> Any:
        """``x[index]``; ``mode="fill"`` gives ``fill_value`` (NaN, or the least integer) for positions out of range."""
        plan = plan_index(typeof(self.array).shape, self.index)
        fill = fill_value.item() if isinstance(fill_value, (np.generic, np.ndarray)) else fill_value
        return read(self.array, plan, read_mode(mode, "at.get"), fill, indices_are_sorted, unique_indices)

    def _update(self, name: str, values: Any, how: Any, mode: Any, sorted_: bool, unique: bool) -> Any:
        combine, _ = how
        x = self.array
        value = _value(x, values, name)
        mask = _traced_mask(self.index)
        if mask is not None:
            return _masked(x, mask, value, combine, name)
        plan = plan_index(typeof(x).shape, self.index)
        shape = typeof(x).shape
        x = reshape(x, plan.block.shape)
        if broadcast_shapes(typeof(value).shape, plan.out_shape, name=f"at.{name}") != plan.out_shape:
            raise ShapeError(
                f"at.{name}: values of shape {typeof(value).shape} do not broadcast to {plan.out_shape}, the shape of "
                "x[index]"
            )
        if not plan.indexed:
            new = (
                value if combine is None else combine(read(x, plan, GatherScatterMode.CLIP, None, False, False), value)
            )
            new = spread(converted(new, typeof(x).dtype), plan.out_shape)
            return reshape(put_block(x, plan.block, reshape(new, plan.block.kept)), shape)
        inner = read_block(x, plan.block)
        update = reshape(spread(value, plan.out_shape), plan.gathered)
        chosen = _DROP if mode is None else read_mode(mode, f"at.{name}")
        done = _scatter(inner, plan, update, how, chosen, sorted_, unique)
        return reshape(put_block(x, plan.block, done), shape)

    def set(
        self, values: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> Any:
        """``x`` with ``x[index]`` replaced by ``values``, which broadcast to its shape."""
        return self._update("set", values, _SET, mode, indices_are_sorted, unique_indices)

    def add(
        self, values: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> Any:
        """``x`` with ``values`` added to ``x[index]``; for a position that comes twice, both."""
        return self._update("add", values, _ADD, mode, indices_are_sorted, unique_indices)

    def subtract(
        self, values: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> Any:
        """``x`` with ``values`` subtracted from ``x[index]``."""
        return self._update("subtract", neg(_value(self.array, values, "subtract")), _ADD, mode,
                            indices_are_sorted, unique_indices)  # fmt: skip

    sub = subtract

    def multiply(
        self, values: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> Any:
        """``x`` with ``x[index]`` multiplied by ``values``."""
        return self._update("multiply", values, _MUL, mode, indices_are_sorted, unique_indices)

    mul = multiply

    def min(
        self, values: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> Any:
        """``x`` with the smaller of ``x[index]`` and ``values``."""
        return self._update("min", values, _MIN, mode, indices_are_sorted, unique_indices)

    def max(
        self, values: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> Any:
        """``x`` with the larger of ``x[index]`` and ``values``."""
        return self._update("max", values, _MAX, mode, indices_are_sorted, unique_indices)

    def divide(self, values: Any, **options: Any) -> Any:
        """``x`` with ``x[index]`` divided by ``values``."""
        return divide(self.array, type(self)(_ones(self.array), self.index).multiply(values, **options))

    def power(self, values: Any, **options: Any) -> Any:
        """``x`` with ``x[index]`` to the power ``values``."""
        return power(self.array, type(self)(_ones(self.array), self.index).multiply(values, **options))

    def apply(self, function: Callable[[Any], Any], **options: Any) -> Any:
        """``x`` with ``function`` applied to ``x[index]``, once for each element."""
        return self.set(function(self.get()), **options)


def _ones(x: Any) -> Any:
    """Ones of the shape and dtype of ``x``."""
    return broadcast_in_dim(scalar_like(1, x), typeof(x).shape, ()) if typeof(x).shape else asarray(scalar_like(1, x))


#: (function of the element and the value, the scatter)
_SET = (None, gs.scatter)
_ADD = (add, gs.scatter_add)
_MUL = (multiply, gs.scatter_mul)
_MIN = (minimum, gs.scatter_min)
_MAX = (maximum, gs.scatter_max)


def _value(x: Any, values: Any, name: str) -> Any:
    """``values`` in the dtype of ``x``."""
    values = values if is_arraylike(values) else asarray(values)
    dtype = typeof(x).dtype
    if dtypes.is_complex(aval_of(values, f"at.{name}").dtype) and not dtypes.is_complex(dtype):
        raise ArgumentError(f"at.{name}: complex values cannot be written into an array of {dtype}; take .real")
    return converted(np.asarray(values) if is_python_number(values) else values, dtype)


def _scatter(
    x: Any, plan: IndexPlan, update: Any, how: Any, mode: GatherScatterMode, sorted_: bool, unique: bool
) -> Any:
    """Scatter into the block of a plan."""
    combine, scatter = how
    shape = typeof(x).shape
    if plan.only_scalars and mode is not _DROP and combine is None:
        sizes = [1 if d in plan.indexed else n for d, n in enumerate(shape)]
        return dynamic_update_slice(x, reshape(update, sizes), scalar_starts(plan, shape), allow_negative_indices=False)
    numbers, _ = gather_numbers(plan, shape)
    dims = ScatterDimensionNumbers(numbers.offset_dims, numbers.collapsed_slice_dims, numbers.start_index_map)
    return scatter(
        x, index_vectors(plan, shape), update, dims, mode=mode, indices_are_sorted=sorted_, unique_indices=unique
    )


def _traced_mask(index: Any) -> Any:
    """A traced mask that is the whole index, or None."""
    if isinstance(index, tuple) and len(index) == 1:
        (index,) = index
    traced = isinstance(index, Tracer) and dtypes.is_bool(index.aval.dtype) and index.concrete() is None
    return index if traced else None


def _masked(x: Any, mask: Any, value: Any, combine: Any, name: str) -> Any:
    """An update of the elements where a traced mask holds: possible for scalar values, as ``where``."""
    shape, flags = typeof(x).shape, typeof(mask).shape
    if typeof(value).shape != ():
        raise ConcretizationError(
            f"at[mask].{name} with a traced mask ({mask.aval}) needs a scalar value, got shape {typeof(value).shape}: "
            "the number of true elements is not known while tracing; use where(mask, values, x)"
        )
    if flags != shape[: len(flags)]:
        raise ShapeError(f"at[mask].{name}: a mask of shape {flags} does not fit an array of shape {shape}")
    wide = broadcast_in_dim(mask, shape, range(len(flags)))
    return where(wide, value if combine is None else combine(x, value), x)
