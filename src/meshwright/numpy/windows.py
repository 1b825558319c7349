"""Windows at positions that need not be known: ``x[ds(i, 2)]`` is ``x[i : i + 2]``, whose start may be traced.

A window is read from the array first, and the rest of the index then selects from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.expected import as_integer, refused
from meshwright.core.records import dataclass
from meshwright.core.window_index import Slice
from meshwright.errors import IndexingError
from meshwright.ir.tracing import typeof
from meshwright.numpy.creation import asarray
from meshwright.numpy.index_plan import entries_by_dimension
from meshwright.numpy.promotion import scalar_like, spread
from meshwright.numpy.starts import as_start
from meshwright.ops.elementwise.table import add, lt, max_, min_, select, sub
from meshwright.ops.indexing.dynamic_slice import dynamic_slice, dynamic_update_slice
from meshwright.ops.indexing.gather_scatter import ScatterDimensionNumbers, gather, scatter
from meshwright.ops.indexing.indexed import GatherDimensionNumbers, GatherScatterMode
from meshwright.ops.shape.rearrange import reshape
from meshwright.ops.shape.slice_pad import concatenate
from meshwright.runtime.array import Array


def ds(start: Any, size: Any = None, stride: int | None = None) -> slice | Slice:
    """``start : start + size``, as an index of arrays, of ``.at`` and of references; ``start`` may be traced.

    ``ds(n)`` are the first ``n`` rows, ``ds(None)`` is ``:``. A negative start counts from the end, as in other
    indices (JAX counts so in some of them). Reads, and writes to references, move a window that would reach outside;
    ``x.at`` leaves ``x`` as it is then. With a ``stride``, it is as indexing by an array of positions.

    Raises:
      ArgumentError: ``size`` is negative, or ``stride`` below 1.
      ArgumentTypeError: they are not integers that are known while tracing.

    Example:
      >>> mw.jit(lambda x, i: x[mw.ds(i, 2)])(mnp.arange(10), 4)
      Array([4, 5], dtype=int32)
    """
    if start is None:
        if size is not None or stride is not None:
            raise refused("ds: start", "an integer, if there is a size", start)
        return slice(None)
    if size is None:
        start, size = 0, start
    return Slice(start, as_integer("ds: size", size, 0), 1 if stride is None else as_integer("ds: stride", stride, 1))


@dataclass(frozen=True, eq=False)
class Window:
    """The part of ``x`` of these ``sizes`` from ``starts`` on, of which ``x[index]`` is a ``rest``."""

    x: Any
    starts: Sequence[Any]
    sizes: tuple[int, ...]
    rest: tuple[Any, ...]
    #: the dimensions that have windows
    dims: tuple[int, ...]

    def _corner(self) -> Any:
        """Where it starts along ``dims``: a vector."""
        return concatenate([reshape(asarray(self.starts[d]), (1,)) for d in self.dims], 0)

    def read(self, mode: GatherScatterMode = GatherScatterMode.CLIP, fill_value: Any = None) -> Any:
        """The window, moved so that it is inside; if the ``mode`` fills, one that is not inside is filled instead."""
        if not self.dims:
            return self.x
        if mode is not GatherScatterMode.FILL_OR_DROP:
            return dynamic_slice(self.x, self.starts, self.sizes, allow_negative_indices=False)
        numbers = GatherDimensionNumbers(tuple(range(len(self.sizes))), (), self.dims)
        return gather(self.x, self._corner(), numbers, self.sizes, mode=mode, fill_value=fill_value)

    def written(self, new: Any, mode: GatherScatterMode) -> Any:
        """``x`` with a ``new`` window; if the ``mode`` drops, one that is not inside is not written."""
        if not self.dims:
            return new
        if mode is not GatherScatterMode.FILL_OR_DROP:
            return dynamic_update_slice(self.x, new, self.starts, allow_negative_indices=False)
        numbers = ScatterDimensionNumbers(tuple(range(len(self.sizes))), (), self.dims)
        return scatter(self.x, self._corner(), new, numbers, mode=mode, unique_indices=True)


def window_of(x: Any, index: Any, wrap: bool = True) -> Window:
    """The window of an index that :func:`has_windows`; with ``wrap``, negative starts count from the end.

    Raises:
      IndexingError: a window is larger than its dimension, its start is not an integer, or a window with a stride
        stands beside index arrays.
    """
    shape = typeof(x).shape
    starts: list[Any] = [np.int32(0)] * len(shape)
    sizes = list(shape)
    rest: list[Any] = []
    dims: list[int] = []
    has_strides = False
    for d, entry in entries_by_dimension(index, len(shape)):
        if d is None or type(entry) is not Slice:
            rest.append(entry)
            continue
        _check(entry, d, shape)
        if entry.stride == 1:
            if entry.size != shape[d]:  # or it is the whole dimension, as in JAX, wherever it starts
                starts[d], sizes[d] = as_start(entry.start, shape[d], wrap), entry.size
                dims.append(d)
            rest.append(slice(None))
        else:
            has_strides = True
            rest.append(_positions(entry, shape[d], wrap))
    if has_strides and sum(isinstance(e, (Array, np.ndarray)) and typeof(e).ndim > 0 for e in rest) > 1:
        raise IndexingError(f"ds with a stride beside index arrays ({index}); index by one first, then by the other")
    return Window(x, starts, tuple(sizes), tuple(rest), tuple(dims))


def _check(entry: Slice, d: int, shape: tuple[int, ...]) -> None:
    type_ = typeof(entry.start) if isinstance(entry.start, (Array, np.ndarray, np.generic, int)) else None
    if type_ is None or type_.shape or not dtypes.is_integer(type_.dtype):
        raise IndexingError(f"ds: the start of a window must be an integer, got {type_ or repr(entry.start)}")
    if entry.size > shape[d]:
        raise IndexingError(f"ds: {entry.size} rows do not fit dimension {d} of shape {shape}")


def _positions(entry: Slice, size: int, wrap: bool) -> Any:
    """The rows of a window with a stride; with ``wrap``, those before the first as if they were counted from the end.

    Starts and strides that reach far outside are nearer, so that no position overflows.
    """
    far = 2**31 - 1 - size
    steps = np.minimum(min(entry.stride, far) * np.arange(entry.size, dtype=np.int64), far).astype(np.int32)
    start = as_start(entry.start, size, wrap)
    start = max_(min_(start, scalar_like(size, start)), scalar_like(-far, start))
    rows = add(spread(start, steps.shape), steps)
    if not wrap:
        return rows
    before = lt(rows, spread(scalar_like(0, rows), steps.shape))
    return select(before, sub(rows, spread(scalar_like(size, rows), steps.shape)), rows)
