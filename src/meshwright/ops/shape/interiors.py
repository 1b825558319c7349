"""What is computed of the interior of an array, and put back among its borders, in the array's own rows.

Stencils are written as slices of one array, each shifted by a row, joined element by element, and padded or set into
the array again. The interior has tiles of its own, which lie askew to the array's: along a split dimension the slices
would send several rows, and the way back some more, or everything. In rows of the whole array each slice is a shift by
its distance, of which a neighbour has what a tile lacks; what the border gets by it is not taken.

Slices of padded arrays, and of windows of periodic ones, are shifts in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np

from meshwright.core import source
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var, all_eqns
from meshwright.ir.rewrite import in_regions, producers_of, replaced, use_counts
from meshwright.ir.tracing import trace_to_jaxpr
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.elementwise.table import and_, ge, lt, scalar_like, select
from meshwright.ops.indexing.dynamic_slice import DynamicUpdateSlice
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim, broadcast_in_dim, iota
from meshwright.ops.shape.cyclic import CyclicWindow
from meshwright.ops.shape.slice_pad import Pad, Slice, pad


def interiors(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with interiors in rows of the whole array, and slices of padded arrays as shifts of these."""
    if not any(isinstance(e.op, (Pad, DynamicUpdateSlice, CyclicWindow)) for e in all_eqns(jaxpr.jaxpr)):
        return jaxpr
    makers = producers_of(jaxpr.jaxpr)
    uses = use_counts(jaxpr.jaxpr.eqns, jaxpr.jaxpr.outvars)

    def rewritten(eqn: JaxprEqn) -> JaxprEqn | list[JaxprEqn]:
        if eqn.op.holds_jaxprs:
            return in_regions(eqn, interiors)
        if isinstance(eqn.op, Slice):
            return _of_padded(eqn, makers)
        interior = _interior(eqn)
        return eqn if interior is None else _Whole(interior, makers, uses).equations(eqn)

    return replaced(jaxpr, rewritten)


def _of_padded(eqn: JaxprEqn, makers: Mapping[Var, JaxprEqn]) -> JaxprEqn | list[JaxprEqn]:
    """A slice of a padded array as that array padded and cut, and of a periodic window as another window."""
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


@dataclass(frozen=True)
class _Interior:
    """The rows ``start`` to ``start + size`` of an array of ``shape``, in each dimension; ``value``: what stands there,
    ``border``: the array, or the scalar, that stands around it."""

    shape: tuple[int, ...]
    start: tuple[int, ...]
    value: Var
    border: Atom

    @property
    def size(self) -> tuple[int, ...]:
        return self.value.aval.shape

    @property
    def cut(self) -> list[int]:
        """The dimensions in which it is less than the array."""
        return [d for d, (n, whole) in enumerate(zip(self.size, self.shape)) if n != whole]


def _interior(eqn: JaxprEqn) -> _Interior | None:
    """What an equation puts among borders, if that is the larger part of the result."""
    shape = eqn.outvars[0].aval.shape
    if isinstance(eqn.op, Pad):
        value, border = eqn.invars
        start = tuple(lo for lo, _, _ in eqn.op.padding_config)
        simple = all(min(lo, hi, 0) == inner == 0 for lo, hi, inner in eqn.op.padding_config)
    elif isinstance(eqn.op, DynamicUpdateSlice):
        border, value, *starts = eqn.invars
        start = tuple(int(a.val) if isinstance(a, Literal) else -1 for a in starts)
        simple = True
    else:
        return None
    size = value.aval.shape
    inside = all(at >= 0 and at + n <= whole < 2 * n for at, n, whole in zip(start, size, shape))
    if not isinstance(value, Var) or not simple or not inside or size == shape or value.aval.dtype.kind not in "biufcV":
        return None
    return _Interior(shape, start, value, border)


