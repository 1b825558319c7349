"""Computes only the rows that are needed and not known to be zero, between slices and pads of arrays.

A spectrum of which the low frequencies are used is sliced along several dimensions at once, after all of its
transforms, and padded before all of those back. Slices and pads of one dimension commute with transforms of the others,
and with elementwise ops, so each dimension can be cut before the next is transformed, and filled after it. Then less is
computed, and along split dimensions less is sent. Rows may wrap around: frequencies of both signs are one run of rows.

Two walks find out what is needed (backward) and what may differ from zero (forward); a third computes it. Zeros that
are left out may have had another sign.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.ir.constants import known_values
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.rewrite import producers_of
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.elementwise.table import ConvertElementType, add, conj, imag, mul, neg, real, sub
from meshwright.ops.indexing.known_places import PlacedUpdate
from meshwright.ops.linalg.fft import Fft
from meshwright.ops.rows_of_a_ring import Box, Run, hull, whole
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim
from meshwright.ops.shape.cyclic import CyclicWindow
from meshwright.ops.shape.joined_pads import is_zero, zeros_of
from meshwright.ops.shape.rearrange import Transpose
from meshwright.ops.shape.slice_pad import Pad, Slice

#: makes a variable of a type for some rows of another one
Like = Callable[[Var, ShapedArray], Var]


def rows_needed(closed: ClosedJaxpr, starts: Iterable[JaxprEqn], like: Like) -> ClosedJaxpr:
    """The program with only the needed rows computed at the equations ``starts``, and at those that they are joined to
    by values of which some rows are not needed, or zero. Their regions are left alone."""
    boxes = Boxes(closed)
    joined = boxes.joined_to(starts)
    if not joined:
        return closed
    return _Rewritten(closed, Boxes(closed, joined), joined, like).closed()


class Boxes:
    """For each value of a program, the rows that are ``needed`` and those that may be ``nonzero``.

    Only the equations ``among`` are looked at, if given; all rows of the others' operands are needed.
    """

    def __init__(self, closed: ClosedJaxpr, among: Container[JaxprEqn] | None = None) -> None:
        self.closed, self.eqns = closed, closed.jaxpr.eqns
        self.zeros = zeros_of(closed)
        self.makers = producers_of(closed.jaxpr)
        self.consts = dict(zip(closed.jaxpr.constvars, closed.consts))
        self.known = {id(e) for e in self.eqns if (among is None or e in among) and _is_known(e, self.zeros)}
        self._nonzero: dict[Atom, Box] = {}
        self._needed: dict[Atom, Box] = {}
        for eqn in self.eqns:
            if id(eqn) in self.known:
                self._nonzero[eqn.outvars[0]] = self._nonzero_after(eqn)
        for atom in closed.jaxpr.outvars:
            self._needed[atom] = whole(atom.aval.shape)
        for eqn in reversed(self.eqns):
            for atom, box in zip(eqn.invars, self._needed_by(eqn)):
                if isinstance(atom, Var):
                    self._needed[atom] = hull([self._needed[atom], box]) if atom in self._needed else box

    def nonzero(self, atom: Atom) -> Box:
        return self._nonzero.get(atom) or whole(atom.aval.shape)

    def needed(self, atom: Atom) -> Box:
        return self._needed.get(atom) or whole(atom.aval.shape)

    def box(self, eqn: JaxprEqn) -> Box:
        """The rows to compute of an equation's result: those that are needed and may differ from zero, or more."""
        (out,) = eqn.outvars
        needed, nonzero = self.needed(out), self.nonzero(out)
        if id(eqn) not in self.known:
            return whole(out.aval.shape)
        box = tuple(map(_least, needed, nonzero))
        if isinstance(eqn.op, Pad):
            return tuple(b if n.contains(b) else n for b, n in zip(box, nonzero))
        if isinstance(eqn.op, Fft):
            return _transformed_whole(eqn, box)
        windows = _windows(eqn)
        if windows is not None:  # a cut out window is no ring
            return tuple(Run.whole(b.size) if b.wraps and not w.is_whole else b for b, w in zip(box, windows))
        if isinstance(eqn.op, PlacedUpdate):
            return tuple(Run.whole(b.size) if u.common(b) is None else b for b, u in zip(box, _update(eqn)))
        return box

    def joined_to(self, starts: Iterable[JaxprEqn]) -> dict[JaxprEqn, None]:
        """The equations that are joined to others by values of which not all rows have to be computed."""
        users: dict[Atom, list[JaxprEqn]] = {}
        for eqn in self.eqns:
            for atom in eqn.invars:
                users.setdefault(atom, []).append(eqn)
        found: dict[JaxprEqn, None] = {}
        left = [eqn for eqn in starts if id(eqn) in self.known]
        while left:
            eqn = left.pop()
            if eqn in found or id(eqn) not in self.known:
                continue
            found[eqn] = None
            if any(self._is_part(a) for a in eqn.outvars):
                left += users.get(eqn.outvars[0], ())
            left += [self.makers[a] for a in eqn.invars if a in self.makers and self._is_part(a)]
        parts = any(self._is_part(a) for e in found for a in (*e.invars, *e.outvars))
        return found if parts else {}

    def _is_part(self, atom: Atom) -> bool:
        return any(not n.is_whole or not z.is_whole for n, z in zip(self.needed(atom), self.nonzero(atom)))

    def _nonzero_after(self, eqn: JaxprEqn) -> Box:
        op: Any = eqn.op
        (out,) = eqn.outvars
        box = self.nonzero(eqn.invars[0])
        if isinstance(op, BroadcastInDim):
            return tuple(Run(0, 0, n) for n in out.aval.shape)
        if isinstance(op, Transpose):
            return tuple(box[d] for d in op.permutation)
        if isinstance(op, Pad):
            return tuple(map(Run.inside, box, _pad_windows(eqn)))
        if isinstance(op, PlacedUpdate):
            update = map(Run.inside, self.nonzero(eqn.invars[1]), _update(eqn))
            return hull([box, tuple(update)])
        if isinstance(op, Fft):
            return _transformed_whole(eqn, box)
        if (windows := _windows(eqn)) is not None:
            common = (run.common(w) for run, w in zip(box, windows))
            return tuple((c and c.among(w)) or Run.whole(w.length) for c, w in zip(common, windows))
        arrays = [self.nonzero(a) for a in eqn.invars if a.aval.shape]
        if op is add or op is sub:
            return hull(arrays) if len(arrays) == 2 else whole(out.aval.shape)
        if op is mul:
            first, second = eqn.invars
            for x, by in ((first, second), (second, first)):
                if x.aval.shape and self._is_finite(by):
                    return self.nonzero(x)
            return whole(out.aval.shape)
        keeps = op in (conj, neg, real, imag) or isinstance(op, ConvertElementType)
        return box if keeps else whole(out.aval.shape)

    def _is_finite(self, atom: Atom) -> bool:
        """Whether all elements of a value are known to be finite: it may be multiplied with what is left out."""
        ways, dtypes = (BroadcastInDim, ConvertElementType), [atom.aval.dtype]
        while isinstance(atom, Var) and (maker := self.makers.get(atom)) is not None and isinstance(maker.op, ways):
            atom = maker.invars[0]
            dtypes.append(atom.aval.dtype)
        value = atom.val if isinstance(atom, Literal) else self.consts.get(atom)
        array = None if value is None else known_values(value)
        if array is None or any(dtype.kind not in "biufc" for dtype in dtypes):
            return False
        with np.errstate(all="ignore"):  # large numbers become infinite in narrow types
            return all(np.isfinite(array := array.astype(dtype)).all() for dtype in reversed(dtypes))

    def _needed_by(self, eqn: JaxprEqn) -> Sequence[Box]:
        op: Any = eqn.op
        if id(eqn) not in self.known:
            return [whole(a.aval.shape) for a in eqn.invars]
        (out,) = eqn.outvars
        box, shape = self.needed(out), eqn.invars[0].aval.shape
        if isinstance(op, Transpose):
            return [tuple(box[op.permutation.index(d)] for d in range(len(box)))]
        if isinstance(op, Pad):
            common = (run.common(w) for run, w in zip(box, _pad_windows(eqn)))
            return [tuple((c and c.among(w)) or Run.whole(w.length) for c, w in zip(common, _pad_windows(eqn))), ()]
        if isinstance(op, PlacedUpdate):
            return [box, whole(eqn.invars[1].aval.shape)]
        if isinstance(op, Fft):
            return [(*box[: -len(op.fft_lengths)], *whole(shape[-len(op.fft_lengths) :]))]
        if (windows := _windows(eqn)) is not None:
            return [tuple(Run.whole(run.size) if run.is_whole else run for run in map(Run.inside, box, windows))]
        return [box if a.aval.shape else () for a in eqn.invars]


