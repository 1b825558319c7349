"""Rows of groups that are complete on the device that has their groups, and that nothing else reads.

In a mixture whose experts are split over devices, each device multiplies the rows of its own experts; the other rows of
its result are zero, and a sum over devices completes them. But the next product of the same experts reads only the rows
of its own, which are complete before: between the two, whatever treats rows by themselves needs no sum. The next
product may also be that of a later scan, to which a scan gives rows for each of its runs, as for a derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn, Var
from meshwright.ir.rewrite import uses_of
from meshwright.ir.value_numbers import ValueNumbers
from meshwright.ops.collective.all_reduce import AllReduce
from meshwright.ops.collective.base import Collective
from meshwright.ops.control.scan import Scan
from meshwright.ops.products.ragged import RaggedDot
from meshwright.sharding import Layout
from meshwright.sharding.rule import PARALLEL, ShardingRule
from meshwright.spmd.factors import Axes
from meshwright.spmd.rules import eqn_rule


@dataclass(frozen=True)
class OwnRows:
    """That the rows of a value along ``dim`` are those of these groups, which are split over axes.

    If a scan has stacked the value along ``runs``, the groups are numbers in the body of that scan, after its id.
    """

    dim: int
    over: tuple[str, ...]
    groups: tuple[Hashable, ...]
    runs: int | None = None


Rows = tuple[Var, OwnRows]


def grouped(eqn: JaxprEqn) -> RaggedDot | None:
    """The op of a product with groups; None for other equations."""
    return eqn.op if isinstance(eqn.op, RaggedDot) else None


def scan_of(eqn: JaxprEqn) -> Scan | None:
    """The op of a scan, which stacks what its runs return; None for other equations."""
    return eqn.op if isinstance(eqn.op, Scan) else None


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
    """What the equations of a program make of rows, and read of them. ``read_outside`` tells of results of the program
    whether only these rows of them are read."""

    def __init__(self, jaxpr: Jaxpr, read_outside: Callable[[int, OwnRows], bool] = lambda *_: False) -> None:
        self.jaxpr = jaxpr
        self.read_outside = read_outside
        self.places = {var: n for n, eqn in enumerate(jaxpr.eqns) for var in eqn.outvars}
        self.uses = uses_of(jaxpr)
        self.values = ValueNumbers(jaxpr)
        self.read: dict[Rows, bool] = {}
        self.scans: dict[int, tuple[JaxprEqn, RowsOfGroups]] = {}

    def of_scan(self, eqn: JaxprEqn) -> RowsOfGroups:
        """The rows in the body of a scan of this program."""
        if (op := scan_of(eqn)) is not None and id(eqn) not in self.scans:
            body = RowsOfGroups(op.jaxpr.jaxpr, lambda n, own: self._read_stacked(eqn, n, own))
            self.scans[id(eqn)] = eqn, body
        return self.scans[id(eqn)][1]

    def _read_stacked(self, scan: JaxprEqn, number: int, own: OwnRows) -> bool:
        stacked = _stacked(scan, number, own)
        return stacked is not None and self.only_read(scan.outvars[number], stacked)

    def _reads_in_scan(self, later: JaxprEqn, operand: int, own: OwnRows) -> bool:
        """Whether the body of a scan reads only these rows of an operand that another has stacked."""
        op = scan_of(later)
        if op is None or own.runs != 0 or operand < op.num_consts + op.num_carry:
            return False
        (scan, first), body = self.scans[own.groups[0]], self.of_scan(later)  # type: ignore[index]
        groups = body.values.same(own.groups[1:], first.values, _in_both(scan, first, later, body))
        return groups is not None and body.only_read(body.jaxpr.invars[operand], OwnRows(own.dim - 1, own.over, groups))

    def are_own(self, eqn: JaxprEqn) -> bool:
        """Whether each device reads only rows of its own groups of what an all-reduce sums."""
        own = self._summed(eqn)
        return own is not None and self.only_read(eqn.outvars[0], own)

    def _summed(self, eqn: JaxprEqn) -> OwnRows | None:
        """The rows that an all-reduce sums over the devices of their groups; None for other equations."""
        if not isinstance(eqn.op, AllReduce) or eqn.op.reduction != "sum":
            return None
        own = self.made(eqn.invars[0])
        return own if own is not None and set(own.over) == set(eqn.op.axes) else None

    def made(self, atom: Atom) -> OwnRows | None:
        """Which rows of a value are not zero on this device, if these are those of its groups."""
        return self._made.get(atom) if isinstance(atom, Var) else None

    @cached_property
    def _made(self) -> dict[Var, OwnRows]:
        """What :meth:`made` says, by value: in one walk, as what is added up in turn is reached along many ways."""
        found: dict[Var, OwnRows] = {}
        for eqn in self.jaxpr.eqns:
            if scan_of(eqn) is not None:
                found.update(self._made_by_scan(eqn))
            elif (own := self._made_by(eqn, found)) is not None:
                found[eqn.outvars[0]] = own
        return found

    def _made_by_scan(self, eqn: JaxprEqn) -> Iterator[tuple[Var, OwnRows]]:
        inner = self.of_scan(eqn)
        for number, (var, result) in enumerate(zip(eqn.outvars, inner.jaxpr.outvars)):
            own = inner.made(result)
            if own is not None and (stacked := _stacked(eqn, number, own)) is not None:
                yield var, stacked

    def _made_by(self, eqn: JaxprEqn, found: Mapping[Var, OwnRows]) -> OwnRows | None:
        if isinstance(eqn.op, Collective) or len(eqn.outvars) != 1:
            return None
        if (op := grouped(eqn)) is not None:
            rows = None if op.along else op.row_in_result(eqn.invars[0].aval.ndim)
            return None if rows is None else OwnRows(rows, op.over, self._groups(eqn))
        if not any(isinstance(a, Var) and a in found for a in eqn.invars):
            return None
        for group in eqn.op.linear_groups(*(a.aval for a in eqn.invars)):
            terms = {found.get(a) if isinstance(a := eqn.invars[i], Var) else None for i in group}
            own = terms.pop()
            if own is None or terms:
                continue
            after = {self._after(eqn, i, own) for i in group}
            if len(after) == 1:
                return after.pop()
        return None

    def only_read(self, var: Var, own: OwnRows) -> bool:
        """Whether nothing depends on rows of a value that are not of this device's groups."""
        if (var, own) not in self.read:
            reached = self._reached(var, own)
            for node in sorted(reached, key=lambda node: self.places.get(node[0], -1), reverse=True):
                further = reached[node]
                self.read[node] = further is not None and all(self.read[after] for after in further)
        return self.read[var, own]

    def _reached(self, var: Var, own: OwnRows) -> dict[Rows, list[Rows] | None]:
        """Rows, and what is computed of them, with what :meth:`_read` says of each; without what is known already."""
        todo, reached = [(var, own)], dict[Rows, list[Rows] | None]()
        while todo:
            node = todo.pop()
            if node not in reached and node not in self.read:
                reached[node] = further = self._read(*node)
                todo.extend(further or ())
        return reached

    def _read(self, var: Var, own: OwnRows) -> list[Rows] | None:
        """The rows that readers of a value make of these, which have to be read as they are; None if one reads more."""
        if not all(self.read_outside(n, own) for n, a in enumerate(self.jaxpr.outvars) if a is var):
            return None
        made: list[Rows] = []
        for eqn in filter(None, self.uses.get(var, ())):
            for operand in (i for i, a in enumerate(eqn.invars) if a is var):
                further = self._read_by(eqn, operand, own)
                if further is None:
                    return None
                made += further
        return made

    def _read_by(self, eqn: JaxprEqn, operand: int, own: OwnRows) -> list[Rows] | None:
        """:meth:`_read` for one reader."""
        if scan_of(eqn) is not None:
            return [] if self._reads_in_scan(eqn, operand, own) else None
        if (op := grouped(eqn)) is not None:
            same = op.over == own.over and self._groups(eqn) == own.groups
            return [] if same and not op.along and op.rows_of(operand) == own.dim else None
        if isinstance(eqn.op, AllReduce):  # another sum that is dropped
            summed = self._summed(eqn)
            return None if summed is None else [(eqn.outvars[0], summed)]
        if isinstance(eqn.op, Collective) or eqn.op.holds_jaxprs or eqn.op.has_effects or len(eqn.outvars) != 1:
            return None
        after = self._after(eqn, operand, own)
        return None if after is None else [(eqn.outvars[0], after)]

    def _groups(self, eqn: JaxprEqn) -> tuple[Hashable, ...]:
        """The sizes and the first row of the groups of a product."""
        return tuple(map(self.values.of, eqn.invars[2:]))

    def _after(self, eqn: JaxprEqn, operand: int, own: OwnRows) -> OwnRows | None:
        """The rows of the result that are computed of those of an operand; None if rows or runs are mixed."""
        dim = self._row_after(eqn, operand, own.dim)
        runs = None if own.runs is None else self._row_after(eqn, operand, own.runs)
        if dim is None or (runs is None) != (own.runs is None):
            return None
        return replace(own, dim=dim, runs=runs)

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


