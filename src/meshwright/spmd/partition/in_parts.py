"""Computes products in parts if their result is sliced, or an operand concatenated, along a split dimension.

``x @ w`` followed by slices (gate and up, or query, key and value) becomes ``x @ w[:, part]`` for each part. The
backward pass is treated likewise: the derivative of ``w`` is the concatenation of those of its parts, and the
derivative of ``x`` is their sum. Nothing is computed twice. Instead of activations, the weight is resharded. The
rewrite is applied if the rows that it moves instead are smaller; it also passes through elementwise equations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

from meshwright.core.records import dataclass
from meshwright.core.source import UNKNOWN, SourceLocation
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.rewrite import producers_of, uses_of
from meshwright.ops.elementwise.table import add
from meshwright.ops.shape.slice_pad import Concatenate, Slice
from meshwright.sharding import AbstractMesh
from meshwright.sharding.row_map import RowMap, Span
from meshwright.sharding.rule import PARALLEL, REDUCTION, ShardingRule
from meshwright.spmd.propagate import Propagation
from meshwright.spmd.rules import eqn_rule

#: the rows moved instead must be smaller than this fraction of the rows moved before
LESS = 0.8
#: how many equations to follow upwards from a slice
DEPTH = 8

Bounds = tuple[tuple[int, int], ...]


class Shapes(NamedTuple):
    """The part of a localization context that :meth:`Op.localized` reads if only sizes change."""

    out_local_shapes: tuple[tuple[int, ...], ...]


class _Cut(NamedTuple):
    """A value that is only needed in parts along ``dim``: the bounds of the parts, and their variables."""

    dim: int
    bounds: Bounds
    parts: tuple[Var, ...]


def in_parts(closed: ClosedJaxpr, propagation: Propagation, mesh: AbstractMesh) -> ClosedJaxpr:
    """The program with products computed in parts where that moves less; adds new values to ``propagation``."""
    if not any(isinstance(e.op, (Slice, Concatenate)) for e in closed.jaxpr.eqns):
        return closed
    plan = _Plan(closed, propagation, mesh)
    plan.decide()
    if not plan.cuts and not plan.joins:
        return closed
    return closed.replace(jaxpr=closed.jaxpr.replace(eqns=list(plan.written())))


@dataclass
class _Plan:
    """Decides which sliced values to compute in parts, and which concatenations to remove; then rewrites equations."""

    closed: ClosedJaxpr
    propagation: Propagation
    mesh: AbstractMesh
    #: values that are only used by slices
    cuts: dict[Var, _Cut] = field(default_factory=dict)
    #: concatenations that are only used by products, with their parts
    joins: dict[Var, _Cut] = field(default_factory=dict)
    #: ids of equations that are removed, or computed in parts later
    gone: set[int] = field(default_factory=set)
    known: dict[tuple[Var, int, Bounds], tuple[Var, ...]] = field(default_factory=dict)
    eqns: list[JaxprEqn] = field(default_factory=list)
    #: the source location of the current equation
    source: SourceLocation = UNKNOWN

    def __post_init__(self) -> None:
        self.makers = producers_of(self.closed.jaxpr)
        self.uses = uses_of(self.closed.jaxpr)

    # --- decisions ------------------------------------------------------------------------------------------
    def decide(self) -> None:
        for eqn in self.closed.jaxpr.eqns:
            if isinstance(eqn.op, Concatenate):
                self.decide_joined(eqn)
            elif len(eqn.outvars) == 1 and isinstance((self.uses.get(eqn.outvars[0]) or [None])[0], JaxprEqn):
                self.decide_cut(eqn.outvars[0])

    def decide_cut(self, value: Var) -> None:
        slices = self.uses[value]
        spans = [_span(u) for u in slices]
        dims = {s[0] for s in spans if s is not None}
        if None in spans or len(dims) != 1 or len(slices) < 2:
            return
        (dim,) = dims
        cuts = ((s[1], u.outvars[0]) for s, u in zip(spans, slices))  # type: ignore[index,union-attr]
        bounds = sorted(cuts, key=lambda cut: cut[0])  # two slices may be of the same rows
        apart = all(a[1] <= b[0] for (a, _), (b, _) in pairwise(bounds))
        cut = _Cut(dim, tuple(b for b, _ in bounds), tuple(v for _, v in bounds))
        if not apart or not self.moves(value, cut):
            return
        self.cuts[value] = cut
        if self.price(value, dim, DEPTH) < LESS * self.row(value, dim):
            self.gone.update(id(u) for u in slices)
            self.leave_out(value, dim, DEPTH)
        else:
            del self.cuts[value]

    def moves(self, value: Var, cut: _Cut) -> bool:
        """Whether the dimension is split, and slicing it into these parts moves rows between devices."""
        axes = self.propagation.layout(value).dims[cut.dim]
        size = value.aval.shape[cut.dim]
        spans = tuple((Span(0, low, high),) for low, high in cut.bounds)
        return bool(axes) and RowMap((size,), spans).plan(self.mesh.sizes(axes)).sent > 0

    def row(self, value: Atom, dim: int) -> float:
        """Bytes per device of one row along ``dim``."""
        dims = self.propagation.layout(value).dims
        bytes_ = float(value.aval.dtype.itemsize)
        for d, size in enumerate(value.aval.shape):
            if d != dim:
                bytes_ *= size / self.mesh.sizes(dims[d])
        return bytes_

    def price(self, value: Atom, dim: int, depth: int) -> float:
        """Bytes of the rows that move if ``value`` is computed in parts, from the best point upwards."""
        own = self.row(value, dim)
        above = self.above(value, dim) if depth else None
        return own if above is None else min(own, sum(self.price(a, d, depth - 1) for a, d in above))

    def above(self, value: Atom, dim: int) -> list[tuple[Atom, int]] | None:
        """The operands, with dimensions, that are sliced if ``value`` is computed in parts; None if it cannot be."""
        maker = self.makers.get(value) if isinstance(value, Var) else None
        if maker is None or not _simple(maker) or any(a in self.joins for a in maker.invars):
            return None
        if value not in self.cuts and len(self.uses[value]) > 1:  # type: ignore[index]
            return None
        rule = eqn_rule(maker)
        factors = rule.results[0][dim]
        if len(factors) != 1 or rule.factors[factors[0]].kind != PARALLEL:
            return None
        return _operands(maker, rule, factors[0])

    def leave_out(self, value: Var, dim: int, depth: int) -> None:
        """Mark the equations that are computed in parts instead."""
        above = self.above(value, dim)
        if above is None or not depth or self.row(value, dim) <= self.price_above(above, depth):
            return
        self.gone.add(id(self.makers[value]))
        for atom, d in above:
            if isinstance(atom, Var):
                self.leave_out(atom, d, depth - 1)

    def price_above(self, above: Sequence[tuple[Atom, int]], depth: int) -> float:
        return sum(self.price(a, d, depth - 1) for a, d in above)

    def decide_joined(self, eqn: JaxprEqn) -> None:
        value, dim = eqn.outvars[0], eqn.op.dimension  # type: ignore[attr-defined]
        ends = [0]
        for atom in eqn.invars:
            ends.append(ends[-1] + atom.aval.shape[dim])
        parts: tuple[Var, ...] = tuple(a for a in eqn.invars if isinstance(a, Var))
        cut = _Cut(dim, tuple(pairwise(ends)), parts)
        users = self.uses.get(value, [])
        if len(parts) != len(eqn.invars) or not users or not self.moves(value, cut):
            return
        rows = [self.below(user, value, dim) for user in users]
        if None not in rows and sum(rows) < LESS * self.row(value, dim):  # type: ignore[arg-type]
            self.joins[value] = cut
            self.gone.add(id(eqn))

    def below(self, user: JaxprEqn | None, value: Var, dim: int) -> float | None:
        """Bytes of rows moved if ``user`` is computed in parts of a concatenated operand; None if it cannot be."""
        if user is None or not _simple(user) or sum(a is value for a in user.invars) != 1:
            return None
        factor = _factor(user, value, dim)
        rule = eqn_rule(user)
        if factor is None or rule.reduction != "sum" or any(a in self.joins for a in user.invars):
            return None
        others = [(a, d) for a, d in _operands(user, rule, factor) or [] if a is not value]
        moved = sum(self.row(a, d) for a, d in others)
        places = [d for d, fs in enumerate(rule.results[0]) if factor in fs]
        if rule.factors[factor].kind == REDUCTION and not places:
            return moved
        fits = rule.factors[factor].kind == PARALLEL and len(places) == 1 and len(rule.results[0][places[0]]) == 1
        return moved + self.row(user.outvars[0], places[0]) if fits else None

    # --- equations ------------------------------------------------------------------------------------------
    def written(self) -> Iterator[JaxprEqn]:
        """The rewritten equations of the program."""
        for eqn in self.closed.jaxpr.eqns:
            self.source = eqn.source
            value = eqn.outvars[0] if eqn.outvars else None
            joined = next((a for a in eqn.invars if a in self.joins), None)
            if value in self.cuts:
                cut = self.cuts[value]
                self.make(value, cut.dim, cut.bounds, cut.parts)
            elif joined is not None:
                self.make_below(eqn, joined, self.joins[joined])
            elif id(eqn) not in self.gone:
                self.eqns.append(eqn)
            yield from self.eqns
            self.eqns = []

    def parts(self, value: Atom, dim: int, bounds: Bounds) -> tuple[Atom, ...]:
        """The parts of a value: computed in parts if its equation was removed, else sliced."""
        if isinstance(value, Var) and value in self.joins and self.joins[value][:2] == (dim, bounds):
            return self.joins[value].parts
        key = (value, dim, bounds)
        if key not in self.known:
            new = tuple(self.like(value, dim, high - low) for low, high in bounds)
            self.make(value, dim, bounds, new)
            self.known[key] = new  # type: ignore[index]
        return self.known[key]  # type: ignore[index]

    def like(self, value: Atom, dim: int | None = None, size: int = 0) -> Var:
        """A new variable with the layout of ``value`` and, if ``dim`` is given, with ``size`` along that dimension."""
        shape = tuple(size if d == dim else n for d, n in enumerate(value.aval.shape))
        new = Var(value.aval.update(shape=shape))
        return self.propagation.place(new, self.propagation.layout(value).dims) if isinstance(value, Var) else new

    def make(self, value: Atom, dim: int, bounds: Bounds, new: Sequence[Var]) -> None:
        """Emit the equations that compute the parts of a value."""
        maker = self.makers.get(value) if isinstance(value, Var) else None
        if maker is not None and id(maker) in self.gone:
            above = self.above(value, dim) or []
            for n, var in enumerate(new):
                given = {a: self.parts(a, d, bounds)[n] for a, d in above}
                self.apply(maker, given, var)
            return
        shape = value.aval.shape
        for (low, high), var in zip(bounds, new):
            start = tuple(low if d == dim else 0 for d in range(len(shape)))
            limit = tuple(high if d == dim else n for d, n in enumerate(shape))
            self.eqns.append(JaxprEqn(Slice(start, limit, (1,) * len(shape)), [value], [var], self.source))

    def apply(self, eqn: JaxprEqn, given: Mapping[Atom, Atom], out: Var) -> None:
        """Emit an equation on parts of some of its operands."""
        op = eqn.op.localized(Shapes((out.aval.shape,)))
        operands = [given.get(a, a) if isinstance(a, Var) else a for a in eqn.invars]
        self.eqns.append(eqn.replace(op=op, invars=operands, outvars=[out]))

    def make_below(self, eqn: JaxprEqn, value: Var, cut: _Cut) -> None:
        """Emit an equation once per part of a concatenated operand, and concatenate or add up the results."""
        rule = eqn_rule(eqn)
        factor, out = _factor(eqn, value, cut.dim), eqn.outvars[0]
        operands = _operands(eqn, rule, factor) or []  # type: ignore[arg-type]
        place = next((d for d, fs in enumerate(rule.results[0]) if factor in fs), None)
        parts: list[Var] = []
        for n, (low, high) in enumerate(cut.bounds):
            given = {a: self.parts(a, d, cut.bounds)[n] for a, d in operands}
            parts.append(self.like(out, place, high - low))
            self.apply(eqn, given, parts[-1])
        if place is not None:
            self.eqns.append(eqn.replace(op=Concatenate(place), invars=parts, outvars=[out]))
            return

        def added(a: Var, b: Var) -> Var:
            total = out if b is parts[-1] else self.like(out)
            self.eqns.append(eqn.replace(op=add, invars=[a, b], outvars=[total]))
            return total

        reduce(added, parts)


# --- equations ----------------------------------------------------------------------------------------------
def _span(eqn: JaxprEqn | None) -> tuple[int, tuple[int, int]] | None:
    """The only dimension along which an equation slices, and the bounds; None for other equations."""
    if eqn is None or not isinstance(eqn.op, Slice):
        return None
    shape = eqn.invars[0].aval.shape
    cut = [d for d, n in enumerate(shape) if (eqn.op.start_indices[d], eqn.op.limit_indices[d]) != (0, n)]
    if len(cut) != 1 or set(eqn.op.strides) != {1}:
        return None
    return cut[0], (eqn.op.start_indices[cut[0]], eqn.op.limit_indices[cut[0]])


def _simple(eqn: JaxprEqn) -> bool:
    """Whether an equation on parts of its operands is the same op with other sizes."""
    op = eqn.op
    return op.is_same_on_tiles and len(eqn.outvars) == 1 and not op.has_effects and not op.holds_jaxprs


def _factor(eqn: JaxprEqn, value: Var, dim: int) -> int | None:
    """The factor of an operand's dimension, or None if it has several or none."""
    number = next(i for i, a in enumerate(eqn.invars) if a is value)
    factors = eqn_rule(eqn).operands[number][dim]
    return factors[0] if len(factors) == 1 else None


def _operands(eqn: JaxprEqn, rule: ShardingRule, factor: int) -> list[tuple[Atom, int]] | None:
    """The operands with a factor as one whole dimension, and that dimension; None if an operand has it otherwise."""
    dim_of: dict[Atom, int] = {}
    for atom, dims in zip(eqn.invars, rule.operands):
        places = [d for d, factors in enumerate(dims) if factor in factors]
        if not places:
            if not isinstance(atom, Literal) and atom in dim_of:
                return None
            continue
        if len(places) > 1 or dims[places[0]] != (factor,) or isinstance(atom, Literal):
            return None
        if dim_of.setdefault(atom, places[0]) != places[0]:
            return None
    return list(dim_of.items())
