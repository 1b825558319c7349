"""Moves reductions over merged dimensions before the merging reshape, if a dimension other than the first is split.

The tiles of a merged dimension, as of ``x.reshape(batch, -1)``, would not be blocks, so ``x`` would be gathered. But a
sum over the merged dimension is a sum over both dimensions, and its largest elements (as in a beam search over a split
vocabulary) are the largest among the largest of each row. Ops define their form before merging in
:meth:`~meshwright.ir.op.Op.before_merging`.
"""

from __future__ import annotations

from collections.abc import Container
from functools import partial
from typing import Any, NamedTuple

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.passes import DEAD_CODE
from meshwright.ir.rewrite import rebuilt, written_out
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim
from meshwright.ops.shape.rearrange import Reshape, reshape
from meshwright.sharding.rule import PARALLEL
from meshwright.spmd.propagate import Propagation
from meshwright.spmd.rules import eqn_rule

Groups = tuple[tuple[int, ...], ...]


class _Merged(NamedTuple):
    """A merged value: it is a reshape of ``x``, whose dimensions ``groups[d]`` are merged into dimension ``d``.

    ``eqns`` are the equations that compute ``x``.
    """

    x: Var
    groups: Groups
    eqns: tuple[JaxprEqn, ...] = ()

    @property
    def shape(self) -> tuple[tuple[int, ...], Groups]:
        return self.x.aval.shape, self.groups


def before_merging(closed: ClosedJaxpr, propagation: Propagation) -> ClosedJaxpr:
    """The program with such reductions, and the elementwise equations before them, moved before the merging reshape.

    Values that are also merged for another use are left unchanged: they will be gathered anyway.
    """
    kept: set[Var] = set()
    while True:
        plan = _Plan(closed, propagation, kept)
        after = closed.replace(jaxpr=rebuilt(closed.jaxpr, list(plan.eqns)))
        if after is closed:
            return closed
        after = DEAD_CODE.apply(after)
        needed = plan.roots & {v for e in after.jaxpr.eqns for v in e.outvars}
        if not needed:
            return after
        kept |= needed


class _Plan:
    """The rewritten equations of the program; values in ``kept`` stay merged."""

    def __init__(self, closed: ClosedJaxpr, propagation: Propagation, kept: Container[Var]) -> None:
        self.propagation = propagation
        self.merged: dict[Atom, _Merged] = {}
        self.makers: dict[Atom, JaxprEqn] = {}
        self.eqns: dict[JaxprEqn, None] = {}
        #: the results of merging reshapes
        self.roots: set[Var] = set()
        for eqn in closed.jaxpr.eqns:
            instead = self.instead(eqn)
            self.eqns.update(dict.fromkeys([eqn] if instead is None else instead))
            if instead is not None:
                continue
            self.makers.update(dict.fromkeys(eqn.outvars, eqn))
            if eqn.op.is_view and isinstance(x := eqn.invars[0], Var) and eqn.outvars[0] not in kept:
                groups = _groups(eqn)
                if groups is not None and any(propagation.layout(x).dims[d] for group in groups for d in group[1:]):
                    self.merged[eqn.outvars[0]] = _Merged(x, groups)
                    self.roots.add(eqn.outvars[0])
            elif self.merged and (whole := self.elementwise(eqn)) is not None:
                self.merged[eqn.outvars[0]] = whole

    def instead(self, eqn: JaxprEqn) -> list[JaxprEqn] | None:
        """The equations that replace ``eqn`` if its operand is merged; None to keep it."""
        of = self.merged.get(eqn.invars[0]) if len(eqn.invars) == 1 else None
        if of is None:
            return None
        if eqn.op.is_view and eqn.outvars[0].aval == of.x.aval and of.eqns:  # the reshape is undone
            last = of.eqns[-1]
            return [*of.eqns[:-1], last.replace(outvars=eqn.outvars)]
        merged = written_out(eqn.replace(invars=[of.x]), partial(_results, eqn, of.groups))
        return [*of.eqns, *merged] if merged else None

    def elementwise(self, eqn: JaxprEqn) -> _Merged | None:
        """The merged result of an elementwise equation, or None if ``eqn`` cannot be moved before merging.

        Its operands must be merged in the same way, constant along all merged dimensions, or literals.
        """
        first = next((self.merged[a] for a in eqn.invars if a in self.merged), None)
        if first is None or len(eqn.outvars) != 1 or eqn.op.has_effects or eqn.op.holds_jaxprs:
            return None
        rule = eqn_rule(eqn)
        alike = all(dims == rule.results[0] for a, dims in zip(eqn.invars, rule.operands) if isinstance(a, Var))
        if not alike or {f.kind for f in rule.factors} != {PARALLEL} or not eqn.op.is_same_on_tiles:
            return None
        ins: list[Atom] = []
        before: dict[JaxprEqn, None] = {}
        for a in eqn.invars:
            of = self.spread(a, first) if isinstance(a, Var) else None
            if isinstance(a, Var) and (of is None or of.shape != first.shape):
                return None
            ins.append(a if of is None else of.x)
            before.update(dict.fromkeys(() if of is None else of.eqns))
        out = self.like(first.x, eqn.outvars[0].aval)
        if eqn.op.infer(*(a.aval for a in ins)) != out.aval:
            return None
        return _Merged(out, first.groups, (*before, eqn.replace(invars=ins, outvars=[out])))

    def like(self, x: Var, aval: ShapedArray) -> Var:
        """A new variable with the shape and layout of ``x`` and the dtype of ``aval``."""
        return self.propagation.place(Var(aval.update(shape=x.aval.shape)), self.propagation.layout(x).dims)

    def spread(self, value: Var, like: _Merged) -> _Merged | None:
        """The merged form of ``value``: known, or of a broadcast that is constant along all merged dimensions."""
        maker = self.makers.get(value)
        if value in self.merged or not isinstance(maker and maker.op, BroadcastInDim):
            return self.merged.get(value)
        assert maker is not None
        (x,) = maker.invars
        dims: Any = maker.op.broadcast_dimensions  # type: ignore[attr-defined]
        along = [(n, d) for n, d in zip(x.aval.shape, dims) if n != 1 or len(like.groups[d]) == 1]
        if any(len(like.groups[d]) != 1 for _, d in along):
            return None
        out = self.like(like.x, value.aval)
        alone = Reshape(tuple(n for n, _ in along))
        small = Var(alone.infer(x.aval))
        spread = BroadcastInDim(out.aval.shape, tuple(like.groups[d][0] for _, d in along))
        eqns = maker.replace(op=alone, outvars=[small]), maker.replace(op=spread, invars=[small], outvars=[out])
        whole = _Merged(out, like.groups, eqns)
        self.merged[value] = whole
        return whole


def _groups(eqn: JaxprEqn) -> Groups | None:
    """For each dimension of a reshape's result, the operand dimensions that it merges, in order; None if the reshape
    splits a dimension."""
    rule = eqn_rule(eqn)
    places = {factors: d for d, factors in enumerate(rule.operands[0]) if factors}
    try:
        groups = tuple(tuple(places[(f,)] for f in factors) for factors in rule.results[0])
    except KeyError:
        return None
    return groups if [d for group in groups for d in group] == sorted(places.values()) else None


def _results(eqn: JaxprEqn, groups: Groups, x: Any) -> list[Any]:
    results = eqn.op.before_merging(x, groups)
    return [reshape(y, v.aval.shape) for y, v in zip(results or [], eqn.outvars)]
