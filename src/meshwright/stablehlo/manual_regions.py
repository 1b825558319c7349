"""Finds the manual regions of GSPMD programs from the operations at which values enter and leave them.

Results of ``SPMDFullToShardShape`` are manual, and so are all values computed from them, up to an
``SPMDShardToFullShape``. Device numbers are manual too. Connected equations on manual values form a region. A region
inside of another is found in the jaxpr of the outer one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from meshwright.core.records import dataclass
from meshwright.errors import ImportProgramError
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var, sub_jaxprs
from meshwright.ir.rewrite import in_regions
from meshwright.ops.imported.device_collective import DeviceOp
from meshwright.ops.imported.manual_computation import Border, ManualAxes, ManualComputation
from meshwright.ops.imported.sharding_annotation import Annotation, ShardingAnnotation
from meshwright.sharding import HloSharding

ALL_MANUAL = HloSharding("manual")


def form_regions(jaxpr: ClosedJaxpr, known: Mapping[Var, Annotation]) -> ClosedJaxpr:
    """``jaxpr`` with its manual regions as :class:`ManualComputation`; ``known`` are shardings of its parameters.

    Raises:
      ImportProgramError: a value enters a region without a sharding, a function returns a manual value, or a region
        depends on its own results.
    """
    if not _has_borders(jaxpr.jaxpr):
        return jaxpr
    inner = jaxpr.jaxpr
    eqns = [in_regions(e, lambda body: form_regions(body, {})) for e in inner.eqns]
    return jaxpr.replace(jaxpr=_Regions(inner.replace(eqns=eqns), known).formed())


def _has_borders(jaxpr: Jaxpr) -> bool:
    """Whether there are borders in a jaxpr or its regions. Called functions have been processed before."""
    return any(isinstance(e.op, Border) or any(_has_borders(r.jaxpr) for r in e.op.regions()) for e in jaxpr.eqns)


@dataclass
class _Region:
    """The numbers of a region's equations: at the entry, at the exit, and inside."""

    entries: list[int] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)
    inside: list[int] = field(default_factory=list)


