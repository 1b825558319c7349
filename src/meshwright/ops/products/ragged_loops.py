"""Products with groups of rows as loops over the groups and the tiles of their rows.

Compilers without a kernel for them multiply all rows with the entries of all groups, and keep what a mask leaves. In
these loops, as in the block-sparse products of MegaBlocks (Gale et al., 2022), each row is multiplied once, except that
the last tile of a group may not be full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.dot_algorithms import Algorithm
from meshwright.core.records import dataclass
from meshwright.ir.tracing import typeof
from meshwright.ops.control.while_loop import counted
from meshwright.ops.elementwise.clamp import clamp
from meshwright.ops.elementwise.table import (
    add,
    and_,
    convert,
    div,
    le,
    lt,
    max_,
    min_,
    mul,
    rem,
    select,
    sub,
    zeros_like,
)
from meshwright.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from meshwright.ops.products.dot import DotDimensionNumbers, DotGeneral
from meshwright.ops.reduce.cumulative import CumSum
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota, match_shape
from meshwright.ops.shape.rearrange import reshape, squeeze

_INDEX = np.dtype(np.int32)
#: the fewest and the most rows of a tile; between them, about half of the rows that a group has on average
_FEWEST, _MOST = 64, 512
_TILES = 2

#: the position of a window along each of a value's dimensions where it does not start at 0, and its size there
Places = dict[int, tuple[Any, int]]


@dataclass(frozen=True)
class Grouping:
    """Which dimensions a product with groups has: those of :class:`~meshwright.ops.products.ragged.RaggedDot`.

    ``of_one`` are the dimension numbers of the product with the entry of one group, and ``results`` the dimensions of
    ``lhs`` that the result has, in order.
    """

    of_one: DotDimensionNumbers
    #: pairs of dimensions of lhs and rhs, batch and contracting
    pairs: dict[int, int]
    ragged: int
    group: int | None
    along: tuple[int, ...]
    results: tuple[int, ...]


def bounds_of(sizes: Any, first: Sequence[Any], rows: int) -> tuple[Any, Any]:
    """The first row of each group and the row after its last, int32 ``[*along, groups]`` between 0 and ``rows``.

    Groups of negative size are empty, so that groups never overlap.
    """
    sizes = max_(convert(sizes, _INDEX), match_shape(np.int32(0), typeof(sizes)))
    shape = typeof(sizes).shape
    ends = CumSum(len(shape) - 1).bind(sizes) if math.prod(shape) else sizes
    for row in first:
        ends = add(ends, broadcast_in_dim(convert(row, _INDEX), shape, range(len(shape) - 1)))
    starts = sub(ends, sizes)
    low, high = np.int32(0), np.int32(rows)
    return clamp(low, starts, high), clamp(low, ends, high)


def product_in_tiles(
    g: Grouping, x: Any, y: Any, bounds: tuple[Any, Any], precision: str | Algorithm | None, out: ShapedArray
) -> Any:
    """The product of type ``out``; ``bounds`` are those of :func:`bounds_of`."""
    if 0 in (*out.shape, typeof(x).size, typeof(y).size):
        return match_shape(np.zeros((), out.dtype), out)
    loops = _Sums if g.group is None else _Rows
    return loops(g, typeof(x), typeof(y), typeof(bounds[0]), precision, out).run(x, y, *bounds)


@dataclass(frozen=True)
class _Loops:
    """A loop over the groups (for each index of the dimensions ``along``), and in it one over the tiles of its rows."""

    g: Grouping
    x: ShapedArray
    y: ShapedArray
    bounds: ShapedArray
    precision: str | Algorithm | None
    out: ShapedArray

    @property
    def tile(self) -> int:
        """The number of rows of a tile."""
        rows = self.x.shape[self.g.ragged]
        average = rows // (_TILES * self.bounds.shape[-1])
        return min(rows, max(_FEWEST, min(_MOST, 1 << average.bit_length())))

    def run(self, x: Any, y: Any, starts: Any, ends: Any) -> Any:
        """The product."""
        number = self.bounds.size
        consts = [x, y, reshape(starts, (number,)), reshape(ends, (number,))]
        zeros = match_shape(np.zeros((), self.held.dtype), self.held)
        out = counted(self._group, np.int32(number), consts, zeros)
        return convert(out, self.out.dtype)

    @property
    def held(self) -> ShapedArray:
        """The type in which the result is made."""
        return self.out

    def _group(self, i: Any, x: Any, y: Any, starts: Any, ends: Any, out: Any) -> Any:
        """The result after one step of the loop over groups."""
        raise NotImplementedError

    def _at(self, i: Any) -> tuple[Any, dict[int, Any]]:
        """The group of a step, and its index along each of the dimensions ``along`` of lhs."""
        *prefix, groups = self.bounds.shape
        group, rest, at = rem(i, np.int32(groups)), div(i, np.int32(groups)), {}
        for d, n in reversed(list(zip(self.g.along, prefix))):
            at[d], rest = rem(rest, np.int32(n)), div(rest, np.int32(n))
        return group, at

    def _of_lhs(self, x: Any, at: dict[int, Any], row: Any) -> Any:
        """A tile of rows of lhs."""
        return _window(x, {**{d: (i, 1) for d, i in at.items()}, self.g.ragged: (row, self.tile)})

    def _of_rhs(self, at: dict[int, Any]) -> Places:
        return {self.g.pairs[d]: (i, 1) for d, i in at.items() if d in self.g.pairs}

    def _of_result(self, at: dict[int, Any], more: Places) -> Places:
        """Places in the result, whose dimensions from lhs come after the groups, if it has these."""
        lead = int(self.g.group is None)
        placed = {lead + self.g.results.index(d): (i, 1) for d, i in at.items() if d in self.g.results}
        return placed | more

    def _rows(self, row: Any, end: Any) -> tuple[Any, Any]:
        """The first row of a window that fits, and which rows of it are from ``row`` on, before ``end``."""
        first = min_(row, np.int32(self.x.shape[self.g.ragged] - self.tile))
        number = add(iota(_INDEX, (self.tile,), 0), broadcast_in_dim(first, (self.tile,), ()))
        last = min_(end, add(row, np.int32(self.tile)))
        low, high = (broadcast_in_dim(v, (self.tile,), ()) for v in (row, last))
        return first, and_(le(low, number), lt(number, high))

    def _over_tiles(self, body: Callable[..., Any], i: Any, consts: Sequence[Any], carry: Any) -> Any:
        """The carry after ``carry = body(row, end, i, x, y, carry)`` for the tiles of the rows of a step."""
        x, y, starts, ends = consts
        start, end = (squeeze(DynamicSlice((1,)).bind(v, i), [0]) for v in (starts, ends))
        tile = np.int32(self.tile)
        number = div(add(sub(end, start), np.int32(self.tile - 1)), tile)

        def step(t: Any, start: Any, *rest: Any) -> Any:
            return body(add(start, mul(t, tile)), *rest)

        return counted(step, number, [start, end, i, x, y], carry)


@dataclass(frozen=True)
class _Rows(_Loops):
    """Each row is multiplied with the entry of its group."""

    def _group(self, i: Any, x: Any, y: Any, starts: Any, ends: Any, out: Any) -> Any:
        def multiply(row: Any, end: Any, i: Any, x: Any, y: Any, out: Any) -> Any:
            group, at = self._at(i)
            first, inside = self._rows(row, end)
            assert self.g.group is not None
            entry = squeeze(_window(y, {**self._of_rhs(at), self.g.group: (group, 1)}), [self.g.group])
            product = DotGeneral(self.g.of_one, self.precision, self.out.dtype)
            made = product.bind(self._of_lhs(x, at, first), entry)
            along = self.g.results.index(self.g.ragged)
            place = self._of_result(at, {along: (first, self.tile)})
            kept = broadcast_in_dim(inside, typeof(made).shape, (along,))
            return _updated(out, select(kept, made, _window(out, place)), place)

        return self._over_tiles(multiply, i, [x, y, starts, ends], out)


@dataclass(frozen=True)
class _Sums(_Loops):
    """The rows of each group are contracted."""

    @property
    def summed(self) -> np.dtype:
        """The type in which tiles are added up."""
        short = dtypes.is_float(self.out.dtype) and dtypes.bit_width(self.out.dtype) < 32
        return dtypes.float32 if short else self.out.dtype

    @property
    def _again(self) -> bool:
        """Whether several steps add to the sum of a group."""
        return not set(self.g.along) <= set(self.g.results)

    @property
    def held(self) -> ShapedArray:
        return self.out.update(dtype=self.summed) if self._again else self.out

    def _group(self, i: Any, x: Any, y: Any, starts: Any, ends: Any, out: Any) -> Any:
        def total(row: Any, end: Any, i: Any, x: Any, y: Any, done: Any) -> Any:
            _, at = self._at(i)
            first, inside = self._rows(row, end)
            along = self.g.pairs[self.g.ragged]
            mine = _masked(self._of_lhs(x, at, first), inside, self.g.ragged)
            other = _masked(_window(y, {**self._of_rhs(at), along: (first, self.tile)}), inside, along)
            return add(done, DotGeneral(self.g.of_one, self.precision, self.summed).bind(mine, other))

        group, at = self._at(i)
        place = self._of_result(at, {0: (group, 1)})
        shape = tuple(place[d][1] if d in place else n for d, n in enumerate(self.out.shape))
        zero = match_shape(np.zeros((), self.summed), ShapedArray(shape[1:], self.summed))
        made = reshape(self._over_tiles(total, i, [x, y, starts, ends], zero), shape)
        made = add(made, _window(out, place)) if self._again else convert(made, self.out.dtype)
        return _updated(out, made, place)


def _starts(x: Any, places: Places) -> list[Any]:
    return [places[d][0] if d in places else np.int32(0) for d in range(typeof(x).ndim)]


def _window(x: Any, places: Places) -> Any:
    """The window of ``x`` at these places, whole along the other dimensions."""
    sizes = tuple(places[d][1] if d in places else n for d, n in enumerate(typeof(x).shape))
    return DynamicSlice(sizes).bind(x, *_starts(x, places)) if places else x


def _updated(x: Any, window: Any, places: Places) -> Any:
    return DynamicUpdateSlice().bind(x, window, *_starts(x, places))


def _masked(x: Any, inside: Any, dim: int) -> Any:
    """``x`` with rows outside replaced by zeros: they may be infinite."""
    return select(broadcast_in_dim(inside, typeof(x).shape, (dim,)), x, zeros_like(x))
