"""Windows at dynamic positions: the common part of gather and scatter.

Dimension numbers are StableHLO's (https://openxla.org/stablehlo/spec#gather). The last dimension of the indices holds
the index vector. All helpers here take dimension numbers of a gather; those of a scatter correspond to the gather that
reads the windows it writes.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import ml_dtypes
import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.ir.contract import Localizer
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.clamp import clamp
from meshwright.ops.elementwise.monoid import nothing
from meshwright.ops.elementwise.table import and_, convert, ge, le, mul, not_, scalar_like, sub
from meshwright.ops.reduce.reductions import reduce_and
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.ops.shape.rearrange import above, reshape
from meshwright.ops.shape.slice_pad import concatenate, pad
from meshwright.sharding.rule import PARALLEL, REDUCTION

Dims = tuple[int, ...]


class GatherScatterMode(enum.Enum):
    """How windows that are not inside the array are treated."""

    #: clamp their positions
    CLIP = "clip"
    #: gather: their elements are a fill value; scatter: they are dropped
    FILL_OR_DROP = "fill"
    #: the caller promises that there are none
    PROMISE_IN_BOUNDS = "promise_in_bounds"

    @staticmethod
    def from_any(mode: str | GatherScatterMode | None) -> GatherScatterMode:
        """The mode for a user's ``mode=`` argument; None is "fill" or "drop".

        Raises:
          ArgumentError: an unknown mode.
        """
        if isinstance(mode, GatherScatterMode):
            return mode
        if mode is None or mode == "drop":
            return GatherScatterMode.FILL_OR_DROP
        try:
            return GatherScatterMode(mode)
        except ValueError:
            raise ArgumentError(
                f"mode of gather or scatter must be 'clip', 'fill', 'drop' or 'promise_in_bounds', got {mode!r}"
            ) from None


class _Signed:
    """A number with a part that is -0.0, which Python says is equal to 0.0: ops that differ in it are kept apart."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and repr(other) == repr(self)

    def __hash__(self) -> int:
        return hash(repr(self))


class SignedFloat(_Signed, float):
    """A float that is -0.0."""


class SignedComplex(_Signed, complex):
    """A complex number of which a part is -0.0."""


def fill_parameter(value: Any) -> Any:
    """The fill value of a gather as a Python number, such that those are equal that fill with the same; None for NaN,
    the default."""
    value = value.item() if hasattr(value, "item") else value
    if value is None or value != value:
        return None
    if isinstance(value, complex):
        return SignedComplex(value) if _is_negative_zero(value.real) or _is_negative_zero(value.imag) else value
    return SignedFloat(value) if isinstance(value, float) and _is_negative_zero(value) else value


def _is_negative_zero(x: float) -> bool:
    return x == 0 and math.copysign(1, x) < 0


class DimensionNumbers:
    """Base class that prints only nonempty fields."""

    @classmethod
    def read(cls, attribute: Mapping[str, Any], *names: str) -> Self:
        """Read from StableHLO's attribute, given its names of the fields; missing ones are empty.

        The last field are dimensions of the indices. They are counted without the index vector, which may have any
        place there and has the last one here.
        """
        fields, vector = [attribute.get(name, ()) for name in names], attribute.get("index_vector_dim", 0)
        fields[-1] = tuple(d - (d > vector) for d in fields[-1])
        return cls(*fields)

    def __str__(self) -> str:
        return f"({', '.join(f'{k}={v}' for k, v in vars(self).items() if v != ())})"


