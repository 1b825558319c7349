"""Several shifts of one array, in several dimensions, as one exchange.

A stencil with corners (nine points of a plane) reads elements next to a tile along both dimensions; one of higher order
reads several rows. Separately, each shift would fetch rows, and then columns of the result. Together they are windows
of a tile with a halo: rows are fetched first, then columns of the tile with these rows, so that the columns include the
corners.

Around the array are zeros, or rows of the array itself: its last row repeated, or its last rows reflected. Such borders
are put into the halo of the first and the last tile once, for all windows.

Programs do not contain the op. It replaces paddings that shift an array, and slices of an array that its own rows
extend.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ShapeError
from meshwright.ir.contract import ArrayLike, Localizer, Value
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var, all_eqns
from meshwright.ir.op import BatchAxis, BatchedResults, Cotangents, Zero
from meshwright.ir.rewrite import in_regions, producers_of, replaced
from meshwright.ops.composite import Composite
from meshwright.ops.elementwise.table import add, eq, scalar_like, select
from meshwright.ops.shape.joined_pads import is_zero, zeros_of
from meshwright.ops.shape.picked_rows import Picked, PickedRows, rows_of
from meshwright.ops.shape.rearrange import Linear1
from meshwright.ops.shape.slice_pad import Concatenate, Pad, Slice, concatenate, pad, slice_, slice_in_dim
from meshwright.sharding.row_map import ZEROS, Span
from meshwright.sharding.rule import WINDOW, ShardingRule, make_rule
from meshwright.sharding.window import Window

#: number of rows down along each dimension
Shift = tuple[int, ...]


@dataclass(frozen=True)
class Border:
    """The rows of an array that stand above its first row, in order, and those below its last. Beyond are zeros."""

    above: tuple[int, ...] = ()
    below: tuple[int, ...] = ()

    def source(self, row: int, size: int) -> int | None:
        """Which of the array's ``size`` rows stands at ``row``, which is outside of them; None if zeros do."""
        if row < 0:
            return self.above[row] if row >= -len(self.above) else None
        return self.below[row - size] if row - size < len(self.below) else None


@dataclass(frozen=True)
class Shifts(Linear1, Composite):
    """The operand shifted by each of ``shifts``. What comes in from outside is a zero, or a row of ``borders``."""

    shifts: tuple[Shift, ...]
    #: one for each dimension, or none
    borders: tuple[Border, ...] = ()
    name: ClassVar[str] = "shifts"
    multiple_results: ClassVar[bool] = True
    computes: ClassVar[bool] = False

    def infer(self, x: ShapedArray) -> tuple[ShapedArray, ...]:
        if any(len(shift) != x.ndim or any(abs(by) > n for by, n in zip(shift, x.shape)) for shift in self.shifts):
            raise ShapeError(f"shifts: {self.shifts} are not of {x}")
        rows = [(row, n) for border, n in zip(self.borders, x.shape) for row in (*border.above, *border.below)]
        if len(self.borders) not in (0, x.ndim) or not all(0 <= row < n for row, n in rows):
            raise ShapeError(f"shifts: {self.borders} are not borders of {x}")
        return (x,) * len(self.shifts)

    def expand(self, x: Value) -> list[Value]:
        extended = self._extended(x, range(x.ndim))
        return [_moved(extended, ends) for ends in self._ends(self._rims(x.ndim))]

    def _border(self, dim: int) -> Border:
        """What comes in from outside along a dimension."""
        return self.borders[dim] if self.borders and any(shift[dim] for shift in self.shifts) else Border()

    def spans(self, dim: int, size: int) -> list[Span]:
        """The rows of the first result, if it is shifted along ``dim`` alone, as rows of the array and zeros."""
        by, border = self.shifts[0][dim], self._border(dim)
        inside = Span(0, max(-by, 0), size - max(by, 0))
        sources = [border.source(row, size) for row in (range(-by, 0) if by > 0 else range(size, size - by))]
        outside = [Span(ZEROS, 0, 1) if row is None else Span(0, row, row + 1) for row in sources]
        spans = [*outside, inside] if by > 0 else [inside, *outside]
        return [span for span in spans if span.rows]

    def _extended(self, x: Any, dims: Iterable[int]) -> Any:
        """An array with its borders along ``dims``."""
        for d in dims:
            border = self._border(d)
            x = concatenate([*rows_of(x, d, border.above), x, *rows_of(x, d, border.below)], d)
        return x

    def _rims(self, ndim: int) -> list[tuple[int, int]]:
        """The numbers of rows that borders add above and below the array, by dimension."""
        return [(len(border.above), len(border.below)) for border in map(self._border, range(ndim))]

    def _ends(self, rims: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
        """For each shift: how many rows the result has more above and below than the array with rows around it, by
        dimension."""
        for shift in self.shifts:
            yield [(by - above, -by - below) for by, (above, below) in zip(shift, rims)]

    def transpose(self, cts: Any, x: Any) -> Cotangents:
        back = [
            _moved(ct, [(-above, -below) for above, below in ends])
            for ct, ends in zip(cts, self._ends(self._rims(x.aval.ndim)))
            if not isinstance(ct, Zero)
        ]
        if not back:
            return [Zero(x.aval)]
        total = reduce(add, back)
        for d in reversed(range(x.aval.ndim)):
            border = self._border(d)
            size, first = x.aval.shape[d], len(border.above)
            places = [*enumerate(border.above), *enumerate(border.below, first + size)]
            rows = [
                _moved(slice_in_dim(total, at, at + 1, axis=d), _along(d, total.ndim, (row, size - 1 - row)))
                for at, row in places
            ]
            total = reduce(add, rows, slice_in_dim(total, first, first + size, axis=d))
        return [total]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x,), (dim,) = args, dims
        assert dim is not None
        shifts = tuple((*shift[:dim], 0, *shift[dim:]) for shift in self.shifts)
        borders = (*self.borders[:dim], Border(), *self.borders[dim:]) if self.borders else ()
        return Shifts(shifts, borders).bind(x), [dim] * len(self.shifts)

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        names = [f"d{d}" for d in range(x.ndim)]
        kinds = {name: WINDOW for d, name in enumerate(names) if any(s[d] for s in self.shifts)}
        return make_rule([names], [names] * len(self.shifts), dict(zip(names, x.shape)), kinds)

    def localize(self, ctx: Localizer, x: Value) -> ArrayLike | Sequence[ArrayLike]:
        rims = self._rims(x.ndim)
        whole = []
        for d in range(x.ndim):
            if ctx.is_split(0, d) and any(shift[d] for shift in self.shifts):
                halo = self._halo(ctx, d)
                x, rims[d] = halo.around(ctx, x, d), (halo.above, halo.below)
            else:
                whole.append(d)
        x = self._extended(x, whole)  # after the exchanges, so that less is sent
        return [_moved(x, ends) for ends in self._ends(rims)]

    def _halo(self, ctx: Localizer, dim: int) -> Halo:
        """The halo that a tile needs along a split dimension."""
        by = [0, *(shift[dim] for shift in self.shifts)]
        rows, tiles = ctx.out_local_shapes[0][dim], ctx.num_tiles(0, dim)
        return Halo.of(self._border(dim), ctx.in_avals[0].shape[dim], rows, tiles, max(by), -min(by))