def _least(needed: Run, nonzero: Run) -> Run:
    common = needed.common(nonzero)
    if common is None:
        return min(needed, nonzero, key=lambda run: run.length)
    return common if common.length else needed


def _is_known(eqn: JaxprEqn, zeros: Container[Atom]) -> bool:
    """Whether it is known which rows of operands an equation needs for some of its result."""
    op: Any = eqn.op
    if len(eqn.outvars) != 1 or op.has_effects or 0 in eqn.outvars[0].aval.shape or not eqn.outvars[0].aval.shape:
        return False
    if any(0 in a.aval.shape for a in eqn.invars):
        return False
    if isinstance(op, Elementwise):
        shape = eqn.outvars[0].aval.shape
        return all(a.aval.shape in ((), shape) for a in eqn.invars) and any(a.aval.shape for a in eqn.invars)
    if isinstance(op, Pad):
        whole_rows = all(low >= 0 and high >= 0 and not inner for low, high, inner in op.padding_config)
        return whole_rows and _is_zero(eqn.invars[1], zeros)
    if isinstance(op, PlacedUpdate):
        return op.is_full(eqn.invars[1].aval)
    if isinstance(op, BroadcastInDim):
        return not eqn.invars[0].aval.shape and _is_zero(eqn.invars[0], zeros)
    return isinstance(op, (Transpose, Fft)) or _windows(eqn) is not None