@dataclass(frozen=True)
class GatherDimensionNumbers(DimensionNumbers):
    """How the dimensions of operand, indices and result of a gather correspond.

    ``offset_dims`` are the result dimensions within a window; the others run over the indices. ``collapsed_slice_dims``
    are operand dimensions in which windows have size 1 and which the result lacks. Component ``i`` of an index vector
    is a position in operand dimension ``start_index_map[i]``. Operand dimension ``operand_batching_dims[i]`` is a batch
    dimension together with dimension ``start_indices_batching_dims[i]`` of the indices.
    """

    offset_dims: Dims
    collapsed_slice_dims: Dims
    start_index_map: Dims
    operand_batching_dims: Dims = ()
    start_indices_batching_dims: Dims = ()

    def window_dims(self, operand_ndim: int) -> Dims:
        """The operand dimensions that correspond to ``offset_dims``, in order."""
        gone = {*self.collapsed_slice_dims, *self.operand_batching_dims}
        return tuple(d for d in range(operand_ndim) if d not in gone)

    def index_places(self, result_ndim: int) -> Dims:
        """The result dimensions that run over the indices, in order."""
        return tuple(d for d in range(result_ndim) if d not in self.offset_dims)

    def limits(self, shape: Sequence[int], slice_sizes: Sequence[int]) -> list[int]:
        """The largest position inside the array, for each component of an index vector."""
        return [shape[d] - slice_sizes[d] for d in self.start_index_map]

    def with_operand_dim(self, dim: int) -> GatherDimensionNumbers:
        """The numbers for an operand with an additional dimension at ``dim``."""
        collapsed, mapped, batching = (
            tuple(above(d, dim) for d in dims)
            for dims in (self.collapsed_slice_dims, self.start_index_map, self.operand_batching_dims)
        )
        return GatherDimensionNumbers(self.offset_dims, collapsed, mapped, batching, self.start_indices_batching_dims)

    def with_offset_dim(self, dim: int) -> GatherDimensionNumbers:
        """The numbers for a result with an additional dimension at ``dim``, within windows."""
        offset = tuple(sorted((dim, *(above(d, dim) for d in self.offset_dims))))
        return GatherDimensionNumbers(offset, *list(vars(self).values())[1:])

    def with_index_dim(self, dim: int, place: int) -> GatherDimensionNumbers:
        """The numbers for indices with an additional dimension at ``dim``, at ``place`` in the result."""
        return GatherDimensionNumbers(
            tuple(above(d, place) for d in self.offset_dims),
            self.collapsed_slice_dims,
            self.start_index_map,
            self.operand_batching_dims,
            tuple(above(d, dim) for d in self.start_indices_batching_dims),
        )

    def with_batching_dims(self, operand_dim: int, indices_dim: int) -> GatherDimensionNumbers:
        """The numbers with an additional pair of batching dimensions."""
        pairs = [*zip(self.operand_batching_dims, self.start_indices_batching_dims), (operand_dim, indices_dim)]
        mine, theirs = zip(*sorted(pairs))
        return GatherDimensionNumbers(
            self.offset_dims, self.collapsed_slice_dims, self.start_index_map, tuple(mine), tuple(theirs)
        )


# --- checks -------------------------------------------------------------------------------------------------
def _distinct(dims: Sequence[int], ndim: int, ordered: bool = True) -> bool:
    return (
        all(0 <= d < ndim for d in dims) and len(set(dims)) == len(dims) and (not ordered or list(dims) == sorted(dims))
    )


def check_numbers(
    name: str, n: GatherDimensionNumbers, operand: ShapedArray, indices: ShapedArray, slice_sizes: Sequence[int]
) -> tuple[int, ...]:
    """Raise unless the dimension numbers fit; returns the shape of the result (or the updates)."""

    def require(holds: bool, why: str) -> None:
        if not holds:
            raise ShapeError(
                f"{name}: operand {operand}, indices {indices}, slice_sizes {tuple(slice_sizes)} and dimension numbers "
                f"{n} do not fit: {why}"
            )

    if not dtypes.is_integer(indices.dtype):
        raise DTypeError(f"{name}: indices must be integers, got {indices}; convert them with .astype(int)")
    require(indices.ndim > 0, "the last dimension of the indices must hold the index vector")
    batch = indices.shape[:-1]
    require(
        len(n.start_index_map) == indices.shape[-1] and _distinct(n.start_index_map, operand.ndim, ordered=False),
        f"index vectors have {indices.shape[-1]} components, each needs its own operand dimension",
    )
    gone = (*n.collapsed_slice_dims, *n.operand_batching_dims)
    require(
        _distinct(n.collapsed_slice_dims, operand.ndim)
        and _distinct(n.operand_batching_dims, operand.ndim)
        and len(set(gone)) == len(gone),
        "collapsed and batching dimensions must be different operand dimensions, in increasing order",
    )
    require(
        len(n.operand_batching_dims) == len(n.start_indices_batching_dims)
        and _distinct(n.start_indices_batching_dims, len(batch), ordered=False)
        and all(operand.shape[a] == batch[b] for a, b in zip(n.operand_batching_dims, n.start_indices_batching_dims)),
        "batching dimensions of operand and indices must pair up with equal sizes",
    )
    require(not set(n.operand_batching_dims) & set(n.start_index_map), "a batching dimension cannot be indexed")
    require(
        len(slice_sizes) == operand.ndim and all(0 <= k <= s for k, s in zip(slice_sizes, operand.shape)),
        "windows must lie inside the operand",
    )
    require(all(slice_sizes[d] <= 1 for d in gone), "windows must have size 1 in collapsed and batching dimensions")
    window = [slice_sizes[d] for d in n.window_dims(operand.ndim)]
    ndim = len(batch) + len(window)
    require(
        len(n.offset_dims) == len(window) and _distinct(n.offset_dims, ndim),
        f"{len(window)} operand dimensions stay in windows, offset_dims must name as many result dimensions in order",
    )
    sizes, rest = dict(zip(n.offset_dims, window)), iter(batch)
    return tuple(sizes[d] if d in sizes else next(rest) for d in range(ndim))