@dataclass(frozen=True)
class Halo:
    """The rows around a tile of ``rows`` rows: ``above`` and ``below``. ``places[t]`` are those rows of tile ``t`` and
    its halo that a border fills, each with the row to put there; all are counted from the tile's first row."""

    rows: int
    above: int
    below: int
    places: tuple[Mapping[int, int], ...]

    @classmethod
    def of(cls, border: Border, size: int, rows: int, tiles: int, above: int, below: int) -> Halo:
        """The halo of tiles of a dimension of ``size`` rows that need ``above`` and ``below`` more. It is larger where
        the rows of a border are further away."""
        places = []
        for first in range(0, tiles * rows, rows):
            end = min(first + rows, size)
            outside = [*range(first - above, 0), *range(size, end + below)] if first < end else []
            sources = {row: border.source(row, size) for row in outside}
            places.append({row - first: source - first for row, source in sources.items() if source is not None})
        reached = [source for tile in places for source in tile.values()]
        return cls(
            rows, max(above, -min(reached, default=0)), max(below, max(reached, default=0) + 1 - rows), tuple(places)
        )

    def around(self, ctx: Localizer, x: Any, dim: int) -> Any:
        """This device's tile with its halo."""
        length = self.above + self.rows + self.below
        rim = ctx.fetch_window(x, 0, dim, Window(partial(_begin, self.rows, self.above), length))
        filled = {
            tile: {at + self.above: row + self.above for at, row in to.items()} for tile, to in enumerate(self.places)
        }
        spans = {tile: (min(to), max(to) + 1) for tile, to in filled.items() if to}
        if not spans:
            return rim
        this = ctx.tile_index(ctx.axes(0, dim))
        parts = []
        for low, high in pairwise(sorted({0, length, *(end for span in spans.values() for end in span)})):
            part = slice_in_dim(rim, low, high, axis=dim)
            for tile, (first, end) in spans.items():
                if first <= low and high <= end:
                    rows = [filled[tile].get(row, row) for row in range(low, high)]
                    part = select(eq(this, scalar_like(tile, this)), concatenate([*rows_of(rim, dim, rows)], dim), part)
            parts.append(part)
        return concatenate(parts, dim)


def _begin(rows: int, above: int, tile: int) -> int:
    return tile * rows - above


def _along(dim: int, ndim: int, ends: tuple[int, int]) -> list[tuple[int, int]]:
    """``ends`` along one dimension, and no rows more along the others."""
    return [ends if d == dim else (0, 0) for d in range(ndim)]


