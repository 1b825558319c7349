"""Reductions along merged dimensions, of which one that is not the first is in tiles, done before merging.

The merged dimension of ``x.reshape(batch, -1)`` would be in no tiles that are blocks, and so ``x`` would be gathered.
The sum of it is one over both dimensions, its largest elements (of a beam search over a split vocabulary) are those of
the largest of each row. Ops say how they are done so (:meth:`~meshwright.ir.op.Op.before_merging`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.op import Op
from meshwright.ir.passes import DEAD_CODE
from meshwright.ir.tracing import trace_to_jaxpr
from meshwright.ops.shape.rearrange import reshape
from meshwright.sharding.rule import PARALLEL
from meshwright.spmd.flatten import eqn_rule
from meshwright.spmd.propagate import Propagation

Groups = tuple[tuple[int, ...], ...]


class _Merged(NamedTuple):
    """What a value is, merged: ``x``, whose dimensions make up each of its own, and the equations that make that."""

    x: Var
    groups: Groups
    eqns: tuple[JaxprEqn, ...] = ()


def before_merging(closed: ClosedJaxpr, propagation: Propagation) -> ClosedJaxpr:
    """The program with such reductions of what is merged instead, elementwise equations between included."""
    merged: dict[Atom, _Merged] = {}
    eqns: dict[JaxprEqn, None] = {}
    changed = False
    for eqn in closed.jaxpr.eqns:
        if merged and eqn.invars and eqn.invars[0] in merged and (instead := _instead(eqn, merged[eqn.invars[0]])):
            eqns.update(dict.fromkeys(instead))
            changed = True
            continue
        eqns[eqn] = None
        if eqn.op.is_view and isinstance(x := eqn.invars[0], Var):
            groups = _groups(eqn)
            if groups is not None and any(propagation.layout(x).dims[d] for group in groups for d in group[1:]):
                merged[eqn.outvars[0]] = _Merged(x, groups)
        elif merged and any(a in merged for a in eqn.invars) and (whole := _elementwise(eqn, merged)) is not None:
            merged[eqn.outvars[0]] = whole
    return DEAD_CODE.apply(closed.replace(jaxpr=closed.jaxpr.replace(eqns=list(eqns)))) if changed else closed


def _elementwise(eqn: JaxprEqn, merged: Mapping[Atom, _Merged]) -> _Merged | None:
    """The result of an elementwise equation whose operands are all merged alike, or numbers; None of another one."""
    values = [merged.get(a) for a in eqn.invars if isinstance(a, Var)]
    first = values[0]
    if first is None or len(eqn.outvars) != 1 or eqn.op.has_effects or eqn.op.holds_jaxprs or eqn.op.multiple_results:
        return None
    if any(v is None or (v.groups, v.x.aval.shape) != (first.groups, first.x.aval.shape) for v in values):
        return None
    rule = eqn_rule(eqn)
    alike = all(dims == rule.results[0] for a, dims in zip(eqn.invars, rule.operands) if isinstance(a, Var))
    if not alike or {f.kind for f in rule.factors} != {PARALLEL} or type(eqn.op).localize is not Op.localize:
        return None
    out = Var(eqn.outvars[0].aval.update(shape=first.x.aval.shape))
    ins = [merged[a].x if a in merged else a for a in eqn.invars]
    if eqn.op.infer(*(a.aval for a in ins)) != out.aval:
        return None
    before = dict.fromkeys(e for v in values if v is not None for e in v.eqns)
    return _Merged(out, first.groups, (*before, eqn.replace(invars=ins, outvars=[out])))


def _groups(eqn: JaxprEqn) -> Groups | None:
    """Of which whole dimensions of its operand, in order, each dimension of a reshape's result is made; None if one is
    made of parts."""
    rule = eqn_rule(eqn)
    places = {factors: d for d, factors in enumerate(rule.operands[0]) if factors}
    try:
        groups = tuple(tuple(places[(f,)] for f in factors) for factors in rule.results[0])
    except KeyError:
        return None
    return groups if [d for group in groups for d in group] == sorted(places.values()) else None


def _instead(eqn: JaxprEqn, of: _Merged) -> list[JaxprEqn] | None:
    if len(eqn.invars) != 1 or type(eqn.op).before_merging is Op.before_merging:
        return None
    traced = trace_to_jaxpr(partial(_results, eqn, of.groups), [of.x.aval])
    return [*of.eqns, *_inlined(traced, of.x, eqn)] if traced.jaxpr.outvars else None


def _results(eqn: JaxprEqn, groups: Groups, x: Any) -> list[Any]:
    results = eqn.op.before_merging(x, groups)
    return [reshape(y, v.aval.shape) for y, v in zip(results or [], eqn.outvars)]


def _inlined(traced: ClosedJaxpr, x: Var, eqn: JaxprEqn) -> Iterator[JaxprEqn]:
    """A program of ``x`` in place of an equation."""
    inner = traced.jaxpr
    names: dict[Atom, Atom] = {inner.invars[0]: x, **dict(zip(inner.outvars, eqn.outvars))}
    for step in inner.eqns:
        for v in step.outvars:
            names.setdefault(v, Var(v.aval))
        ins = [names.get(a, a) for a in step.invars]
        yield step.replace(invars=ins, outvars=[names[v] for v in step.outvars], source=eqn.source)