class _Whole:
    """Makes the equations of an interior in rows of the whole array."""

    def __init__(self, interior: _Interior, makers: Mapping[Var, JaxprEqn], uses: Mapping[Var, int]) -> None:
        self.interior, self.makers, self.uses = interior, makers, uses
        self.leaves: dict[Atom, None] = {}
        self.sliced = False

    def equations(self, eqn: JaxprEqn) -> JaxprEqn | list[JaxprEqn]:
        self.find(self.interior.value)
        if isinstance(eqn.op, Pad) and not self.sliced:
            return eqn
        self.leaves[self.interior.border] = None
        given = [a for a in self.leaves if isinstance(a, Var)]
        closed = trace_to_jaxpr(lambda *args: [self.result(dict(zip(given, args)), eqn)], [v.aval for v in given])
        names: dict[Var, Any] = dict(zip(closed.jaxpr.invars, given))
        names |= {v: Literal(c, v.aval) for v, c in zip(closed.jaxpr.constvars, closed.consts)}
        names[closed.jaxpr.outvars[0]] = eqn.outvars[0]  # type: ignore[index]

        def new(atom: Atom) -> Any:
            return names.get(atom, atom) if isinstance(atom, Var) else atom

        return [e.replace(invars=[*map(new, e.invars)], outvars=[*map(new, e.outvars)]) for e in closed.jaxpr.eqns]

    def maker(self, atom: Atom) -> JaxprEqn | None:
        """The equation that makes a value which is made again in rows of the whole, or None of one that is padded."""
        eqn = self.makers.get(atom) if isinstance(atom, Var) else None
        if eqn is None or len(eqn.outvars) != 1:
            return None
        op: Any = eqn.op
        if isinstance(op, Slice):
            (x,) = eqn.invars
            whole = all(x.aval.shape[d] == n for d, n in enumerate(self.interior.shape))
            return eqn if whole and all(s == 1 for s in op.strides) else None
        if isinstance(op, BroadcastInDim):
            return None if eqn.invars[0].aval.shape else eqn
        shapes = {a.aval.shape for a in eqn.invars} - {()}
        alone = isinstance(op, Elementwise) and self.uses[eqn.outvars[0]] == 1
        return eqn if alone and shapes == {self.interior.size} else None

    def find(self, atom: Atom) -> None:
        """Note what the value is made of in the end."""
        eqn = self.maker(atom)
        if eqn is None or not isinstance(eqn.op, Elementwise):
            self.sliced |= eqn is not None and isinstance(eqn.op, Slice)
            self.leaves.update(dict.fromkeys([atom] if eqn is None else eqn.invars))
            return
        for operand in eqn.invars:
            self.find(operand)

    def result(self, env: Mapping[Atom, Any], eqn: JaxprEqn) -> Any:
        with source.at(eqn.source):
            value = self.value(self.interior.value, dict(env))
            border = _read(self.interior.border, env)
            if not self.interior.border.aval.shape:
                border = broadcast_in_dim(border, self.interior.shape, ())
            return select(self.inside(), value, border)

    def inside(self) -> Any:
        """Where the interior is."""

        def along(d: int) -> Any:
            row, first = iota(np.int32, (self.interior.shape[d],), 0), self.interior.start[d]
            last = first + self.interior.size[d]
            return broadcast_in_dim(and_(ge(row, np.int32(first)), lt(row, np.int32(last))), self.interior.shape, (d,))

        return reduce(and_, map(along, self.interior.cut))

    def value(self, atom: Atom, env: dict[Atom, Any]) -> Any:
        """A value of the interior in rows of the whole, anything at the border."""
        if isinstance(atom, Literal) or not atom.aval.shape:
            return _read(atom, env)
        eqn, there = self.maker(atom), self.interior
        if eqn is None:
            ends = zip(there.start, there.size, there.shape)
            return _shifted(_read(atom, env), [(at, whole - at - n, 0) for at, n, whole in ends])
        with source.at(eqn.source):
            op: Any = eqn.op
            if isinstance(op, Slice):
                by = [at - start for at, start in zip(there.start, op.start_indices)]
                return _shifted(_read(eqn.invars[0], env), [(n, -n, 0) for n in by])
            if isinstance(op, BroadcastInDim):
                return broadcast_in_dim(_read(eqn.invars[0], env), there.shape, ())
            return op.bind(*[self.value(a, env) for a in eqn.invars])


def _read(atom: Atom, env: Mapping[Atom, Any]) -> Any:
    return atom.val if isinstance(atom, Literal) else env[atom]


def _shifted(x: Any, config: list[tuple[int, int, int]]) -> Any:
    return x if not any(map(any, config)) else pad(x, scalar_like(0, x), config)
