"""Index expressions as data: the meaning of ``x[index]``, computed once for the index's static structure.

An index is split in two: a *basic* part (static integers, slices, new axes), implemented by slice, rev and reshape, and
an *advanced* part (index arrays, traced integers), implemented by gather. NumPy's rule for mixing them decides where
the dimensions of the index arrays go: in their place if the index arrays are adjacent, else first.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from meshwright.core import dtypes, pytree
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, IndexingError, NonConcreteBooleanIndexError
from meshwright.ir.tracing import FOREIGN, Tracer, typeof
from meshwright.numpy.creation import asarray
from meshwright.numpy.promotion import broadcast_shapes
from meshwright.runtime.array import Array

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """A basic index of an array of ``shape``: for each dimension the rows ``start:limit:stride`` (stride > 0), then a
    reversal along ``reverse``; ``drop`` are dimensions indexed with an integer (one row is left)."""

    shape: Shape
    start: Shape
    limit: Shape
    stride: Shape
    reverse: Shape
    drop: Shape

    @property
    def sizes(self) -> Shape:
        """The number of rows in each dimension, before any is dropped."""
        return tuple(max(-(-(b - a) // s), 0) for a, b, s in zip(self.start, self.limit, self.stride))

    @property
    def kept(self) -> Shape:
        """The shape without dropped dimensions."""
        return tuple(n for d, n in enumerate(self.sizes) if d not in self.drop)

    @property
    def whole(self) -> bool:
        """Whether the block is the whole array, in order."""
        return self.sizes == self.shape and not self.reverse and not self.drop


@dataclass(frozen=True)
class IndexPlan:
    """How to read ``x[index]``.

    ``block`` is read first. Then dimension ``indexed[i]`` of it is indexed by ``arrays[i]`` (broadcast together to
    ``batch_shape``), whose dimensions are at ``place`` in the result. ``out_shape`` adds new axes to ``gathered``.
    """

    block: Block
    indexed: Shape
    arrays: tuple[Any, ...]
    batch_shape: Shape
    place: int
    gathered: Shape
    out_shape: Shape
    #: whether negative elements of ``arrays`` count from the end
    wrap: bool = True

    @property
    def only_scalars(self) -> bool:
        """Whether all index arrays are scalars (traced integers)."""
        return self.batch_shape == ()


def _is_mask(entry: Any) -> bool:
    if isinstance(entry, (bool, np.bool_)):
        return True
    return isinstance(entry, (Array, np.ndarray)) and dtypes.is_bool(typeof(entry).dtype)


def _concrete_mask(entry: Any) -> np.ndarray:
    if isinstance(entry, Tracer):
        concrete = entry.concrete()
        if concrete is None:
            raise NonConcreteBooleanIndexError(
                f"x[mask] with a traced mask ({entry.aval}): the number of true elements, and so the result's shape, "
                "must be known while tracing. Use where(mask, x, other), x.at[mask].set(scalar), or "
                "nonzero(mask, size=...)"
            )
        entry = concrete
    return np.asarray(entry)


def _entries(index: Any) -> list[Any]:
    """The index as a list, with masks replaced by the positions of their true elements."""
    given = list(index) if isinstance(index, tuple) else [index]
    entries: list[Any] = []
    for entry in given:
        if isinstance(entry, (list, tuple)):
            entry = _from_sequence(entry)
        entry = FOREIGN[type(entry)](entry) if type(entry) in FOREIGN else entry
        if _is_mask(entry):
            mask = _concrete_mask(entry)
            if mask.ndim == 0:  # a new axis of size 1 (True) or 0 (False)
                entries += [_NewIndexed(np.zeros(int(mask), np.int32))]
            else:
                entries += [_MaskPart(p.astype(np.int32), mask.shape, d) for d, p in enumerate(np.nonzero(mask))]
        else:
            entries.append(entry)
    return entries


def _from_sequence(entry: list[Any] | tuple[Any, ...]) -> Any:
    """The array for a list or tuple in an index."""
    if not entry:
        return np.zeros(0, np.int32)
    if any(isinstance(e, Tracer) for e in pytree.leaves(list(entry))):
        return asarray(entry)
    try:
        value = np.asarray(entry)
    except ValueError:  # ragged rows
        value = np.asarray(None)
    if value.dtype.kind not in "biu":
        kind = type(entry).__name__
        raise IndexingError(f"a {kind} in an index must hold integers or bools, in rows of one length, got {entry!r}")
    return value


@dataclass(frozen=True, eq=False)
class _MaskPart:
    """Positions along dimension ``dim`` of a mask."""

    positions: np.ndarray
    mask_shape: Shape
    dim: int


@dataclass(frozen=True, eq=False)
class _NewIndexed:
    """A new axis of size 1, indexed by an array of zeros."""

    positions: np.ndarray


def _expanded(entries: list[Any], ndim: int, index: Any) -> list[Any]:
    """The entries with the ellipsis (or the end) replaced by full slices."""
    used = sum(e is not None and e is not Ellipsis and not isinstance(e, _NewIndexed) for e in entries)
    places = [i for i, e in enumerate(entries) if e is Ellipsis]
    if len(places) > 1:
        raise IndexingError("an index can only have one ellipsis ('...')")
    if used > ndim:
        raise IndexingError(
            f"too many indices: the array has {counted(ndim, 'dimension')}, the index has {used} ({_show(index)})"
        )
    at = places[0] if places else len(entries)
    # An ellipsis for no dimensions is kept: it separates the index arrays next to it.
    filling: list[Any] = [slice(None)] * (ndim - used) or [Ellipsis] * len(places)
    return [*entries[:at], *filling, *entries[at + len(places) :]]


def _show(index: Any) -> str:
    return ", ".join(
        str(typeof(e)) if isinstance(e, (Array, np.ndarray)) else repr(e)
        for e in (index if isinstance(index, tuple) else (index,))
    )


def _static_int(entry: Any) -> int | None:
    """The value of an integer known at trace time, else None."""
    if type(entry) is int:
        return entry
    if isinstance(entry, Array):
        return None
    if isinstance(entry, np.ndarray) and entry.ndim:
        return None
    if isinstance(entry, (float, np.floating, complex)):
        return None
    try:
        return operator.index(entry)
    except TypeError:
        return None


def _index_array(entry: Any) -> Any:
    if isinstance(entry, (_MaskPart, _NewIndexed)):
        return entry.positions
    if isinstance(entry, (Array, np.ndarray)) and dtypes.is_integer(typeof(entry).dtype):
        return entry
    what = str(typeof(entry)) if isinstance(entry, (Array, np.ndarray)) else f"{entry!r} ({type(entry).__name__})"
    raise IndexingError(
        f"only integers, slices, '...', None, and arrays of integers or bools can be an index, got {what}"
    )


def _slice_rows(s: slice, size: int) -> tuple[int, int, int, bool]:
    """(start, limit, positive stride, reversed) of a slice of a dimension."""
    try:
        start, stop, step = s.indices(size)
    except TypeError as error:
        if any(isinstance(v, Tracer) for v in (s.start, s.stop, s.step)):
            raise IndexingError(
                "slice bounds must be known while tracing, as they decide the result's shape; use lax.dynamic_slice "
                f"(or an index array) for a window at a traced position ({error})"
            ) from None
        raise IndexingError(f"slice bounds must be integers: {error}") from None
    except ValueError:
        raise ArgumentError(f"the step of {s} must not be 0; leave it out for all elements") from None
    count = len(range(start, stop, step))
    if count == 0:
        return 0, 0, 1, False
    if step < 0:
        return start + (count - 1) * step, start + 1, -step, True
    return start, start + (count - 1) * step + 1, step, False


class _Builder:
    """Builds a plan entry by entry."""

    def __init__(self, shape: Shape, wrap: bool) -> None:
        self.shape, self.wrap = shape, wrap
        self.start, self.limit, self.stride = [0] * len(shape), list(shape), [1] * len(shape)
        self.reverse: list[int] = []
        self.drop: list[int] = []
        self.indexed: list[int] = []
        self.arrays: list[Any] = []
        #: the places of integers and index arrays in the index
        self.places: list[int] = []
        #: what entries contribute, in order: a dimension "kept" or "new" and its size, or "index"
        self.layout: list[tuple[str, int]] = []

    def rows(self, d: int, entry: slice) -> None:
        self.start[d], self.limit[d], self.stride[d], reverse = _slice_rows(entry, self.shape[d])
        if reverse:
            self.reverse.append(d)
        self.layout.append(("kept", -(-(self.limit[d] - self.start[d]) // self.stride[d])))

    def index(self, d: int, place: int, entry: Any) -> None:
        self.places.append(place)
        self.layout.append(("index", 0))
        i = _static_int(entry)
        outside = i is not None and not (-self.shape[d] if self.wrap else 0) <= i < self.shape[d]
        if outside and self.shape[d]:  # left to the gather or scatter to clip, fill or drop, and to checkify to report
            self.indexed.append(d)
            self.arrays.append(np.asarray(i))
            return
        if i is not None:
            self.one(d, i)
            return
        # As in NumPy and the standard, a mask dimension of size 0 fits any size.
        if isinstance(entry, _MaskPart) and entry.mask_shape[entry.dim] not in (0, self.shape[d]):
            raise IndexingError(
                f"a mask of shape {entry.mask_shape} does not fit dimension {d} of shape {self.shape}: its dimension "
                f"{entry.dim} must have size {self.shape[d]}"
            )
        self.indexed.append(d)
        self.arrays.append(_index_array(entry))

    def one(self, d: int, i: int) -> None:
        size = self.shape[d]
        if size == 0:
            raise IndexingError(f"index {i} into dimension {d}, which has size 0 (shape {self.shape})")
        row = i + size if i < 0 else i
        self.start[d], self.limit[d] = row, row + 1
        self.drop.append(d)


def entries_by_dimension(index: Any, ndim: int) -> list[tuple[int | None, Any]]:
    """The entries of an index for each dimension of an array, those left out too, and those between (None)."""
    numbered: list[tuple[int | None, Any]] = []
    d = 0
    for entry in _expanded(_entries(index), ndim, index):
        between = entry is None or entry is Ellipsis or isinstance(entry, _NewIndexed)
        numbered.append((None if between else d, entry))
        d += not between
    return numbered


def _with_added(shape: Shape, entries: list[Any]) -> Shape:
    """The shape with a dimension of size 1 for each bool scalar in the index."""
    rest = iter(shape)
    consuming = [e for e in entries if e is not None and e is not Ellipsis]
    return tuple([1 if isinstance(e, _NewIndexed) else next(rest) for e in consuming])


def plan_index(shape: Shape, index: Any, wrap: bool = True) -> IndexPlan:
    """The plan for ``x[index]``, where ``x`` has ``shape``.

    Args:
      wrap: whether negative integers count from the end.

    Raises:
      IndexingError: too many indices, or an entry that is not an index.
      ConcretizationTypeError: a traced mask.
    """
    entries = _expanded(_entries(index), len(shape), index)
    b = _Builder(_with_added(shape, entries), wrap)
    d = 0
    for place, entry in enumerate(entries):
        if entry is None:
            b.layout.append(("new", 1))
        elif entry is not Ellipsis:
            if isinstance(entry, slice):
                b.rows(d, entry)
            else:
                b.index(d, place, entry)
            d += 1
    return _finish(b)


def _finish(b: _Builder) -> IndexPlan:
    has_arrays = any(typeof(a).ndim for a in b.arrays)
    neighbours = not has_arrays or b.places == list(range(b.places[0], b.places[-1] + 1))
    block = Block(b.shape, tuple(b.start), tuple(b.limit), tuple(b.stride), tuple(b.reverse), tuple(b.drop))
    batch = broadcast_shapes(*(typeof(a).shape for a in b.arrays), name="indexing")
    indexed = tuple(d - sum(e < d for e in b.drop) for d in b.indexed)
    before: list[tuple[str, int]] = []
    if has_arrays and neighbours:
        first = next(i for i, (kind, _) in enumerate(b.layout) if kind == "index")
        before = b.layout[:first]
    after = [e for e in b.layout[len(before) :] if e[0] != "index"]
    place = sum(kind == "kept" for kind, _ in before)
    kept = [n for kind, n in b.layout if kind == "kept"]
    gathered = (*kept[:place], *batch, *kept[place:])
    out = (*(n for _, n in before), *batch, *(n for _, n in after))
    return IndexPlan(block, indexed, tuple(b.arrays), batch, place, gathered, out, b.wrap)
