"""Recomputes residuals of forward loops in their backward loops: more arithmetic for less memory.

The derivative of a scan is a reverse scan over the stacked residuals of the forward steps. If these do not fit in
memory, the backward loop gets the carry with which each forward step began, and repeats the step first. Elementwise
residuals are recomputed first; products and collectives only if that does not suffice.

Source: Griewank and Walther, "Revolve" (2000); Chen et al., "Training deep nets with sublinear memory cost" (2016).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import NamedTuple

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from meshwright.ir.passes import dead_code
from meshwright.ir.rewrite import rebuilt, use_counts
from meshwright.ops.collective.base import Collective
from meshwright.ops.control.scan import Scan
from meshwright.spmd.rules import eqn_rule


def recompute(closed: ClosedJaxpr, products: bool = False) -> ClosedJaxpr:
    """Recompute residuals in backward loops: elementwise ones, or with ``products`` all of them."""
    eqns = list(closed.jaxpr.eqns)
    uses = use_counts(eqns, closed.jaxpr.outvars)
    for number, eqn in enumerate(eqns):
        if isinstance(eqn.op, Scan) and not eqn.op.has_effects:
            for later in range(number + 1, len(eqns)):
                pair = _Pair.of(eqns[number], eqns[later], uses, products)
                if pair is not None:
                    eqns[number], eqns[later] = pair.forward(), pair.backward()
    return closed.replace(jaxpr=rebuilt(closed.jaxpr, eqns))


class _Parts(NamedTuple):
    """The values of a scan by their role."""

    consts: list[Var]
    carry: list[Var]
    rows: list[Var]

    @classmethod
    def of(cls, op: Scan, values: Sequence[Atom]) -> _Parts:
        first, last = op.num_consts, op.num_consts + op.num_carry
        return cls(list(values[:first]), list(values[first:last]), list(values[last:]))  # type: ignore[arg-type]


@dataclass
class _Pair:
    """A loop and a later one over its outputs. ``dropped`` are the numbers of the outputs that are recomputed."""

    first: JaxprEqn
    second: JaxprEqn
    dropped: list[int]
    #: the values of a step of the first loop that a step of the second gets, and the equations that it then repeats
    needed: list[Var] = field(default_factory=list)
    again: list[JaxprEqn] = field(default_factory=list)
    #: for each carry among the needed values, the variable of its stack
    stacks: dict[Var, Var] = field(default_factory=dict)

    @classmethod
    def of(cls, first: JaxprEqn, second: JaxprEqn, uses: dict[Var, int], products: bool) -> _Pair | None:
        if not isinstance(second.op, Scan) or second.op.length != first.op.length:  # type: ignore[attr-defined]
            return None
        op: Scan = first.op  # type: ignore[assignment]
        rows = set(_Parts.of(second.op, second.invars).rows)
        only = [i for i, y in enumerate(first.outvars[op.num_carry :]) if y in rows and uses[y] == 1]
        made = _made_again(op.jaxpr.jaxpr, products)
        results = op.jaxpr.jaxpr.outvars[op.num_carry :]
        dropped = [i for i in only if results[i] in made]
        if not dropped or op.jaxpr.consts:
            return None
        pair = cls(first, second, dropped)
        pair.trace_back(results)
        return pair

    @property
    def body(self) -> Jaxpr:
        return self.first.op.jaxpr.jaxpr  # type: ignore[attr-defined, no-any-return]

    @property
    def kept(self) -> list[int]:
        """The numbers of the first loop's outputs that are kept."""
        outputs = len(self.first.outvars) - self.first.op.num_carry  # type: ignore[attr-defined]
        return [i for i in range(outputs) if i not in self.dropped]

    def trace_back(self, results: Sequence[Atom]) -> None:
        """Find the equations that compute the dropped outputs from kept outputs, constants, rows and carries."""
        there = {*self.body.invars, *(results[i] for i in self.kept)}
        live = {results[i] for i in self.dropped}
        for eqn in reversed(self.body.eqns):
            if any(v in live and v not in there for v in eqn.outvars):
                self.again.insert(0, eqn)
                live.update(a for a in eqn.invars if isinstance(a, Var))
        self.needed = [v for v in _in_order(self.body) if v in live and v in there]
        length = self.first.op.length  # type: ignore[attr-defined]
        carry = _Parts.of(self.first.op, self.body.invars).carry  # type: ignore[arg-type]
        kept = {results[i] for i in self.kept}
        self.stacks = {v: Var(v.aval.with_dim(0, length)) for v in self.needed if v in carry and v not in kept}

    def forward(self) -> JaxprEqn:
        """The first loop without the dropped outputs, and with the needed carries as outputs."""
        op: Scan = self.first.op  # type: ignore[assignment]
        k, outs = op.num_carry, self.body.outvars
        results = [*outs[:k], *(outs[k + i] for i in self.kept), *self.stacks]
        body = dead_code(ClosedJaxpr(self.body.replace(outvars=results), []))
        stacked = [*self.first.outvars[:k], *(self.first.outvars[k + i] for i in self.kept), *self.stacks.values()]
        return self.first.replace(op=op.with_body(body, op.num_consts, k), outvars=stacked)

    def backward(self) -> JaxprEqn:
        """The second loop, with steps that first recompute the dropped outputs."""
        op: Scan = self.second.op  # type: ignore[assignment]
        inner = op.jaxpr.jaxpr
        given, inside = _Parts.of(op, self.second.invars), _Parts.of(op, inner.invars)
        names = dict(self.named(given, inside))
        made = {v: Var(v.aval) for eqn in self.again for v in eqn.outvars if v not in names}
        names |= made

        def new(atom: Atom) -> Atom:
            return names.get(atom, atom) if isinstance(atom, Var) else atom

        outs = [[names[v] if v in made else Var(v.aval) for v in eqn.outvars] for eqn in self.again]
        steps = [e.replace(invars=[*map(new, e.invars)], outvars=o) for e, o in zip(self.again, outs)]
        first: Scan = self.first.op  # type: ignore[assignment]
        dropped = {
            self.first.outvars[first.num_carry + i]: self.body.outvars[first.num_carry + i] for i in self.dropped
        }
        replaced: dict[Atom, Atom] = {inside.rows[n]: new(dropped[x]) for n, x in enumerate(given.rows) if x in dropped}
        rest = [e.replace(invars=[replaced.get(a, a) for a in e.invars]) for e in inner.eqns]
        rows = [n for n, x in enumerate(given.rows) if x not in dropped]
        body = inner.replace(
            invars=[*inside.consts, *inside.carry, *(inside.rows[n] for n in rows)],
            eqns=[*steps, *rest],
            outvars=[replaced.get(a, a) for a in inner.outvars],
        )
        operands = [*given.consts, *given.carry, *(given.rows[n] for n in rows)]
        changed = op.with_body(op.jaxpr.replace(jaxpr=body), len(given.consts), op.num_carry)
        return self.second.replace(op=changed, invars=operands)

    def named(self, given: _Parts, inside: _Parts) -> Iterator[tuple[Var, Var]]:
        """The name of each needed value in a step of the second loop. Adds a parameter for those without one."""
        op: Scan = self.first.op  # type: ignore[assignment]
        mine, parts = _Parts.of(op, self.first.invars), _Parts.of(op, self.body.invars)
        consts = dict(zip(parts.consts, mine.consts))
        rows = {**dict(zip(parts.rows, mine.rows)), **self.stacks}
        for i in self.kept:
            result = self.body.outvars[op.num_carry + i]
            if isinstance(result, Var):
                rows.setdefault(result, self.first.outvars[op.num_carry + i])
        for value in self.needed:
            outer, (there, names) = (
                (consts[value], (given.consts, inside.consts))
                if value in consts
                else (rows[value], (given.rows, inside.rows))
            )
            if outer not in there:
                there.append(outer)
                names.append(Var(value.aval))
            yield value, names[there.index(outer)]


def _made_again(body: Jaxpr, products: bool) -> set[Atom]:
    """The values of a step that can be recomputed: by cheap equations, from parameters, kept or recomputed values."""
    there: set[Atom] = set(body.invars)
    made: set[Atom] = set()
    kept = {a for a in body.outvars if isinstance(a, Var)}
    for eqn in body.eqns:
        known = all(isinstance(a, Literal) or a in there for a in eqn.invars)
        if known and (products or _is_cheap(eqn)):
            made.update(eqn.outvars)
            there.update(eqn.outvars)
        else:
            there.update(v for v in eqn.outvars if v in kept)
    return made


def _is_cheap(eqn: JaxprEqn) -> bool:
    op = eqn.op
    return not (isinstance(op, Collective) or op.holds_jaxprs or op.has_effects or eqn_rule(eqn).is_product)


def _in_order(body: Jaxpr) -> Iterable[Var]:
    return [*body.invars, *(v for eqn in body.eqns for v in eqn.outvars)]
