"""Rewrites stencils on the interior of an array as elementwise ops on shifts of the whole array.

Stencils are written as slices of one array, each shifted by a row, which are combined elementwise and then padded, or
written into the array again. The tiles of this interior are not aligned with those of the array: along a split
dimension, each slice would communicate several rows, and writing back would communicate more rows or everything. In
rows of the whole array, each slice is a shift, for which neighbours have the rows that a tile lacks. Results at the
border are discarded.

Slices of padded arrays, and of windows of periodic ones, are shifts as well. Concatenations of an interior and rows at
its ends (borders that repeat or reflect the last rows, one-sided differences) become a selection by row number between
values that are each computed from shifts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from meshwright.core import source
from meshwright.core.records import dataclass
from meshwright.core.recursion import Call, run
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var, all_eqns
from meshwright.ir.rewrite import in_regions, producers_of, replaced, uses_of
from meshwright.ir.state import set_trace
from meshwright.ir.tracing import JaxprTrace, typeof
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.elementwise.table import and_, ge, lt, scalar_like, select
from meshwright.ops.indexing.known_places import PlacedUpdate
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim, broadcast_in_dim, iota
from meshwright.ops.shape.cyclic import CyclicWindow
from meshwright.ops.shape.slice_pad import Concatenate, Pad, Slice, pad, slice_


def interiors(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with interiors computed as shifts of the whole array, and slices of padded arrays as shifts."""
    if not any(isinstance(e.op, (Pad, PlacedUpdate, CyclicWindow, Concatenate)) for e in all_eqns(jaxpr.jaxpr)):
        return jaxpr
    makers, users = producers_of(jaxpr.jaxpr), uses_of(jaxpr.jaxpr)

    def rewritten(eqn: JaxprEqn) -> JaxprEqn | list[JaxprEqn]:
        if eqn.op.holds_jaxprs:
            return in_regions(eqn, interiors)
        if not eqn.outvars or not all(v.aval.size for v in eqn.outvars):  # empty values have no rows
            return eqn
        if isinstance(eqn.op, Slice):
            new = _of_padded(eqn, makers)
            return _of_joined(eqn, makers, users) if new is eqn else new
        interior = _interior(eqn)
        if interior is None:
            return eqn
        return _Whole(interior.shape, makers, users, interior.along).equations(eqn, interior.joined)

    return replaced(jaxpr, rewritten)


def _of_padded(eqn: JaxprEqn, makers: Mapping[Var, JaxprEqn]) -> JaxprEqn | list[JaxprEqn]:
    """Rewrite a slice of a padded array as a padded and cropped array, of a periodic window as another window, of a
    slice as one slice."""
    maker = makers.get(eqn.invars[0])  # type: ignore[arg-type]
    op: Any = eqn.op
    if maker is None or any(s != 1 for s in op.strides):
        return eqn
    starts, limits = list(op.start_indices), list(op.limit_indices)
    if isinstance(maker.op, Pad) and not any(inner for *_, inner in maker.op.padding_config):
        sizes = eqn.invars[0].aval.shape
        ends = zip(maker.op.padding_config, starts, limits, sizes)
        moved = tuple((lo - start, hi - (size - limit), 0) for (lo, hi, _), start, limit, size in ends)
        return eqn.replace(op=Pad(moved), invars=maker.invars)
    if isinstance(maker.op, Slice) and all(s == 1 for s in maker.op.strides):
        first, last = (tuple(a + n for a, n in zip(maker.op.start_indices, ends)) for ends in (starts, limits))
        return eqn.replace(op=Slice(first, last, op.strides), invars=maker.invars)
    if isinstance(maker.op, CyclicWindow):
        d, (x,) = maker.op.dimension, maker.invars
        size, first, length = x.aval.shape[d], starts[d], limits[d] - starts[d]
        window = CyclicWindow(d, (maker.op.start + first) % size, length)
        starts[d], limits[d] = 0, size
        if starts == [0] * len(starts) and tuple(limits) == x.aval.shape:
            return eqn.replace(op=window, invars=[x])
        rest = Slice(tuple(starts), tuple(limits), op.strides)
        cut = Var(rest.infer(x.aval))
        before = _of_padded(eqn.replace(op=rest, invars=[x], outvars=[cut]), makers)
        return [*([before] if isinstance(before, JaxprEqn) else before), eqn.replace(op=window, invars=[cut])]
    return eqn