def _transformed_whole(eqn: JaxprEqn, box: Box) -> Box:
    """A box of a transform's result with all rows of transformed dimensions."""
    rank = len(eqn.op.fft_lengths)  # type: ignore[attr-defined]
    return (*box[:-rank], *whole(eqn.outvars[0].aval.shape[-rank:]))


def _is_zero(atom: Atom, zeros: Container[Atom]) -> bool:
    value = known_values(atom.val) if isinstance(atom, Literal) else None
    return is_zero(atom, zeros) or (value is not None and value.dtype.kind == "c" and not value.any())


def _windows(eqn: JaxprEqn) -> Box | None:
    """For an equation that takes a window of its operand, the rows that it takes; None for others."""
    op: Any = eqn.op
    shape = eqn.invars[0].aval.shape if eqn.invars else ()
    if isinstance(op, Slice) and all(s == 1 or n == m for s, n, m in zip(op.strides, shape, eqn.outvars[0].aval.shape)):
        return tuple(Run(a % n, b - a, n) for a, b, n in zip(op.start_indices, op.limit_indices, shape))
    if isinstance(op, CyclicWindow) and op.length <= shape[op.dimension]:
        return (*whole(shape[: op.dimension]), Run(op.start, op.length, shape[op.dimension]),
                *whole(shape[op.dimension + 1 :]))  # fmt: skip
    return None


def _pad_windows(eqn: JaxprEqn) -> Box:
    """The rows of a padded array that are those of the operand."""
    op: Any = eqn.op
    sides = zip(op.padding_config, eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape)
    return tuple(Run(low, n, size) for (low, _, _), n, size in sides)


def _update(eqn: JaxprEqn) -> Box:
    """The rows of the result that an update writes."""
    op: Any = eqn.op
    return tuple(map(Run, op.place, eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape))


