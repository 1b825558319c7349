"""Turns stacks of concatenations into concatenations of stacks, where some of these are arrays that exist already.

Programs that extend each row of an array in its own way (the faces of a cubed sphere by edges of their neighbours)
take the rows, concatenate, and stack the results. Along a split dimension each row would be moved to the tiles of its
own concatenation. As one concatenation of the array with stacks of what extends its rows, the array moves once.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var, all_eqns
from meshwright.ir.op import Op
from meshwright.ir.rewrite import in_regions, replaced, uses_of
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim
from meshwright.ops.shape.rearrange import Reshape, Squeeze
from meshwright.ops.shape.slice_pad import Concatenate, Slice


def joined_stacks(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with concatenations of stacks in place of stacks of concatenations that contain all rows of an
    array, in order."""
    if sum(isinstance(e.op, Concatenate) for e in all_eqns(closed.jaxpr)) < 2:
        return closed
    uses = uses_of(closed.jaxpr)
    makers: dict[Atom, JaxprEqn] = {}

    def joined(eqn: JaxprEqn) -> JaxprEqn | list[JaxprEqn]:
        if eqn.op.holds_jaxprs:
            return in_regions(eqn, joined_stacks)
        makers.update(dict.fromkeys(eqn.outvars, eqn))
        rows = _rows_stacked(eqn, makers)
        if rows is None or any(len(uses.get(x, ())) != 1 for x in rows if isinstance(x, Var)):
            return eqn
        found = _Stacks(makers, eqn)
        return found.eqns if found.written(rows, eqn.outvars[0]) else eqn

    return replaced(closed, joined)


def _rows_stacked(eqn: JaxprEqn, makers: dict[Atom, JaxprEqn]) -> list[Atom] | None:
    """What an equation stacks: arrays that get a dimension, and are concatenated along it."""
    if not isinstance(eqn.op, Concatenate) or len(eqn.invars) < 2:
        return None
    rows = []
    for atom in eqn.invars:
        maker = makers.get(atom)
        if maker is None or not isinstance(maker.op, (Reshape, BroadcastInDim)):
            return None
        (x, *_) = maker.invars
        if _with_row(x.aval.shape, eqn.op.dimension) != atom.aval.shape or not _keeps_order(maker.op):
            return None
        rows.append(x)
    return rows


def _with_row(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], 1, *shape[dim:])


def _keeps_order(op: Op) -> bool:
    """Whether an op that changes the shape, but not the number of elements, keeps their order."""
    return not isinstance(op, BroadcastInDim) or sorted(op.broadcast_dimensions) == [*op.broadcast_dimensions]


@dataclass(frozen=True)
class _Joined:
    """A concatenation, along ``dim`` of the result, of stacks."""

    dim: int
    stacks: tuple[Stacked, ...]


#: a stack: an array that is one already, arrays to stack, or a concatenation of stacks
Stacked = Atom | tuple[Atom, ...] | _Joined


class _Stacks:
    """Writes the stack ``eqn`` as a concatenation of stacks."""

    def __init__(self, makers: dict[Atom, JaxprEqn], eqn: JaxprEqn) -> None:
        assert isinstance(eqn.op, Concatenate)
        self.makers, self.eqn, self.dim = makers, eqn, eqn.op.dimension
        self.eqns: list[JaxprEqn] = []

    def written(self, rows: Sequence[Atom], out: Var) -> bool:
        """Whether that is possible, and an array is found that is one of the stacks; if so, with ``eqns`` for it."""
        found = self.stacked(rows)
        if not isinstance(found, _Joined) or not _has_array(found):
            return False
        self.write(found)
        self.eqns[-1] = self.eqns[-1].replace(outvars=[out])
        return True

    def stacked(self, rows: Sequence[Atom]) -> Stacked:
        if (array := self.array(rows)) is not None:
            return array
        joins = [m for m in map(self.makers.get, rows) if m is not None and isinstance(m.op, Concatenate)]
        kinds = {(m.op, tuple(a.aval for a in m.invars)) for m in joins}
        if len(joins) < len(rows) or len(kinds) > 1:
            return tuple(rows)
        dim = joins[0].op.dimension  # type: ignore[attr-defined]
        return _Joined(dim + (dim >= self.dim), tuple(map(self.stacked, zip(*(m.invars for m in joins)))))

    def array(self, rows: Sequence[Atom]) -> Atom | None:
        """The array whose rows along the stacked dimension these are, all of them in order."""
        arrays = {self.array_of(x, number) for number, x in enumerate(rows)}
        found = arrays.pop() if len(arrays) == 1 else None
        return found if found is not None and found.aval.shape[self.dim] == len(rows) else None

    def array_of(self, x: Atom, number: int) -> Atom | None:
        """The array whose row ``number`` this is."""
        drops = self.makers.get(x)
        cut = drops.invars[0] if drops is not None and isinstance(drops.op, (Reshape, Squeeze)) else None
        cuts = self.makers.get(cut) if cut is not None and cut.aval.shape == _with_row(x.aval.shape, self.dim) else None
        if cuts is None or not isinstance(cuts.op, Slice):
            return None
        array = cuts.invars[0]
        start, limit = [0] * array.aval.ndim, [*array.aval.shape]
        start[self.dim], limit[self.dim] = number, number + 1
        return array if cuts.op == Slice(tuple(start), tuple(limit), (1,) * array.aval.ndim) else None

    def write(self, found: Stacked) -> Atom:
        """Record the equations of a stack; returns their result."""
        if isinstance(found, _Joined):
            return self.record(Concatenate(found.dim), [self.write(s) for s in found.stacks])
        if isinstance(found, tuple):
            shape = _with_row(found[0].aval.shape, self.dim)
            return self.record(Concatenate(self.dim), [self.record(Reshape(shape), [x]) for x in found])
        return found

    def record(self, op: Op, operands: Sequence[Atom]) -> Var:
        result = Var(op.infer(*(x.aval for x in operands)))
        self.eqns.append(self.eqn.replace(op=op, invars=operands, outvars=[result]))
        return result


def _has_array(found: Stacked) -> bool:
    if isinstance(found, _Joined):
        return any(map(_has_array, found.stacks))
    return not isinstance(found, tuple)
