"""Lets scans write rows where they have read them.

A scan over the layers of a decoder reads a layer's row of the cache, changes elements of it, and returns the row: there
are two caches, and the second is written whole. If nothing else reads the first, it is made the carry of the loop, of
which each run changes its row, as people write such loops by hand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from meshwright.ir.passes import Pass
from meshwright.ir.rewrite import Replacement, producers_of, replaced, uses_of
from meshwright.lowering.narrow_bits import called
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.control.scan import Scan


def in_place(donated: Collection[int]) -> Pass:
    """The pass for a program whose arguments with these numbers are donated."""
    return Pass(
        "rows in place", lambda j: _in_place(j, [j.jaxpr.invars[n] for n in donated]),
        "Scans change rows of arrays that nothing else reads in their place.",
    )  # fmt: skip


def _in_place(jaxpr: ClosedJaxpr, own: Collection[Var]) -> ClosedJaxpr:
    """``own``: the parameters whose memory may be written."""
    memory = _Memory(jaxpr.jaxpr, own)

    def rule(eqn: JaxprEqn) -> Replacement:
        eqn = _in_loops(eqn)
        op = eqn.op
        if not isinstance(op, Scan):
            return eqn
        first = op.num_consts + op.num_carry
        rows = {n - first: row for n, row in _updated_rows(op) if memory.is_free(eqn, n)}
        return called(partial(_scan, op, rows), eqn.invars, eqn.outvars, eqn.source) if rows else eqn

    return replaced(jaxpr, rule)


def _scan(op: Scan, in_place: Mapping[int, int], *operands: Any) -> list[Any]:
    return op.expand(*operands, in_place=in_place)


def _in_loops(eqn: JaxprEqn) -> JaxprEqn:
    """An equation with rewritten bodies: a loop may write to what it carries, and to its slices."""
    if not isinstance(eqn.op, ControlOp):
        return eqn
    bodies = eqn.op.bodies()
    own = [[v for part in body.split(body.jaxpr.jaxpr.invars)[1:] for v in part] for body in bodies]
    after = [replace(body, jaxpr=_in_place(body.jaxpr, vs)) for body, vs in zip(bodies, own)]
    same = all(a.jaxpr is b.jaxpr for a, b in zip(after, bodies))
    return eqn if same else eqn.replace(op=eqn.op.with_bodies(after))


class _Memory:
    """Whose memory equations of a program may write to."""

    def __init__(self, jaxpr: Jaxpr, own: Collection[Var]) -> None:
        self.own = set(own)
        self.makers = producers_of(jaxpr)
        self.uses = uses_of(jaxpr)

    def is_free(self, eqn: JaxprEqn, operand: int) -> bool:
        """Whether nothing but ``eqn`` reads this operand."""
        atom = eqn.invars[operand]
        while isinstance(atom, Var) and len(self.uses.get(atom, ())) == 1:
            maker = self.makers.get(atom)
            if maker is None:
                return atom in self.own
            if not maker.op.is_view:
                return True
            atom = maker.invars[maker.outvars.index(atom)]
        return False


def _updated_rows(op: Scan) -> Iterator[tuple[int, int]]:
    """The arrays of which a scan replaces each row by an update of it: their numbers among the operands, and those of
    the updated rows among the stacked results.

    Whatever else reads a row does so for the update. Compilers could not tell otherwise that it comes first, and would
    copy the array in each run.
    """
    if not 1 <= op.unroll < op.length:
        return  # it is no loop
    body = op.jaxpr.jaxpr
    uses, makers = uses_of(body), producers_of(body)
    stacked = {out: n for n, out in reversed(list(enumerate(body.outvars[op.num_carry :])))}
    for n, row in list(enumerate(body.invars))[op.num_consts + op.num_carry :]:
        value, found = row, None
        while (update := _update(value, uses.get(value, []), makers)) is not None:
            (value,) = update.outvars
            found = stacked.get(value, found)
        if found is not None:
            stacked = {out: m for out, m in stacked.items() if m != found}
            yield n, found


def _update(value: Var, uses: Sequence[JaxprEqn | None], makers: Mapping[Var, JaxprEqn]) -> JaxprEqn | None:
    """The equation that updates a value after all others have read it; None if there is none."""
    readers = [e for e in uses if e is not None]
    updates = [e for e in readers if e.op.update_operand is not None and e.invars[0] is value]
    if len(updates) != 1 or len(readers) < len(uses):
        return None
    (update,) = updates
    before, rest = set[int](), [a for a in update.invars[1:] if isinstance(a, Var)]
    while rest:
        eqn = makers.get(rest.pop())
        if eqn is not None and id(eqn) not in before:
            before.add(id(eqn))
            rest += [a for a in eqn.invars if isinstance(a, Var)]
    return update if all(e is update or id(e) in before for e in readers) and value not in update.invars[1:] else None
