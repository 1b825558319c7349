"""Carries that a loop body only accumulates into, such as gradients over microbatches.

An accumulation is taken out of the body before that is partitioned. Its terms may then stay partial sums, the carry is
partial too, and one reduction after the loop completes it. This also holds for sums scaled in every step, running
means, and updates that a predicate may skip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn, Var
from meshwright.ir.rewrite import uses_of
from meshwright.ops.control.regions import split
from meshwright.sharding.rule import PARALLEL
from meshwright.spmd.masked import masked_groups, number_of
from meshwright.spmd.rules import eqn_rule


@dataclass(frozen=True)
class Accumulation:
    """``eqns`` compute ``out``, the new ``carry``, from the old one and ``term``.

    They are jointly linear in both, and the carry has no other use: a sum, a scaled sum, a running mean, or a sum that
    a predicate may skip. ``scalars`` are the other operands of the equations; they are replicated.
    """

    carry: Var
    out: Var
    eqns: tuple[JaxprEqn, ...]
    term: Var
    scalars: tuple[Var, ...]

    @property
    def reductions(self) -> tuple[str, ...]:
        """The reductions with which the term may stay partial."""
        return ("sum", "masked") if all(map(_keeps_masked, self.eqns)) else ("sum",)

    def on_parts(self, carry: Var, term: Atom, scalars: Mapping[Atom, Atom]) -> tuple[list[JaxprEqn], Atom]:
        """The equations on the per-device (partial) carry and term, and the new carry."""
        local: dict[Atom, Atom] = {**scalars, self.carry: carry, self.term: term}
        eqns = []
        for eqn in self.eqns:
            (var,) = eqn.outvars
            local[var] = Var(_tile(var, term))
            operands = [local.get(a, a) if isinstance(a, Var) else a for a in eqn.invars]
            eqns.append(eqn.replace(invars=operands, outvars=[local[var]]))
        return eqns, local[self.out]


@dataclass(frozen=True)
class AccumulatingBody:
    """A loop body with parameters constants, carry and slices, and its accumulations by the number of their carry."""

    jaxpr: Jaxpr
    num_consts: int
    num_carry: int
    sums: Mapping[int, Accumulation]

    @cached_property
    def scalars(self) -> list[Var]:
        """The operands of accumulations that the body computes besides their terms."""
        return list(dict.fromkeys(v for s in self.sums.values() for v in s.scalars))

    @cached_property
    def kept(self) -> list[int]:
        """The numbers of the other carries."""
        return [i for i in range(self.num_carry) if i not in self.sums]

    def without(self) -> Jaxpr:
        """The body that returns terms instead of the carries that they are added to, and finally the scalars."""
        inner, k = self.jaxpr, self.num_carry
        consts, carry, xs = split(inner.invars, self.num_consts, k)
        outside = {id(eqn) for s in self.sums.values() for eqn in s.eqns}
        carried = [self.sums[i].term if i in self.sums else inner.outvars[i] for i in range(k)]
        return inner.replace(
            invars=[*consts, *(carry[i] for i in self.kept), *xs],
            outvars=[*carried, *inner.outvars[k:], *self.scalars],
            eqns=[e for e in inner.eqns if id(e) not in outside],
        )

    def restored(self, local: Jaxpr) -> Jaxpr:
        """The per-device body, from that of :meth:`without`."""
        count = len(self.jaxpr.outvars)
        consts, carry, xs = split(local.invars, self.num_consts, len(self.kept))
        outs, eqns = list(local.outvars[:count]), list(local.eqns)
        scalars: dict[Atom, Atom] = dict(zip(self.scalars, local.outvars[count:]))
        given = iter(carry)
        params = [
            Var(_tile(self.sums[i].carry, outs[i])) if i in self.sums else next(given) for i in range(self.num_carry)
        ]
        for i, s in self.sums.items():
            added, outs[i] = s.on_parts(params[i], outs[i], scalars)
            eqns += added
        return local.replace(invars=[*consts, *params, *xs], outvars=outs, eqns=eqns)


def accumulating(jaxpr: Jaxpr, num_consts: int, used: Sequence[bool]) -> AccumulatingBody:
    """A body with a flag for each carry that tells whether it is used outside of the body, as in a loop condition."""
    uses = uses_of(jaxpr)
    pairs = enumerate(zip(jaxpr.invars[num_consts:], jaxpr.outvars, used))
    found = {i: _accumulation(jaxpr, carry, out, uses) for i, (carry, out, elsewhere) in pairs if not elsewhere}
    return AccumulatingBody(jaxpr, num_consts, len(used), {i: s for i, s in found.items() if s is not None})


def _accumulation(
    jaxpr: Jaxpr, carry: Var, out: Atom, uses: Mapping[Var, Sequence[JaxprEqn | None]]
) -> Accumulation | None:
    """What the body adds to ``carry`` to return it as ``out``; None if it uses the carry in any other way."""
    reached: dict[Var, None] = {carry: None}
    eqns: list[JaxprEqn] = []
    terms: dict[Var, None] = {}
    scalars: dict[Var, None] = {}
    for eqn in jaxpr.eqns:
        mine = [i for i, a in enumerate(eqn.invars) if isinstance(a, Var) and a in reached]
        if not mine:
            continue
        group = _pointwise_group(eqn, mine)
        if group is None:
            return None
        for i, atom in enumerate(eqn.invars):
            if isinstance(atom, Var) and i not in mine:
                (terms if i in group else scalars)[atom] = None
        reached[eqn.outvars[0]] = None
        eqns.append(eqn)
    inside = {id(eqn) for eqn in eqns}
    escapes = any(u is None or id(u) not in inside for v in reached if v is not out for u in uses.get(v, []))
    if len(terms) != 1 or not isinstance(out, Var) or out not in reached or out is carry or escapes:
        return None
    if uses[out] != [None]:
        return None
    (term,) = terms
    fits = term.aval.shape == carry.aval.shape and all(v.aval.ndim == 0 for v in scalars)
    return Accumulation(carry, out, tuple(eqns), term, tuple(scalars)) if fits and term not in scalars else None


def added_in_place(body: AccumulatingBody, number: int) -> list[JaxprEqn]:
    """The equations that add to a carry one after the other, as scatters do; none if it has any other use."""
    inner, uses = body.jaxpr, uses_of(body.jaxpr)
    var, out = inner.invars[body.num_consts + number], inner.outvars[number]
    eqns: list[JaxprEqn] = []
    while var is not out:
        eqn = uses[var][0] if len(uses.get(var, ())) == 1 else None
        if eqn is None or not any(eqn.invars[o] is var for o in eqn_rule(eqn).joins):
            return []
        eqns.append(eqn)
        (var,) = eqn.outvars
    return eqns if uses[var] == [None] else []


def _keeps_masked(eqn: JaxprEqn) -> bool:
    """Whether masked sums pass through an equation through which sums pass."""
    avals = [a.aval for a in eqn.invars]
    return bool(masked_groups(eqn.op, avals, [number_of(a) for a in eqn.invars]))


def _pointwise_group(eqn: JaxprEqn, operands: Sequence[int]) -> tuple[int, ...] | None:
    """The group of operands, including ``operands``, in which an elementwise equation is jointly linear, or None.

    The equation is applied to tiles as it is, so it must neither have sizes nor move elements.
    """
    if len(eqn.outvars) != 1 or eqn.op.holds_jaxprs or not eqn.op.is_itself_on_tiles:
        return None
    groups = eqn.op.linear_groups(*(a.aval for a in eqn.invars))
    group = next((g for g in groups if set(operands) <= set(g)), None)
    shape = eqn.outvars[0].aval.shape
    # A literal in the group would be added by every device.
    summed = [eqn.invars[i] for i in group or ()]
    fits = all(isinstance(atom, Var) and atom.aval.shape == shape for atom in summed)
    rule = eqn_rule(eqn)
    in_place = all(rule.operands[i] == rule.results[0] for i in group or ())
    return group if fits and in_place and all(f.kind == PARALLEL for f in rule.factors) else None


def _tile(whole: Atom, like: Atom) -> ShapedArray:
    """The type of ``whole`` with the shape of ``like``."""
    return whole.aval.update(shape=like.aval.shape)
