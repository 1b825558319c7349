"""Rows of groups that are complete on the device that has their groups, and that nothing else reads.

In a mixture whose experts are split over devices, each device multiplies the rows of its own experts; the other rows of
its result are zero, and a sum over devices completes them. But the next product of the same experts reads only the rows
of its own, which are complete before: between the two, whatever treats rows by themselves needs no sum.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn, Literal, Var
from meshwright.ir.rewrite import producers_of, uses_of
from meshwright.ops.collective.all_reduce import AllReduce
from meshwright.ops.collective.base import Collective
from meshwright.ops.products.ragged import RaggedDot
from meshwright.sharding import Layout
from meshwright.sharding.rule import PARALLEL, ShardingRule
from meshwright.spmd.factors import Axes
from meshwright.spmd.rules import eqn_rule


@dataclass(frozen=True)
class OwnRows:
    """That the rows of a value along ``dim`` are those of these groups, which are split over axes."""

    dim: int
    over: tuple[str, ...]
    groups: Hashable


def grouped(eqn: JaxprEqn) -> RaggedDot | None:
    """The op of a product with groups; None for other equations."""
    return eqn.op if isinstance(eqn.op, RaggedDot) else None


def read_by_own(jaxpr: Jaxpr) -> set[Var]:
    """The values of a program before it is partitioned of which only rows of the same groups are read: results of
    products with groups, and what is computed of these row by row before others read it."""
    if not any(map(grouped, jaxpr.eqns)):
        return set()
    rows = RowsOfGroups(jaxpr)
    for eqn in jaxpr.eqns:
        if grouped(eqn) and (own := rows.made(eqn.outvars[0])) is not None:
            rows.only_read(eqn.outvars[0], own)
    return {var for (var, _), is_own in rows.read.items() if is_own}


class ReadByOwn:
    """While a program is partitioned, the axes over which sums need not be completed, as :func:`read_by_own` tells."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.values = read_by_own(jaxpr)
        self.axes: dict[Atom, Axes] = {}

    def _tells_of(self, eqn: JaxprEqn) -> bool:
        return bool(self.values) and len(eqn.outvars) == 1 and eqn.outvars[0] in self.values

    def over(self, eqn: JaxprEqn) -> Axes:
        """The axes over which operands of an equation need not be completed."""
        return tuple(dict.fromkeys(a for atom in eqn.invars if isinstance(atom, Var) for a in self.axes.get(atom, ())))

    def factor(self, eqn: JaxprEqn, rule: ShardingRule) -> int | None:
        """The factor of a product with groups over which its result need not be completed."""
        op = grouped(eqn)
        if op is None or op.group is None or not self._tells_of(eqn):
            return None
        return rule.operands[1][op.group][0]

    def passes(self, eqn: JaxprEqn) -> Axes:
        """The axes over which a result need not be completed because operands need not."""
        return self.over(eqn) if self._tells_of(eqn) and grouped(eqn) is None else ()

    def computed(self, eqn: JaxprEqn, layouts: Sequence[Layout]) -> None:
        """Record an equation whose operands have these layouts."""
        if self._tells_of(eqn):
            op = grouped(eqn)
            self.axes[eqn.outvars[0]] = self.over(eqn) if op is None else layouts[1].dims[op.group or 0]