class _Regions:
    def __init__(self, jaxpr: Jaxpr, known: Mapping[Var, Annotation]) -> None:
        self.jaxpr = jaxpr
        self.depth: dict[Var, int] = {}
        self.annotation: dict[Var, Annotation] = dict(known)
        self.parent: dict[Var, Var] = {}
        self.borders: list[int] = []
        self.inside: list[int] = []
        for number, eqn in enumerate(jaxpr.eqns):
            self._visit(number, eqn)

    # --- which values are manual ----------------------------------------------------------------------------
    def _visit(self, number: int, eqn: JaxprEqn) -> None:
        manual = [a for a in eqn.invars if isinstance(a, Var) and self.depth.get(a, 0)]
        depth = max((self.depth[a] for a in manual), default=0)
        if isinstance(eqn.op, ShardingAnnotation):
            self.annotation[eqn.outvars[0]] = eqn.op.sharding
        border = eqn.op if isinstance(eqn.op, Border) else None
        enters, leaves = (border is not None and border.enters is side for side in (True, False))
        after = depth + 1 if enters else max(0, depth - 1) if leaves else depth
        if not depth and not enters and not leaves and _is_device_dependent(eqn):
            after = 1
        if (enters and not depth) or (leaves and depth <= 1):
            self.borders.append(number)
        elif after:
            self.inside.append(number)
        else:
            return
        members = [*manual, *(eqn.outvars if after else ())]
        for var in eqn.outvars if after else ():
            self.depth[var] = after
        for var in members[1:]:
            self._join(var, members[0])

    def _join(self, var: Var, other: Var) -> None:
        root, target = self._root(var), self._root(other)
        if root is not target:
            self.parent[root] = target

    def _root(self, var: Var) -> Var:
        while var in self.parent:
            var = self.parent[var]
        return var

    def _region_of(self, eqn: JaxprEqn) -> Var:
        """The variable that represents an equation's region: a manual value, or the result of an isolated exit."""
        manual = [a for a in (*eqn.invars, *eqn.outvars) if isinstance(a, Var) and self.depth.get(a, 0)]
        return self._root(manual[0]) if manual else eqn.outvars[0]

    # --- regions --------------------------------------------------------------------------------------------
    def formed(self) -> Jaxpr:
        eqns = self.jaxpr.eqns
        regions: dict[Var, _Region] = {}
        for number in self.borders:
            region = regions.setdefault(self._region_of(eqns[number]), _Region())
            side = region.entries if eqns[number].op.enters else region.exits  # type: ignore[attr-defined]
            side.append(number)
        for number in self.inside:
            enclosing = regions.get(self._region_of(eqns[number]))
            if enclosing is not None:  # without a border, the equation belongs to a region of the caller
                enclosing.inside.append(number)
        for atom in self.jaxpr.outvars:
            if isinstance(atom, Var) and self.depth.get(atom) and self._root(atom) in regions:
                raise ImportProgramError(
                    f"{self.jaxpr.debug_name!r} returns a value of a manual region; bring it out of the region "
                    "(custom call SPMDShardToFullShape) first"
                )
        taken = {n for r in regions.values() for n in (*r.entries, *r.exits, *r.inside)}
        nodes = [(n, [eqn]) for n, eqn in enumerate(eqns) if n not in taken]
        nodes += [(min([*r.entries, *r.exits, *r.inside]), self._computation(r)) for r in regions.values()]
        return self.jaxpr.replace(eqns=_in_order(nodes, self.jaxpr))

    def _computation(self, region: _Region) -> list[JaxprEqn]:
        eqns = self.jaxpr.eqns
        entries, exits, inside = ([eqns[n] for n in part] for part in (region.entries, region.exits, region.inside))
        operands: list[Atom] = [e.invars[0] for e in entries]
        params = [Var(e.outvars[0].aval) for e in entries]
        renamed: dict[Var, Var] = {}
        defined = {v for e in (*entries, *inside) for v in e.outvars}
        for eqn in (*inside, *exits):
            for atom in eqn.invars:
                if isinstance(atom, Var) and atom not in defined and atom not in renamed:
                    renamed[atom] = Var(atom.aval)
                    operands.append(atom)
                    params.append(renamed[atom])
        in_shardings = [self._entry_sharding(e) for e in entries] + [None] * (len(operands) - len(entries))
        body: list[JaxprEqn] = []
        for entry, param in zip(entries, list(params)):
            annotated = Var(param.aval)
            body += _annotation(entry, param, annotated)
            renamed[entry.outvars[0]] = annotated if body and body[-1].outvars[0] is annotated else param

        def read(atom: Atom) -> Atom:
            return renamed.get(atom, atom) if isinstance(atom, Var) else atom

        body += [e.replace(invars=[read(a) for a in e.invars]) for e in inside]
        results: list[Var] = []
        after: list[JaxprEqn] = []
        for leaving in exits:
            (result,) = leaving.outvars
            value = Var(result.aval)
            outside = _annotation(leaving, value, result)
            results.append(value if outside else result)
            after += outside
        op = ManualComputation(
            tuple(in_shardings),
            ClosedJaxpr(Jaxpr([], params, [read(e.invars[0]) for e in exits], body, "manual_computation")),
            tuple(e.op.sharding for e in exits),  # type: ignore[attr-defined]
            self._manual(entries, exits),
            tuple(v.aval for v in results),
        )
        return [JaxprEqn(op, operands, results, (exits or entries)[0].source), *after]

    def _entry_sharding(self, entry: JaxprEqn) -> Annotation | None:
        op: Any = entry.op
        operand = entry.invars[0]
        if op.manual:
            return op.sharding
        if not operand.aval.ndim:
            return HloSharding.replicated()
        annotation = self.annotation.get(operand) if isinstance(operand, Var) else None
        if annotation is None:
            raise ImportProgramError(
                f"the operand of SPMDFullToShardShape at {entry.source} has no sharding; annotate it (custom call "
                "Sharding), so that it is known how it is cut"
            )
        return annotation

    def _manual(self, entries: Sequence[JaxprEqn], exits: Sequence[JaxprEqn]) -> ManualAxes:
        """The manual axes, or the sharding of the values in the region."""
        op: Any = (entries or exits)[0].op
        if op.manual:
            return op.manual
        if entries:
            return op.sharding
        inner = exits[0].invars[0]
        annotation = self.annotation.get(inner) if isinstance(inner, Var) else None
        return annotation if isinstance(annotation, HloSharding) else ALL_MANUAL


