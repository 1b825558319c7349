"""``x.at[index].set(y)`` and similar: arrays with some elements changed.

A basic index selects every element at most once, so an update reads the block, computes, and writes it back. Index
arrays scatter into the block that the basic part of the index selects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meshwright.api.control_flow import scan
from meshwright.api.placement import laid_out, made_as
from meshwright.core import dtypes
from meshwright.core.config import config
from meshwright.core.records import dataclass
from meshwright.core.source import warn
from meshwright.core.window_index import has_windows
from meshwright.errors import ArgumentError, ConcretizationTypeError, LossyWriteWarning, ShapeError
from meshwright.ir.state import set_trace
from meshwright.ir.tracing import EVAL, Tracer, typeof
from meshwright.numpy.arithmetic import add, divide, maximum, minimum, multiply, power
from meshwright.numpy.creation import asarray
from meshwright.numpy.index_plan import Block, IndexPlan, plan_index
from meshwright.numpy.indexing import (
    CLIP,
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
    check_integer,
    converted,
    is_arraylike,
    is_python_number,
    result_type,
    scalar_like,
    spread,
)
from meshwright.numpy.windows import window_of
from meshwright.ops.elementwise.table import and_, convert, neg, select
from meshwright.ops.indexing import gather_scatter as gs
from meshwright.ops.indexing.dynamic_slice import dynamic_update_slice
from meshwright.ops.indexing.gather_scatter import ScatterDimensionNumbers
from meshwright.ops.indexing.indexed import GatherScatterMode
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.ops.shape.rearrange import reshape, rev
from meshwright.ops.shape.slice_pad import pad
from meshwright.runtime.values import as_result

_DROP = GatherScatterMode.FILL_OR_DROP


def put_block(x: Any, block: Block, value: Any) -> Any:
    """``x`` with the elements of a basic index replaced by ``value``, which has the block's shape."""
    if block.whole:
        return value
    value = rev(reshape(value, block.sizes), block.reverse)
    if all(s == 1 for s in block.stride):
        return dynamic_update_slice(x, value, [np.int32(s) for s in block.start], allow_negative_indices=False)
    widths, mask = [], None
    for d, (n, start, stride, size) in enumerate(zip(block.sizes, block.start, block.stride, block.shape)):
        covered = (n - 1) * stride + 1 if n else 0
        widths.append((start, size - covered - start, stride - 1) if n else (0, size, 0))
        if n != size:
            taken = np.zeros(size, bool)
            taken[start : start + covered : stride] = True
            row = broadcast_in_dim(taken, block.shape, (d,))
            mask = row if mask is None else and_(mask, row)
    return select(mask, pad(value, scalar_like(0, value), widths), x)


