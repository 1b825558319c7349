"""Ops that join parts of one size along a dimension, take one of them out, or pad one with others.

A dimension of such parts may be cut into tiles that each have rows of all parts: ``(tiles, parts, rows of a part)``.
Then the op acts on the second of these three, and moves nothing from tile to tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from meshwright.ir.jaxpr import Atom, JaxprEqn, Var
from meshwright.ir.op import Op
from meshwright.ops.indexing.gather_add import Gather
from meshwright.ops.shape.cyclic import CyclicWindow
from meshwright.ops.shape.slice_pad import Concatenate, Pad, Slice
from meshwright.sharding.rule import PARALLEL, ShardingRule

T = TypeVar("T")


def joined_along(eqn: JaxprEqn) -> tuple[int, Sequence[Atom]] | None:
    """The dimension along which an equation joins parts of one size, and the parts; None if it does not.

    A cyclic window may be a number of copies.
    """
    op, parts = eqn.op, list(eqn.invars)
    if not isinstance(op, (Concatenate, CyclicWindow)):
        return None
    d, size = op.dimension, parts[0].aval.shape[op.dimension]
    if isinstance(op, CyclicWindow):
        parts *= op.length // size if op.start == op.length % size == 0 else 0
    same = all(isinstance(a, Var) and a.aval.shape[d] == size for a in parts)
    return (d, parts) if same and len(parts) > 1 else None


def moves_parts(eqn: JaxprEqn, v: Var, d: int, count: int, size: int) -> bool:
    """Whether an equation joins ``count`` parts of a ``size`` as dimension ``d`` of ``v``, takes one of them out of it,
    or pads one."""
    match eqn.op:
        case Slice(starts, limits, strides) if v is eqn.invars[0]:
            return strides[d] == 1 and starts[d] % size == 0 and limits[d] - starts[d] == size
        case Pad(config) if v is eqn.outvars[0]:
            low, _, inner = config[d]
            x = eqn.invars[0]
            return isinstance(x, Var) and x.aval.shape[d] == size and low % size == inner == 0
    found = joined_along(eqn) if v is eqn.outvars[0] else None
    return found is not None and found[0] == d and len(found[1]) == count


def on_tiles(op: Op, d: int, tiles: int, count: int, size: int) -> Op:
    """The op on values whose dimension ``d`` is cut into tiles, parts, and rows of a part."""

    def cut(given: Sequence[T], *own: T) -> tuple[T, ...]:
        return (*given[:d], *own, *given[d + 1 :])

    match op:
        case Slice(starts, limits, strides):
            at = starts[d] // size
            return Slice(cut(starts, 0, at, 0), cut(limits, tiles, at + 1, size // tiles), cut(strides, 1, 1, 1))
        case Pad(config):
            low, none = config[d][0] // size, (0, 0, 0)
            return Pad(cut(config, none, (low, count - 1 - low, 0), none))
    return Concatenate(d + 1)


def keeps_rows(op: Op, rule: ShardingRule, f: int) -> bool:
    """Whether what an op does with rows of a factor does not depend on where they are: it moves others."""
    factor = rule.factors[f]
    if isinstance(op, Gather):  # rows of the indices
        mine = not factor.indexed and not any(f in dims for dims in rule.operands[0])
        return mine and factor.kind == PARALLEL and not op.indices_are_sorted
    return isinstance(op, (Slice, Concatenate, Pad)) and factor.kind == PARALLEL
