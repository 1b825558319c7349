"""What the communication passes share: uses of values, substitution, notes of collectives that became one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from meshwright.spmd.reason import Merged, Part, Reason
from meshwright.spmd.varying import Axes, Units, Variance, region_inputs

#: a rewrite of one jaxpr, regions aside, that may ask where its values differ
Rewrite = Callable[[Jaxpr, Variance], Jaxpr]


def uses_of(jaxpr: Jaxpr) -> dict[Var, list[JaxprEqn | None]]:
    """The equations that use each value, once for each operand; None stands for the results of the jaxpr."""
    found: dict[Var, list[JaxprEqn | None]] = {}
    for eqn in jaxpr.eqns:
        for atom in eqn.invars:
            if isinstance(atom, Var):
                found.setdefault(atom, []).append(eqn)
    for atom in jaxpr.outvars:
        if isinstance(atom, Var):
            found.setdefault(atom, []).append(None)
    return found


def resolve(names: Mapping[Var, Atom], atom: Atom) -> Atom:
    """What ``atom`` is called after the substitutions ``names``."""
    while isinstance(atom, Var) and atom in names:
        atom = names[atom]
    return atom


def renamed(eqn: JaxprEqn, names: Mapping[Var, Atom]) -> JaxprEqn:
    """The equation with its operands substituted."""
    if not any(a in names for a in eqn.invars if not isinstance(a, Literal)):
        return eqn
    return eqn.replace(invars=[resolve(names, a) for a in eqn.invars])


def rebuilt(jaxpr: Jaxpr, eqns: Sequence[JaxprEqn], names: Mapping[Var, Atom]) -> Jaxpr:
    """The jaxpr with other equations and its results substituted."""
    return jaxpr.replace(eqns=eqns, outvars=[resolve(names, a) for a in jaxpr.outvars])


def with_regions(jaxpr: ClosedJaxpr, inputs: Sequence[Axes], units: Units, rewrite: Rewrite) -> ClosedJaxpr:
    """``rewrite`` applied to the jaxpr and, before that, to the regions of its equations."""
    inner = jaxpr.jaxpr
    variance = Variance(inner, inputs, units)
    eqns = [_in_regions(eqn, variance, rewrite) if eqn.op.holds_jaxprs else eqn for eqn in inner.eqns]
    if any(new is not old for new, old in zip(eqns, inner.eqns)):
        inner = inner.replace(eqns=eqns)
        variance = Variance(inner, inputs, units)
    after = rewrite(inner, variance)
    return jaxpr if after is jaxpr.jaxpr else jaxpr.replace(jaxpr=after)


def _in_regions(eqn: JaxprEqn, variance: Variance, rewrite: Rewrite) -> JaxprEqn:
    regions = eqn.op.regions()
    if not regions:
        return eqn
    inputs = region_inputs(eqn, variance.found, variance.units)
    after = [with_regions(r, i, variance.units, rewrite) for r, i in zip(regions, inputs)]
    same = all(new is old for new, old in zip(after, regions))
    return eqn if same else eqn.replace(op=eqn.op.with_regions(after))


def merged_note(eqns: Sequence[JaxprEqn]) -> Reason | Merged | None:
    """The note of a collective that stands for those of several equations: every reason, once."""
    parts: dict[Part, None] = {}
    for eqn in eqns:
        for part in eqn.note.parts if isinstance(eqn.note, Merged) else ((eqn.note, eqn.source),):
            parts[part] = None
    found = tuple(parts)
    return found[0][0] if len(found) == 1 else Merged(found)