def _of_joined(
    eqn: JaxprEqn, makers: Mapping[Var, JaxprEqn], users: Mapping[Var, list[JaxprEqn | None]]
) -> JaxprEqn | list[JaxprEqn]:
    """Rewrite a slice of concatenated rows of an array in rows of that array, if the sizes are equal."""
    maker = makers.get(eqn.invars[0])  # type: ignore[arg-type]
    op: Any = eqn.op
    if maker is None or not isinstance(maker.op, Concatenate) or any(s != 1 for s in op.strides):
        return eqn
    if eqn.outvars[0].aval.dtype.kind not in "biufcV":
        return eqn
    start = tuple(-n for n in op.start_indices)
    return _Whole(eqn.outvars[0].aval.shape, makers, users).equations(eqn, lambda w: w.value(eqn.invars[0], start))


@dataclass(frozen=True)
class _Interior:
    """The rows ``start`` to ``start + size`` of an array of ``shape``, in each dimension. ``value`` is the interior,
    ``border`` the array, or the scalar, around it; without a border, ``value`` is the whole array.

    With ``place``, it is the interior of only a few rows (a border that is set), which begin there in ``border``.
    """

    shape: tuple[int, ...]
    start: tuple[int, ...]
    value: Var
    border: Atom | None
    place: tuple[int, ...] | None = None

    @property
    def size(self) -> tuple[int, ...]:
        return self.value.aval.shape

    @property
    def cut(self) -> list[int]:
        """The dimensions in which it is smaller than the array."""
        return [d for d, (n, whole) in enumerate(zip(self.size, self.shape)) if n != whole]

    @property
    def along(self) -> list[int]:
        """The dimensions in which an array with these rows has all rows of the whole array."""
        place = self.place or (0,) * len(self.shape)
        border = self.border.aval.shape if self.border is not None and self.place else self.shape
        return [d for d, (n, whole) in enumerate(zip(self.shape, border)) if n == whole and not place[d]]

    def joined(self, whole: _Whole) -> Any:
        """The array, computed in its own rows."""
        value = whole.value(self.value, self.start)
        if self.place is not None and isinstance(self.border, Var):
            rows = tuple((at, at + n) for at, n in zip(self.start, self.size))
            return PlacedUpdate(self.place, rows).bind(whole.leaf(self.border), value)
        return value if self.border is None else select(self.inside(), value, whole.around(self.border))

    def inside(self) -> Any:
        """The mask of the interior."""

        def along(d: int) -> Any:
            row, first = iota(np.int32, (self.shape[d],), 0), self.start[d]
            inside = and_(ge(row, np.int32(first)), lt(row, np.int32(first + self.size[d])))
            return broadcast_in_dim(inside, self.shape, (d,))

        return reduce(and_, map(along, self.cut))


def _interior(eqn: JaxprEqn) -> _Interior | None:
    """The interior that an equation puts among borders, if it is the larger part of the result."""
    shape = eqn.outvars[0].aval.shape
    if isinstance(eqn.op, Concatenate):
        most = max(a.aval.shape[eqn.op.dimension] for a in eqn.invars)
        inside = most < shape[eqn.op.dimension] < 2 * most and shape and eqn.outvars[0].aval.dtype.kind in "biufcV"
        return _Interior(shape, (0,) * len(shape), eqn.outvars[0], None) if inside else None
    if isinstance(eqn.op, Pad):
        value, border = eqn.invars
        start = tuple(lo for lo, _, _ in eqn.op.padding_config)
        simple = all(min(lo, hi, 0) == inner == 0 for lo, hi, inner in eqn.op.padding_config)
    elif isinstance(eqn.op, PlacedUpdate):
        border, value = eqn.invars
        start, simple = eqn.op.place, eqn.op.is_full(value.aval)
        few = [d for d, (n, whole) in enumerate(zip(value.aval.shape, shape)) if 2 * n <= whole]
        if few and simple:
            return _few_rows(eqn, few)
    else:
        return None
    size = value.aval.shape
    inside = all(at >= 0 and at + n <= whole < 2 * n for at, n, whole in zip(start, size, shape))
    if not isinstance(value, Var) or not simple or not inside or size == shape or value.aval.dtype.kind not in "biufcV":
        return None
    return _Interior(shape, start, value, border)