def index_array(indices: Any, name: str) -> Any:
    """Indices in a dtype of at least 32 bits.

    Raises:
      DTypeError: not integers.
    """
    dtype = typeof(indices).dtype
    if not dtypes.is_integer(dtype):
        raise DTypeError(f"{name}: indices must be integers, got {typeof(indices)}; convert them with .astype(int)")
    return convert(indices, dtypes.int32) if dtypes.bit_width(dtype) < 32 else convert(indices, dtype)


# --- positions ----------------------------------------------------------------------------------------------
def _limits_like(indices: Any, limits: Sequence[int]) -> Any:
    """The limits, broadcast to index vectors, or as a scalar if they are equal."""
    aval = typeof(indices)
    top = int(ml_dtypes.iinfo(aval.dtype).max)
    bounded = np.array([min(v, top) for v in limits], aval.dtype)
    if len(set(limits)) == 1:
        return bounded[0]
    return broadcast_in_dim(bounded, aval.shape, (aval.ndim - 1,))


def clamp_indices(indices: Any, limits: Sequence[int]) -> Any:
    """Clamp index vectors to ``[0, limits]``."""
    return clamp(scalar_like(0, indices), indices, _limits_like(indices, limits))


def in_bounds(indices: Any, limits: Sequence[int]) -> Any:
    """Whether each index vector is inside ``[0, limits]``."""
    inside = and_(ge(indices, scalar_like(0, indices)), le(indices, _limits_like(indices, limits)))
    return reduce_and(inside, (typeof(indices).ndim - 1,))


def outside(indices: Any, limits: Sequence[int]) -> Any:
    """Whether any index vector is not inside ``[0, limits]``."""
    inside = in_bounds(indices, limits)
    return not_(reduce_and(inside, range(typeof(inside).ndim)))


def beside(numbers: GatherDimensionNumbers, operand_ndim: int, result_ndim: int, dim: int) -> int:
    """The position in the result of a dimension that is at ``dim`` of the operand and runs within windows.

    It keeps its neighbours as far as the order of window dimensions allows.
    """
    window = numbers.window_dims(operand_ndim)
    places = numbers.index_places(result_ndim)
    target = dict(zip(window, numbers.offset_dims))
    target.update((d, places[i]) for d, i in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims))
    following = [target[d] for d in range(dim, operand_ndim) if d in target]
    before = [target[d] + 1 for d in range(dim) if d in target]
    out = following[0] if following else before[-1] if before else 0
    low, high = offset_range(numbers, operand_ndim, result_ndim, dim)
    return min(max(out, low), high)


def offset_range(numbers: GatherDimensionNumbers, operand_ndim: int, result_ndim: int, dim: int) -> tuple[int, int]:
    """The range of positions in the result for an additional window dimension at ``dim`` of the operand."""
    k = sum(d < dim for d in numbers.window_dims(operand_ndim))
    offset = numbers.offset_dims
    return (offset[k - 1] + 1 if k else 0), (offset[k] if k < len(offset) else result_ndim)


def index_range(numbers: GatherDimensionNumbers, result_ndim: int, dim: int) -> tuple[int, int]:
    """The range of positions in the result for the dimension of an additional dimension ``dim`` of the indices."""
    places = numbers.index_places(result_ndim)
    return (places[dim - 1] + 1 if dim else 0), (places[dim] if dim < len(places) else result_ndim)