def _moved(x: Any, ends: Sequence[tuple[int, int]]) -> Any:
    """``x`` with more rows of zeros above and below, or with less rows where the numbers are negative."""
    if all(max(end) <= 0 for end in ends):
        return slice_(x, [-above for above, _ in ends], [n + below for n, (_, below) in zip(x.shape, ends)])
    return pad(x, scalar_like(0, x), [(above, below, 0) for above, below in ends])


# --- recognized in programs ---------------------------------------------------------------------------------
def windows_of_extended(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Slices of an array that its own rows extend become shifts of that array, if they have its shape."""
    if not any(isinstance(e.op, Concatenate) for e in all_eqns(jaxpr.jaxpr)):
        return jaxpr
    makers = producers_of(jaxpr.jaxpr)
    finders: dict[tuple[int, ...], PickedRows] = {}

    def rewritten(eqn: JaxprEqn) -> JaxprEqn:
        if eqn.op.holds_jaxprs:
            return in_regions(eqn, windows_of_extended)
        if not isinstance(eqn.op, Slice) or not eqn.outvars[0].aval.size or any(s != 1 for s in eqn.op.strides):
            return eqn
        shape = eqn.outvars[0].aval.shape
        extended = finders.setdefault(shape, PickedRows(shape, makers)).of(eqn.invars[0])
        window = extended and _window(extended, eqn.op.start_indices)
        return eqn.replace(op=window, invars=[extended.source]) if window and extended else eqn

    return replaced(jaxpr, rewritten)


def _window(extended: Picked, start: Sequence[int]) -> Shifts | None:
    """The slice from ``start`` on, as a shift of the extended array; None if it does not have all its rows in turn."""
    borders: list[Border] = []
    shift: list[int] = []
    for rows, size, first in zip(extended.rows, extended.source.aval.shape, start):
        at = _first_run(rows, size)
        if at is None or abs(at - first) > size:
            return None
        shift.append(at - first)
        borders.append(Border(tuple(map(int, rows[:at])), tuple(map(int, rows[at + size :]))))
    return Shifts((tuple(shift),), tuple(borders))


def _first_run(rows: np.ndarray, size: int) -> int | None:
    """Where ``0, 1, ..., size - 1`` begins in ``rows``."""
    starts = np.flatnonzero(rows[: len(rows) - size + 1] == 0)
    return next((int(at) for at in starts if np.array_equal(rows[at : at + size], np.arange(size))), None)


def joined_shifts(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Combine shifts of one array that need the same rows."""
    if not any(isinstance(e.op, (Pad, Shifts)) for e in all_eqns(jaxpr.jaxpr)):
        return jaxpr
    zeros = zeros_of(jaxpr)
    groups: dict[tuple[Atom, tuple[Border, ...]], list[tuple[JaxprEqn, Shift]]] = {}
    for eqn in jaxpr.jaxpr.eqns:
        alone = _alone(eqn, zeros)
        if alone is not None:
            groups.setdefault((eqn.invars[0], alone.borders), []).append((eqn, alone.shifts[0]))
    joined = [(group, borders) for (_, borders), group in groups.items() if _overlap([shift for _, shift in group])]
    firsts = {id(group[0][0]): (group, borders) for group, borders in joined}
    rest = {id(eqn) for group, _ in joined for eqn, _ in group[1:]}

    def rewritten(eqn: JaxprEqn) -> JaxprEqn | list[JaxprEqn]:
        if eqn.op.holds_jaxprs:
            return in_regions(eqn, joined_shifts)
        if id(eqn) in rest:
            return []
        if id(eqn) not in firsts:
            return eqn
        group, borders = firsts[id(eqn)]
        outs = [e.outvars[0] for e, _ in group]
        return eqn.replace(op=Shifts(tuple(shift for _, shift in group), borders), invars=[eqn.invars[0]], outvars=outs)

    return replaced(jaxpr, rewritten)


def _overlap(shifts: Sequence[Shift]) -> bool:
    """Whether some shift is along several dimensions, or several shifts are in the same direction."""
    ways = {(d, by > 0, by) for shift in shifts for d, by in enumerate(shift) if by}
    return any(sum(map(bool, s)) > 1 for s in shifts) or len({(d, down) for d, down, _ in ways}) < len(ways)


def _alone(eqn: JaxprEqn, zeros: Container[Atom]) -> Shifts | None:
    """One shift of an array, if an equation does nothing else."""
    if isinstance(eqn.op, Shifts):
        return eqn.op if len(eqn.op.shifts) == 1 else None
    if not isinstance(eqn.op, Pad) or not isinstance(eqn.invars[0], Var) or not is_zero(eqn.invars[1], zeros):
        return None
    config, shape = eqn.op.padding_config, eqn.invars[0].aval.shape
    ok = all(lo == -hi and not inner and abs(lo) < n for (lo, hi, inner), n in zip(config, shape))
    return Shifts((tuple(lo for lo, _, _ in config),)) if ok else None