class IndexUpdater:
    """``x.at``; index it, then call a method of the result.

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


@dataclass(frozen=True)
class _Options:
    """The options of updates: promises about indices, treatment of out-of-range ones, and the sharding of the
    result."""

    mode: Any = None
    indices_are_sorted: bool = False
    unique_indices: bool = False
    out_sharding: Any = None
    wrap_negative_indices: bool = True


class IndexUpdateRef:
    """``x.at[index]``. Its methods return a new array and leave ``x`` unchanged.

    Out-of-range positions are dropped by updates and clipped by :meth:`get`, unless ``mode`` is "drop" (or "fill"),
    "clip" or "promise_in_bounds". All updates take further options: the promises ``indices_are_sorted`` and
    ``unique_indices``; ``wrap_negative_indices=False``, which makes negative positions out of range; and
    ``out_sharding``, the sharding of the result. Elements and values are combined in the dtype to which they promote;
    the result has the dtype of ``x``.
    """

    __slots__ = ("array", "index")

    def __init__(self, array: Any, index: Any) -> None:
        self.array = array
        self.index = index

    def __repr__(self) -> str:
        return f"{self.array!r}.at[{self.index!r}]"

    def get(
        self, *, mode: Any = None, fill_value: Any = None, indices_are_sorted: bool = False,
        unique_indices: bool = False, out_sharding: Any = None, wrap_negative_indices: bool = True,
    ) -> Any:  # fmt: skip
        """``x[index]``; ``mode="fill"`` returns ``fill_value`` (default NaN or the least integer) where out of
        range."""
        chosen = read_mode(mode, "at.get")
        options = fill_value, indices_are_sorted, unique_indices
        array, index = self.array, self.index
        if has_windows(index):
            window = window_of(asarray(array), index, wrap_negative_indices)
            array, index = window.read(chosen, fill_value), window.rest
        plan = plan_index(typeof(array).shape, index, wrap_negative_indices)
        return made_as(out_sharding, lambda: read(array, plan, chosen, *options))

    def _update(self, name: str, values: Any, how: Any, options: Mapping[str, Any]) -> Any:
        to = _Options(**options)
        x = asarray(self.array)
        aval = typeof(x)
        dtype = aval.dtype
        value = _value(x, values, name)
        # As in JAX, elements are combined in the dtype to which both promote. Values to set take the dtype of ``x``,
        # but the option for strict promotion applies to them too.
        strict = config.numpy_dtype_promotion == "strict"
        common = result_type(x, value) if strict or how is not _SET else dtype
        wide = dtype if how is _SET else common
        given = typeof(value)
        if dtypes.promote([(dtype, False), (given.dtype, given.weak_type)])[0] != dtype:
            warn(
                f"at.{name}: values of {given.dtype} are written into an array of {dtype}, which does not hold them "
                f"all; convert them first, with .astype({str(dtype)!r}), if that is meant", LossyWriteWarning
            )  # fmt: skip
        operands = convert(x, wide), converted(value, wide), how, to
        return made_as(
            to.out_sharding,
            lambda: as_result(convert(self._combined(name, *operands), dtype, aval.weak_type)),
        )

    def _combined(self, name: str, x: Any, value: Any, how: Any, to: _Options) -> Any:
        combine, _ = how
        mask = _traced_mask(self.index)
        if mask is not None:
            return _masked(x, mask, value, combine, name)
        mode = _DROP if to.mode is None else read_mode(to.mode, f"at.{name}")
        if has_windows(self.index):
            window = window_of(x, self.index, to.wrap_negative_indices)
            part = window.read()
            return window.written(IndexUpdateRef(part, window.rest)._combined(name, part, value, how, to), mode)
        shape = typeof(x).shape
        plan = plan_index(shape, self.index, to.wrap_negative_indices)
        x = reshape(x, plan.block.shape)
        value = _fitted(value, plan.out_shape, name)
        if not plan.indexed:
            new = (
                value
                if combine is None
                else combine(read(x, plan, CLIP, None, False, False), spread(value, plan.out_shape))
            )
            new = spread(converted(new, typeof(x).dtype), plan.out_shape)
            return reshape(put_block(x, plan.block, reshape(new, plan.block.kept)), shape)
        inner = read_block(x, plan.block)
        update = reshape(spread(value, plan.out_shape), plan.gathered)
        done = _scatter(inner, plan, update, how, mode, to.indices_are_sorted, to.unique_indices)
        return reshape(put_block(x, plan.block, done), shape)

    def set(self, values: Any, **options: Any) -> Any:
        """``x`` with ``x[index]`` replaced by ``values``, which broadcast to its shape."""
        return self._update("set", values, _SET, options)

    def add(self, values: Any, **options: Any) -> Any:
        """``x`` with ``values`` added to ``x[index]``; repeated positions accumulate."""
        return self._update("add", values, _ADD, options)

    def subtract(self, values: Any, **options: Any) -> Any:
        """``x`` with ``values`` subtracted from ``x[index]``."""
        given = _value(self.array, values, "subtract")
        return self._update("subtract", neg(converted(given, result_type(self.array, given))), _ADD, options)

    sub = subtract

    def multiply(self, values: Any, **options: Any) -> Any:
        """``x`` with ``x[index]`` multiplied by ``values``."""
        return self._update("multiply", values, _MUL, options)

    mul = multiply

    def min(self, values: Any, **options: Any) -> Any:
        """``x`` with the minimum of ``x[index]`` and ``values``."""
        return self._update("min", values, _MIN, options)

    def max(self, values: Any, **options: Any) -> Any:
        """``x`` with the maximum of ``x[index]`` and ``values``."""
        return self._update("max", values, _MAX, options)

    def divide(self, values: Any, **options: Any) -> Any:
        """``x`` with ``x[index]`` divided by ``values``."""
        return divide(self.array, type(self)(_ones(self.array), self.index).multiply(values, **options))

    def power(self, values: Any, **options: Any) -> Any:
        """``x`` with ``x[index]`` raised to the power ``values``."""
        return power(self.array, type(self)(_ones(self.array), self.index).multiply(values, **options))

    def apply(self, function: Callable[[Any], Any], **options: Any) -> Any:
        """``x`` with ``function`` applied to ``x[index]``, repeatedly at repeated positions.

        ``function`` is elementwise. Unless ``unique_indices`` promises that no position repeats, positions in index
        arrays that are traced or do repeat are updated one after the other.
        """
        if not typeof(self.array).size:
            return self.set(0, **options)
        to = _Options(**options)
        if has_windows(self.index):
            window = window_of(asarray(self.array), self.index, to.wrap_negative_indices)
            changed = IndexUpdateRef(window.read(), window.rest).apply(function, **options)
            return window.written(changed, _DROP if to.mode is None else read_mode(to.mode, "at.apply"))
        places = None if to.unique_indices else _repeated(self.array, self.index, to)
        if places is not None:
            return laid_out(_one_by_one(self.array, places, function), to.out_sharding)
        current = self.get(mode=to.mode, wrap_negative_indices=to.wrap_negative_indices)
        return self.set(function(current), **options)


def _repeated(x: Any, index: Any, to: _Options) -> Any:
    """The flat positions that an index selects, in order, the array's size for none; None if no position repeats."""
    if _traced_mask(index) is not None:
        return None
    plan = plan_index(typeof(x).shape, index, to.wrap_negative_indices)
    if plan.only_scalars or not plan.indexed:
        return None
    if any(isinstance(i, Tracer) for i in (index if isinstance(index, tuple) else (index,))):
        return _places(x, index, to)
    with set_trace(EVAL):  # a constant even inside jit
        places = np.asarray(_places(x, index, to))
    inside = places[places < typeof(x).size]
    return places if len(np.unique(inside)) < len(inside) else None