class _Rewritten:
    """The equations of a program, with some rows of values computed at the equations ``joined``."""

    def __init__(self, closed: ClosedJaxpr, boxes: Boxes, joined: Mapping[JaxprEqn, None], like: Like) -> None:
        self.program, self.boxes, self.like = closed, boxes, like
        #: what is there of a value: which rows, and the variable that has them
        self.there: dict[Atom, tuple[Box, Atom]] = {}
        #: by a variable, the rows that it has, and those made of it: values that move rows may share one
        self.made: dict[tuple[Atom, Box, Box], Atom] = {}
        self.eqns: list[JaxprEqn] = []
        for eqn in closed.jaxpr.eqns:
            if eqn in joined:
                box = boxes.box(eqn)
                self.there[eqn.outvars[0]] = box, self.computed(eqn, box)
            else:
                self.eqns.append(eqn.replace(invars=[self.rows(a, whole(a.aval.shape), eqn) for a in eqn.invars]))

    def closed(self) -> ClosedJaxpr:
        jaxpr = self.program.jaxpr
        last = jaxpr.eqns[-1]
        outs = [self.rows(a, whole(a.aval.shape), last) for a in jaxpr.outvars]
        return self.program.replace(jaxpr=jaxpr.replace(eqns=self.eqns, outvars=outs))

    def computed(self, eqn: JaxprEqn, box: Box) -> Atom:
        """Some rows of an equation's result."""
        op: Any = eqn.op
        (out,) = eqn.outvars
        if isinstance(op, BroadcastInDim):
            return self.add(eqn, BroadcastInDim(_sizes(box), ()), eqn.invars, out)
        if isinstance(op, Pad):
            inner = tuple(b.among(w) or Run.whole(w.length) for b, w in zip(box, _pad_windows(eqn)))
            return self.rows(eqn.invars[0], inner, eqn)
        if isinstance(op, Transpose):
            before = tuple(box[op.permutation.index(d)] for d in range(len(box)))
            return self.add(eqn, op, [self.rows(eqn.invars[0], before, eqn)], out)
        if isinstance(op, PlacedUpdate):
            return self.updated(eqn, box)
        if isinstance(op, Fft):
            rank = len(op.fft_lengths)
            before = (*box[:-rank], *whole(eqn.invars[0].aval.shape[-rank:]))
            return self.add(eqn, op, [self.rows(eqn.invars[0], before, eqn)], out)
        if (windows := _windows(eqn)) is not None:
            return self.rows(eqn.invars[0], tuple(map(Run.inside, box, windows)), eqn)
        return self.add(eqn, op, [self.rows(a, box, eqn) if a.aval.shape else a for a in eqn.invars], out)

    def updated(self, eqn: JaxprEqn, box: Box) -> Atom:
        """Some rows of an updated array."""
        x, update = eqn.invars
        kept = self.rows(x, box, eqn)
        there = [u.common(b) for u, b in zip(_update(eqn), box)]
        if not all(run is not None and run.length for run in there):
            return kept
        rows = tuple(run.among(u) for run, u in zip(there, _update(eqn)))  # type: ignore[union-attr]
        place = [run.among(b) for run, b in zip(there, box)]  # type: ignore[union-attr]
        assert all(rows) and all(place)
        part = self.rows(update, rows, eqn)  # type: ignore[arg-type]
        op = PlacedUpdate.of(tuple(p.start for p in place), [p.length for p in place])  # type: ignore[union-attr]
        return self.add(eqn, op, [kept, part], eqn.outvars[0])

    def rows(self, atom: Atom, box: Box, at: JaxprEqn) -> Atom:
        """Rows of a value, made from those that there are; those that there are not are zero."""
        there, found = self.there.get(atom, (whole(atom.aval.shape), atom))
        if box == there or not box:
            return found
        key = found, there, box
        if key not in self.made:
            if not all(a.contains(b) or b.contains(a) for a, b in zip(there, box)):
                found, there = self.resized(atom, found, there, whole(atom.aval.shape), at), whole(atom.aval.shape)
            self.made[key] = self.resized(atom, found, there, box, at)
        return self.made[key]

    def resized(self, atom: Atom, found: Atom, there: Box, box: Box, at: JaxprEqn) -> Atom:
        """The rows ``box`` of a value, of which the rows ``there`` were ``found``."""
        turns: list[CyclicWindow] = []
        cut: list[tuple[int, int]] = []
        filled: list[tuple[int, int, int]] = []
        for d, (a, b) in enumerate(zip(there, box)):
            low, high, before, after = 0, a.length, 0, 0
            if a != b and a.contains(b):
                if (place := b.among(a)) is None or place.wraps:
                    turns.append(CyclicWindow(d, (b.start - a.start) % a.size, b.length))
                else:
                    low, high = place.start, place.start + place.length
            elif a != b:
                if b.is_whole and a.wraps:
                    after = a.size - a.length
                    turns.append(CyclicWindow(d, a.size - a.start, a.size))
                else:
                    before = (a.start - b.start) % a.size
                    after = b.length - before - a.length
            cut.append((low, high))
            filled.append((before, after, 0))
        if any(span != (0, n) for span, n in zip(cut, found.aval.shape)):
            op: Any = Slice(tuple(a for a, _ in cut), tuple(b for _, b in cut), (1,) * len(cut))
            found = self.add(at, op, [found], atom)
        if any(map(any, filled)):
            zero = Literal(np.zeros((), found.aval.dtype)[()], found.aval.update(shape=()))
            found = self.add(at, Pad(tuple(filled)), [found, zero], atom)
        for op in turns:
            found = self.add(at, op, [found], atom)
        return found

    def add(self, at: JaxprEqn, op: Any, operands: Sequence[Atom], of: Atom) -> Var:
        """The result of a new equation: rows of the value ``of``, or this one if it is all of it."""
        aval = op.infer(*(a.aval for a in operands))
        same = of in at.outvars and aval.shape == of.aval.shape and of not in self.there
        assert isinstance(of, Var)
        out = of if same else self.like(of, aval)
        self.eqns.append(at.replace(op=op, invars=list(operands), outvars=[out]))
        return out


def _sizes(box: Box) -> tuple[int, ...]:
    return tuple(run.length for run in box)