class RowsOfGroups:
    """What the equations of a program make of rows, and read of them."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.makers = producers_of(jaxpr)
        self.uses = uses_of(jaxpr)
        self.numbers = _numbered(jaxpr)
        self.read: dict[tuple[Var, OwnRows], bool] = {}

    def are_own(self, eqn: JaxprEqn) -> bool:
        """Whether each device reads only rows of its own groups of what an all-reduce sums."""
        if not isinstance(eqn.op, AllReduce) or eqn.op.reduction != "sum":
            return False
        own = self.made(eqn.invars[0])
        return own is not None and set(own.over) == set(eqn.op.axes) and self.only_read(eqn.outvars[0], own)

    def made(self, atom: Atom) -> OwnRows | None:
        """Which rows of a value are not zero on this device, if these are those of its groups."""
        eqn = self.makers.get(atom) if isinstance(atom, Var) else None
        if eqn is None or isinstance(eqn.op, Collective) or len(eqn.outvars) != 1:
            return None
        if (op := grouped(eqn)) is not None:
            rows = None if op.along else op.row_in_result(eqn.invars[0].aval.ndim)
            return None if rows is None else OwnRows(rows, op.over, self._groups(eqn))
        groups = eqn.op.linear_groups(*(a.aval for a in eqn.invars)) or (((0,),) if eqn.op.moves_only else ())
        for group in groups:
            terms = {self.made(eqn.invars[i]) for i in group}
            own = terms.pop()
            if own is None or terms:
                continue
            dims = {self._row_after(eqn, i, own.dim) for i in group}
            if len(dims) == 1 and (dim := dims.pop()) is not None:
                return OwnRows(dim, own.over, own.groups)
        return None

    def only_read(self, var: Var, own: OwnRows) -> bool:
        """Whether nothing depends on rows of a value that are not of this device's groups."""
        if (var, own) not in self.read:
            self.read[var, own] = all(
                eqn is not None and all(self._reads_own(eqn, i, own) for i, a in enumerate(eqn.invars) if a is var)
                for eqn in self.uses.get(var, ())
            )
        return self.read[var, own]

    def _reads_own(self, eqn: JaxprEqn, operand: int, own: OwnRows) -> bool:
        if (op := grouped(eqn)) is not None:
            same = op.over == own.over and self._groups(eqn) == own.groups
            return same and not op.along and op.rows_of(operand) == own.dim
        if isinstance(eqn.op, AllReduce):  # another sum that is dropped
            return self.are_own(eqn)
        if isinstance(eqn.op, Collective) or eqn.op.holds_jaxprs or eqn.op.has_effects or len(eqn.outvars) != 1:
            return False
        dim = self._row_after(eqn, operand, own.dim)
        return dim is not None and self.only_read(eqn.outvars[0], OwnRows(dim, own.over, own.groups))

    def _groups(self, eqn: JaxprEqn) -> Hashable:
        """The sizes and the first row of the groups of a product."""
        return tuple(_number(a, self.numbers) for a in eqn.invars[2:])

    @staticmethod
    def _row_after(eqn: JaxprEqn, operand: int, dim: int) -> int | None:
        """The dimension of the result along which each row is computed of that row of an operand; None if none is."""
        rule = eqn_rule(eqn)
        factors = rule.operands[operand][dim]
        places = rule.result_dims(factors[0]) if len(factors) == 1 else []
        if len(places) != 1 or rule.factors[factors[0]].kind != PARALLEL:
            return None
        ((result, after),) = places
        return after if rule.results[result][after] == factors else None


def _numbered(jaxpr: Jaxpr) -> dict[Var, Hashable]:
    """A number for each value, the same for those that equal computations make of equal values."""
    numbers: dict[Var, Hashable] = {v: v for v in (*jaxpr.constvars, *jaxpr.invars)}
    known: dict[Hashable, int] = {}
    for eqn in jaxpr.eqns:
        if eqn.op.holds_jaxprs or eqn.op.has_effects or not eqn.op.of_operands:
            numbers.update({v: v for v in eqn.outvars})
            continue
        made = eqn.op, tuple(_number(a, numbers) for a in eqn.invars)
        for i, var in enumerate(eqn.outvars):
            numbers[var] = known.setdefault((made, i), len(known))
    return numbers


def _number(atom: Atom, numbers: dict[Var, Hashable]) -> Hashable:
    if isinstance(atom, Literal):
        return "literal", atom.aval, np.asarray(atom.val).tobytes()
    return numbers[atom]