def _places(x: Any, index: Any, to: _Options) -> Any:
    size = typeof(x).size
    numbers = asarray(np.arange(size, dtype=np.int32).reshape(typeof(x).shape))
    mode = "fill" if to.mode in (None, "drop") else to.mode
    places = IndexUpdater(numbers)[index].get(
        mode=mode, fill_value=size, wrap_negative_indices=to.wrap_negative_indices
    )
    return reshape(places, (typeof(places).size,))


def _one_by_one(x: Any, places: Any, function: Callable[[Any], Any]) -> Any:
    """Apply ``function`` at each of the flat positions in turn; those past the end are dropped."""
    shape = typeof(x).shape

    def step(flat: Any, place: Any) -> tuple[Any, None]:
        element = converted(function(flat[place]), typeof(flat).dtype)
        return IndexUpdater(flat)[place].set(element, mode="drop"), None

    flat, _ = scan(step, reshape(asarray(x), (int(np.prod(shape)),)), places)
    return reshape(flat, shape)


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
    """``values`` as an array, or a Python number in the dtype of ``x`` if that can represent its kind."""
    values = values if is_arraylike(values) else asarray(values)
    dtype = typeof(x).dtype
    if dtypes.is_complex(aval_of(values, f"at.{name}").dtype) and not dtypes.is_complex(dtype):
        raise ArgumentError(f"at.{name}: complex values cannot be written into an array of {dtype}; take .real")
    if not is_python_number(values):
        return values
    kind = result_type(x, values)
    if dtypes.is_integer(kind):
        check_integer(values, kind, f"at.{name}")
    return np.asarray(values).astype(kind)


def _fitted(value: Any, shape: tuple[int, ...], name: str) -> Any:
    """``value`` without leading dimensions of size 1 that ``x[index]`` does not have.

    Raises:
      ShapeError: ``value`` does not broadcast to ``shape``.
    """
    own = typeof(value).shape
    extra = max(len(own) - len(shape), 0)
    if set(own[:extra]) <= {1}:
        value = reshape(value, own[extra:]) if extra else value
        if broadcast_shapes(own[extra:], shape, name=f"at.{name}") == shape:
            return value
    raise ShapeError(f"at.{name}: values of shape {own} do not broadcast to {shape}, the shape of x[index]")


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
    unique = unique or plan.only_scalars
    dims = ScatterDimensionNumbers(numbers.offset_dims, numbers.collapsed_slice_dims, numbers.start_index_map)
    return scatter(
        x, index_vectors(plan, shape), update, dims, mode=mode, indices_are_sorted=sorted_, unique_indices=unique
    )


def _traced_mask(index: Any) -> Any:
    """The traced mask that makes up the whole index, or None."""
    if isinstance(index, tuple) and len(index) == 1:
        (index,) = index
    traced = isinstance(index, Tracer) and dtypes.is_bool(index.aval.dtype) and index.concrete() is None
    return index if traced else None


def _masked(x: Any, mask: Any, value: Any, combine: Any, name: str) -> Any:
    """Update the elements where a traced mask is true, with ``where``; only possible for scalar values."""
    shape, flags = typeof(x).shape, typeof(mask).shape
    if typeof(value).shape != ():
        raise ConcretizationTypeError(
            f"at[mask].{name} with a traced mask ({mask.aval}) needs a scalar value, got shape {typeof(value).shape}: "
            "the number of true elements is not known while tracing; use where(mask, values, x)"
        )
    if flags != shape[: len(flags)]:
        raise ShapeError(f"at[mask].{name}: a mask of shape {flags} does not fit an array of shape {shape}")
    wide = broadcast_in_dim(mask, shape, range(len(flags)))
    return where(wide, value if combine is None else combine(x, value), x)
