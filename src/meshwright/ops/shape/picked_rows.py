"""Arrays whose rows are rows of another array, in some order: what slices, reversals and concatenations of it are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshwright.core.recursion import Call, run
from meshwright.ir.jaxpr import Atom, JaxprEqn, Var
from meshwright.ir.tracing import typeof
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim, broadcast_in_dim
from meshwright.ops.shape.rearrange import Rev, rev
from meshwright.ops.shape.slice_pad import Concatenate, Slice, slice_in_dim


def rows_of(x: Any, dim: int, rows: Sequence[int]) -> list[Any]:
    """Arrays that together, one after the other, are ``rows`` of ``x`` along ``dim``: one for each run of rows."""
    return [_run(x, dim, first, step, count) for first, step, count in _runs(rows)]


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Runs of rows with equal steps of 1, -1 or 0, as (first, step, count)."""
    at = 0
    while at < len(rows):
        step = rows[at + 1] - rows[at] if at + 1 < len(rows) else 1
        end = at + 1
        while abs(step) <= 1 and end < len(rows) and rows[end] - rows[end - 1] == step:
            end += 1
        yield rows[at], step, end - at
        at = end


def _run(x: Any, dim: int, first: int, step: int, count: int) -> Any:
    if count == 1 or step > 0:
        return slice_in_dim(x, first, first + count, axis=dim)
    if step < 0:
        return rev(slice_in_dim(x, first - count + 1, first + 1, axis=dim), (dim,))
    shape = typeof(x).shape
    row = slice_in_dim(x, first, first + 1, axis=dim)
    return broadcast_in_dim(row, (*shape[:dim], count, *shape[dim + 1 :]), range(len(shape)))


class Picked(NamedTuple):
    """A value whose element ``(i, j, ...)`` is element ``(rows[0][i], rows[1][j], ...)`` of ``source``."""

    source: Atom
    rows: tuple[np.ndarray, ...]


class PickedRows:
    """Finds the values of a program that are rows of an array of ``shape``."""

    def __init__(self, shape: Sequence[int], makers: Mapping[Var, JaxprEqn]) -> None:
        self.shape, self.makers = tuple(shape), makers
        self.known: dict[Atom, Picked | None] = {}

    def of(self, atom: Atom) -> Picked | None:
        """The array of that shape which ``atom`` is rows of; itself if it has the shape. None if there is none."""
        return run(self._of(atom))

    def _of(self, atom: Atom) -> Call[Picked | None]:
        if atom not in self.known:
            self.known[atom] = yield self._found(atom)
        return self.known[atom]

    def _found(self, atom: Atom) -> Call[Picked | None]:
        if atom.aval.shape == self.shape:
            return Picked(atom, tuple(map(np.arange, self.shape)))
        eqn = self.makers.get(atom) if isinstance(atom, Var) else None
        if eqn is None or atom.aval.ndim != len(self.shape):
            return None
        match eqn.op:
            case Slice() | Rev() | BroadcastInDim():
                inner = yield self._of(eqn.invars[0])
                return inner and self._step(eqn, inner)
            case Concatenate(dimension=d):
                pieces: list[Picked] = []
                for atom in eqn.invars:
                    piece = yield self._of(atom)
                    if piece is None:
                        return None
                    pieces.append(piece)
                return _joined(pieces, d)
        return None

    def _step(self, eqn: JaxprEqn, inner: Picked) -> Picked | None:
        op: Any = eqn.op
        match op:
            case Slice():
                cuts = map(slice, op.start_indices, op.limit_indices, op.strides)
                return Picked(inner.source, tuple(rows[cut] for rows, cut in zip(inner.rows, cuts)))
            case Rev():
                return Picked(
                    inner.source, tuple(r[::-1] if d in op.dimensions else r for d, r in enumerate(inner.rows))
                )
        if eqn.invars[0].aval.ndim != len(op.shape):
            return None
        return Picked(inner.source, tuple(np.resize(r, n) if len(r) == 1 else r for r, n in zip(inner.rows, op.shape)))


def _joined(pieces: Sequence[Picked], d: int) -> Picked | None:
    """The concatenation of rows of one array along dimension ``d``, if they are equal along the others."""
    first = pieces[0]
    for piece in pieces[1:]:
        others = (np.array_equal(a, b) for k, (a, b) in enumerate(zip(first.rows, piece.rows)) if k != d)
        if piece.source is not first.source or not all(others):
            return None
    along = np.concatenate([piece.rows[d] for piece in pieces])
    return Picked(first.source, (*first.rows[:d], along, *first.rows[d + 1 :]))