def _few_rows(eqn: JaxprEqn, few: Sequence[int]) -> _Interior | None:
    """The interior of an update that fills a few rows except for their ends."""
    (border, value), at = eqn.invars, eqn.op.place  # type: ignore[attr-defined]
    size, whole = value.aval.shape, border.aval.shape
    shape = tuple(size[d] if d in few else n for d, n in enumerate(whole))
    if shape == size or not isinstance(value, Var) or not isinstance(border, Var):
        return None
    start = tuple(0 if d in few else n for d, n in enumerate(at))
    return _Interior(shape, start, value, border, tuple(n if d in few else 0 for d, n in enumerate(at)))


#: an array, and the position of its first rows in the whole
_Shift = tuple[Var, tuple[int, ...]]


def _before_slice(op: Slice, start: Iterable[int]) -> tuple[int, ...]:
    """The position of the array that is sliced, from that of the slice."""
    return tuple(n - low for n, low in zip(start, op.start_indices))


class _Whole:
    """Records equations in the rows of an array of ``shape``."""

    def __init__(
        self,
        shape: tuple[int, ...],
        makers: Mapping[Var, JaxprEqn],
        users: Mapping[Var, list[JaxprEqn | None]],
        along: Sequence[int] | None = None,
    ) -> None:
        self.shape, self.makers, self.users = shape, makers, users
        #: the dimensions in which source arrays must have the same number of rows
        self.along = range(len(shape)) if along is None else along
        self.trace = JaxprTrace()
        self.leaves: dict[Var, Any] = {}
        self.values: dict[_Shift, Any] = {}
        self.sources: dict[_Shift, frozenset[_Shift]] = {}

    def equations(self, eqn: JaxprEqn, make: Callable[[_Whole], Any]) -> JaxprEqn | list[JaxprEqn]:
        """The equations that compute an equation's result by ``make``; the equation itself if no array has these
        rows."""
        if not self.may_use_rows(eqn):
            return eqn
        with set_trace(self.trace), source.at(eqn.source):
            closed = self.trace.finish([make(self)])
        if not any(self.is_of(v.aval.shape) for v in self.leaves):
            return eqn
        if not closed.jaxpr.eqns:  # the result is the array itself
            return eqn.replace(
                op=Slice((0,) * len(self.shape), self.shape, (1,) * len(self.shape)), invars=[*self.leaves]
            )
        names: dict[Var, Any] = dict(zip(closed.jaxpr.invars, self.leaves))
        names |= {v: Literal(c, v.aval) for v, c in zip(closed.jaxpr.constvars, closed.consts)}
        names[closed.jaxpr.outvars[0]] = eqn.outvars[0]  # type: ignore[index]

        def new(atom: Atom) -> Any:
            return names.get(atom, atom) if isinstance(atom, Var) else atom

        return [e.replace(invars=[*map(new, e.invars)], outvars=[*map(new, e.outvars)]) for e in closed.jaxpr.eqns]

    def is_of(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of ``shape`` has these rows."""
        return len(shape) == len(self.shape) and all(shape[d] == self.shape[d] for d in self.along)

    def may_use_rows(self, eqn: JaxprEqn) -> bool:
        """Whether an array that ``eqn`` is computed from has these rows. This is quick: positions are not looked at."""
        seen: set[Atom] = set()
        todo = [*eqn.invars]
        while todo:
            atom = todo.pop()
            if isinstance(atom, Literal) or atom in seen:
                continue
            if self.is_of(atom.aval.shape):
                return True
            seen.add(atom)
            maker = self.maker(atom)
            todo += maker.invars if maker else []
        return False

    def leaf(self, var: Var) -> Any:
        """A value of the program as a parameter of the trace."""
        if var not in self.leaves:
            self.leaves[var] = self.trace.new_arg(var.aval)
        return self.leaves[var]

    def maker(self, atom: Var) -> JaxprEqn | None:
        """The equation of a value that is recomputed in rows of the whole; None if the value is placed instead."""
        eqn = self.makers.get(atom)
        if eqn is None or len(eqn.outvars) != 1:
            return None
        op: Any = eqn.op
        match op:
            case Slice():
                return eqn if self.is_shift(eqn) else None
            case BroadcastInDim():
                return None if eqn.invars[0].aval.shape else eqn
            case Concatenate():
                return eqn
            case Elementwise():
                shapes = {a.aval.shape for a in eqn.invars} - {()}
                return eqn if shapes == {atom.aval.shape} and self.is_made_once(atom) else None
        return None

    def remaker(self, atom: Var, start: tuple[int, ...]) -> JaxprEqn | None:
        """``maker``; None for a value that has the rows of the whole as it is."""
        eqn = self.maker(atom)
        if eqn and isinstance(eqn.op, Elementwise) and atom.aval.shape == self.shape and not any(start):
            return None
        return eqn

    def is_shift(self, eqn: JaxprEqn) -> bool:
        """Whether a slice is of an array with these rows, or of a value that is recomputed; in one or several steps."""
        while isinstance(eqn.op, Slice) and all(s == 1 for s in eqn.op.strides):
            (x,) = eqn.invars
            if self.is_of(x.aval.shape):
                return True
            maker = self.makers.get(x) if isinstance(x, Var) else None
            if maker is None:
                return False
            if not isinstance(maker.op, Slice):
                return self.maker(x) is not None  # type: ignore[arg-type]
            eqn = maker
        return False

    def is_made_once(self, atom: Var) -> bool:
        """Whether recomputing a value in rows of the whole does not duplicate work: one equation uses it, or only small
        parts of it, possibly concatenated with it."""

        def takes_little(user: JaxprEqn | None) -> bool:
            return user is not None and isinstance(user.op, Slice) and 2 * user.outvars[0].aval.size <= atom.aval.size

        users = self.users[atom]
        others = [user for user in users if not takes_little(user)]
        return len(users) == 1 or not others or [user and type(user.op) for user in others] == [Concatenate]

    def value(self, atom: Atom, start: tuple[int, ...]) -> Any:
        """A value in rows of the whole, with its first rows at ``start``; the rows around it are arbitrary."""
        return run(self.known_value(atom, start))

    def known_value(self, atom: Atom, start: tuple[int, ...]) -> Call[Any]:
        if isinstance(atom, Literal):
            return atom.val
        if (atom, start) not in self.values:
            self.values[atom, start] = yield self.made(atom, start)
        return self.values[atom, start]

    def made(self, atom: Var, start: tuple[int, ...]) -> Call[Any]:
        eqn = self.remaker(atom, start) if atom.aval.shape else None
        if eqn is None:
            return self.placed(atom, start)
        op: Any = eqn.op
        with source.at(eqn.source):
            match op:
                case Slice():
                    return (yield self.known_value(eqn.invars[0], _before_slice(op, start)))
                case Concatenate():
                    return (yield self.chosen(eqn, start))
                case BroadcastInDim():
                    return self.around(eqn.invars[0])
            args = []
            for a in eqn.invars:
                args.append((yield self.known_value(a, start)))
            return op.bind(*args)

    def placed(self, var: Var, start: tuple[int, ...]) -> Any:
        """A value of the program, padded or cropped to its position."""
        x, shape = self.leaf(var), var.aval.shape
        config = [(at, whole - at - n, 0) for at, n, whole in zip(start, shape, self.shape)] if shape else []
        if config and all(max(lo, hi) <= 0 for lo, hi, _ in config):
            return slice_(x, [-at for at in start], [n - at for at, n in zip(start, self.shape)])
        return pad(x, scalar_like(0, x), config) if any(map(any, config)) else x

    def chosen(self, eqn: JaxprEqn, start: tuple[int, ...]) -> Call[Any]:
        """A concatenation as a selection between its pieces by row. A few rows for which an array would have to be
        shifted once more are read where they are, and put in place."""
        d: int = eqn.op.dimension  # type: ignore[attr-defined]
        pieces = list(self.pieces(eqn, start))
        known = self.shifts(*max(pieces, key=lambda piece: piece[0].aval.shape[d]))
        rows = []
        for a, at in pieces:
            rows.append(None if self.shifts(a, at) <= known else (yield self.row(a, at, d, known)))
        *before, (last, at) = [piece for piece, row in zip(pieces, rows) if row is None]
        value = yield self.known_value(last, at)
        for atom, at in reversed(before):
            above = lt(iota(np.int32, (self.shape[d],), 0), np.int32(at[d] + atom.aval.shape[d]))
            piece = yield self.known_value(atom, at)
            value = select(broadcast_in_dim(above, self.shape, (d,)), piece, value)
        for (_, at), row in zip(pieces, rows):
            if row is not None:
                place = tuple(at[d] if k == d else 0 for k in range(len(at)))
                value = PlacedUpdate.of(place, typeof(row).shape).bind(value, row)
        return value

    def row(self, atom: Atom, start: tuple[int, ...], d: int, known: frozenset[_Shift]) -> Call[Any]:
        """A piece as rows of the whole along dimension ``d``, computed from arrays with known shifts; None if it uses
        others, or has more rows than the shift."""
        eqn = self.maker(atom) if isinstance(atom, Var) else None
        if eqn is None:
            return None
        n, at = atom.aval.shape[d], start[d]
        for by in {at_d[d] - own[d] for var, own in self.shifts(atom, start) for x, at_d in known if x is var}:
            moved = (*start[:d], at + by, *start[d + 1 :])
            if (
                n <= abs(by)
                and 0 <= at <= self.shape[d] - n
                and 0 <= at + by <= self.shape[d] - n
                and self.shifts(atom, moved) <= known
            ):
                low, high = [0] * len(moved), list(self.shape)
                low[d], high[d] = at + by, at + by + n
                value = yield self.known_value(atom, moved)
                return Slice(tuple(low), tuple(high), (1,) * len(low)).bind(value)
        if not isinstance(eqn.op, Elementwise):
            return None
        parts = []
        for a in eqn.invars:
            part = a.val if isinstance(a, Literal) else (yield self.row(a, start, d, known))
            if part is None:
                return None
            parts.append(part)
        return eqn.op.bind(*parts)

    def pieces(self, eqn: JaxprEqn, start: tuple[int, ...]) -> Iterator[tuple[Atom, tuple[int, ...]]]:
        """The pieces of a concatenation that overlap the rows of the whole, with the positions where they begin."""
        d: int = eqn.op.dimension  # type: ignore[attr-defined]
        at = start[d]
        for atom in eqn.invars:
            end = at + atom.aval.shape[d]
            if at < self.shape[d] and end > 0:
                yield atom, (*start[:d], at, *start[d + 1 :])
            at = end

    def shifts(self, atom: Atom, start: tuple[int, ...]) -> frozenset[_Shift]:
        """The arrays from which a value is computed in rows of the whole, with their positions."""
        return run(self.known_shifts(atom, start))

    def known_shifts(self, atom: Atom, start: tuple[int, ...]) -> Call[frozenset[_Shift]]:
        if isinstance(atom, Literal) or not atom.aval.shape:
            return frozenset()
        if (atom, start) not in self.sources:
            found: list[frozenset[_Shift]] = []
            for use in self.uses(atom, start):
                found.append(frozenset([use]) if use == (atom, start) else (yield self.known_shifts(*use)))
            self.sources[atom, start] = frozenset().union(*found)
        return self.sources[atom, start]

    def uses(self, atom: Var, start: tuple[int, ...]) -> list[tuple[Atom, tuple[int, ...]]]:
        """What a value is computed from in rows of the whole: itself, if it is placed."""
        eqn = self.remaker(atom, start)
        if eqn is None:
            return [(atom, start)]
        match eqn.op:
            case Slice():
                return [(eqn.invars[0], _before_slice(eqn.op, start))]
            case Concatenate():
                return [*self.pieces(eqn, start)]
            case BroadcastInDim():
                return []
        return [(a, start) for a in eqn.invars]

    def around(self, border: Atom) -> Any:
        """A border as an array with these rows; a scalar is broadcast."""
        value = self.value(border, (0,) * border.aval.ndim)
        return value if border.aval.shape else broadcast_in_dim(value, self.shape, ())