def _stacked(scan: JaxprEqn, number: int, own: OwnRows) -> OwnRows | None:
    """The rows of a result that a scan stacks of its runs; None if it does not, or the rows are stacked already."""
    op = scan_of(scan)
    once = op is not None and number >= op.num_carry and own.runs is None
    return OwnRows(own.dim + 1, own.over, (id(scan), *own.groups), 0) if once else None


def _in_both(scan: JaxprEqn, first: RowsOfGroups, later: JaxprEqn, body: RowsOfGroups) -> dict[Hashable, Hashable]:
    """For values in the body of a scan, their numbers in that of a later one to which the same is given: constants,
    rows, or what the first returns for each of its runs."""
    mine, theirs = _of_runs(scan, first.jaxpr), _of_runs(later, body.jaxpr)
    op: Any = scan.op
    mine.update(((True, v), a) for v, a in zip(scan.outvars[op.num_carry :], first.jaxpr.outvars[op.num_carry :]))
    return {first.values.of(mine[key]): body.values.of(param) for key, param in theirs.items() if key in mine}


def _of_runs(scan: JaxprEqn, body: Jaxpr) -> dict[tuple[bool, Atom], Atom]:
    """The constants of a scan, and the arrays of which each run gets a row (True), with what they are in its body."""
    op: Any = scan.op
    consts, rows = op.num_consts, op.num_consts + op.num_carry
    given = [(i >= rows, a, p) for i, (a, p) in enumerate(zip(scan.invars, body.invars)) if not consts <= i < rows]
    return {(row, a): p for row, a, p in given if isinstance(a, Var)}