# --- sharding -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class IndexedFactors:
    """Factor names for the dimensions of operand, indices and result (or updates), with sizes and kinds."""

    operand: list[str | None]
    indices: list[str | None]
    result: list[str | None]
    sizes: dict[str, int]
    kinds: dict[str, str]

    @property
    def indexed(self) -> set[str]:
        """The factors whose elements are found by index."""
        return {name for name in self.kinds if name.startswith("x")}


def is_indexed(n: GatherDimensionNumbers, shape: Sequence[int], slice_sizes: Sequence[int], dim: int) -> bool:
    """Whether windows are at different positions along an operand dimension."""
    return dim in n.start_index_map and (slice_sizes[dim] < shape[dim] or dim in n.collapsed_slice_dims)


def indexed_factors(
    n: GatherDimensionNumbers, operand: ShapedArray, indices: ShapedArray, slice_sizes: Sequence[int], result_ndim: int
) -> IndexedFactors:
    """Factors: ``b`` batching, ``o`` whole in windows, ``x`` indexed (a reduction), ``i`` over the indices
    (parallel)."""
    f = IndexedFactors([None] * operand.ndim, [None] * indices.ndim, [None] * result_ndim, {}, {})
    places = n.index_places(result_ndim)

    def name(text: str, size: int, kind: str = PARALLEL) -> str:
        f.sizes[text] = size
        f.kinds[text] = kind
        return text

    for i, (a, b) in enumerate(zip(n.operand_batching_dims, n.start_indices_batching_dims)):
        f.operand[a] = f.indices[b] = f.result[places[b]] = name(f"b{i}", operand.shape[a])
    for q, place in enumerate(places):
        if f.indices[q] is None:
            f.indices[q] = f.result[place] = name(f"i{q}", indices.shape[q])
    for d, place in zip(n.window_dims(operand.ndim), n.offset_dims):
        if slice_sizes[d] == operand.shape[d]:
            f.operand[d] = f.result[place] = name(f"o{d}", operand.shape[d])
    for d in n.start_index_map:
        if f.operand[d] is None:
            f.operand[d] = name(f"x{d}", operand.shape[d], REDUCTION)
    return f


def split_indexed_dims(
    ctx: Localizer, n: GatherDimensionNumbers, shape: Sequence[int], slice_sizes: Sequence[int]
) -> list[int]:
    """The indexed operand dimensions that are split."""
    return [d for d in n.start_index_map if ctx.is_split(0, d) and is_indexed(n, shape, slice_sizes, d)]


def shift_to_tile(
    ctx: Localizer, n: GatherDimensionNumbers, indices: Any, slice_sizes: Sequence[int], split: Sequence[int]
) -> Any:
    """Positions relative to this tile's first row, along the ``split`` operand dimensions.

    They include ``slice_sizes - 1`` rows of margin at both ends of the tile (:func:`margins`), so that windows which
    overlap the tile are inside.
    """
    offsets = []
    for d in n.start_index_map:
        offset: Any = scalar_like(0, indices)
        if d in split:
            first = mul(ctx.tile_index(ctx.axes(0, d)), np.int32(ctx.in_local_shapes[0][d]))
            offset = convert(first, typeof(indices).dtype)
            if slice_sizes[d] > 1:
                offset = sub(offset, scalar_like(slice_sizes[d] - 1, indices))
        offsets.append(offset)
    if len(offsets) == 1:
        return sub(indices, offsets[0])
    vector = concatenate([reshape(o, (1,)) for o in offsets], 0)
    aval = typeof(indices)
    return sub(indices, broadcast_in_dim(vector, aval.shape, (aval.ndim - 1,)))


def margins(x: Any, slice_sizes: Sequence[int], split: Sequence[int]) -> Any:
    """A tile with ``slice_sizes - 1`` rows of :func:`nothing` at both ends of the ``split`` dimensions."""
    config = [(0, 0, 0)] * typeof(x).ndim
    for d in split:
        rows = max(slice_sizes[d] - 1, 0)
        config[d] = (rows, rows, 0)
    return pad(x, nothing(typeof(x).dtype), config)