def _annotation(border: JaxprEqn, value: Var, result: Var) -> list[JaxprEqn]:
    """An equation that annotates ``value`` with the border's sharding, if it splits non-manual dimensions."""
    op: Any = border.op
    if op.manual or not any(n > 1 for n in op.sharding.tile_counts) or len(op.unspecified) == value.aval.ndim:
        return []
    return [JaxprEqn(ShardingAnnotation(op.sharding, op.unspecified), [value], [result], border.source)]


def outside_regions(jaxpr: Jaxpr) -> Iterator[DeviceOp]:
    """The per-device ops outside of manual regions, including those in calls and control flow."""
    seen: set[int] = set()
    pending = [jaxpr]
    while pending:
        inner = pending.pop()
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        for eqn in inner.eqns:
            if isinstance(eqn.op, DeviceOp):
                yield eqn.op
            elif eqn.op.holds_jaxprs and not isinstance(eqn.op, ManualComputation):
                pending += sub_jaxprs(eqn.op)


def _is_device_dependent(eqn: JaxprEqn) -> bool:
    """Whether an equation, or a function that it calls, reads a device number outside of manual regions."""
    if isinstance(eqn.op, DeviceOp):
        return not eqn.invars
    return eqn.op.holds_jaxprs and not isinstance(eqn.op, ManualComputation) and _takes_number(eqn)


def _takes_number(eqn: JaxprEqn) -> bool:
    bodies = [b for b in (eqn.op.body(), *eqn.op.regions()) if b is not None]
    return any(_is_device_dependent(e) for b in bodies for e in b.jaxpr.eqns)


def _in_order(nodes: Sequence[tuple[int, list[JaxprEqn]]], jaxpr: Jaxpr) -> list[JaxprEqn]:
    """The equations of ``nodes`` in topological order, by number where the order is free.

    Raises:
      ImportProgramError: nodes depend on each other.
    """
    maker = {v: i for i, (_, eqns) in enumerate(nodes) for e in eqns for v in e.outvars}
    users: list[set[int]] = [set() for _ in nodes]
    waits = [0] * len(nodes)
    for i, (_, eqns) in enumerate(nodes):
        needs = {maker[a] for e in eqns for a in e.invars if isinstance(a, Var) and a in maker} - {i}
        waits[i] = len(needs)
        for j in needs:
            users[j].add(i)
    ready = [(number, i) for i, (number, _) in enumerate(nodes) if not waits[i]]
    heapq.heapify(ready)
    ordered: list[JaxprEqn] = []
    while ready:
        _, i = heapq.heappop(ready)
        ordered += nodes[i][1]
        for j in users[i]:
            waits[j] -= 1
            if not waits[j]:
                heapq.heappush(ready, (nodes[j][0], j))
    if any(waits):
        blocked = next(eqns[0] for i, (_, eqns) in enumerate(nodes) if waits[i])
        raise ImportProgramError(
            f"a manual region of {jaxpr.debug_name!r} (at {blocked.source}) needs a value that is computed from its "
            "own results outside of it; give the region that takes it back up values of its own"
        )
    return ordered
