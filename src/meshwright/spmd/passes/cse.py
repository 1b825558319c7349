"""Common subexpression elimination for collectives.

Value numbering covers all equations, so that collectives of equal values are found even if their operands were computed
separately. Only collectives are replaced; XLA does the rest.
"""

from __future__ import annotations

from collections.abc import Hashable

from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn, Var
from meshwright.ir.rewrite import rebuilt, renamed
from meshwright.ir.value_numbers import ValueNumbers
from meshwright.ops.collective.base import Collective
from meshwright.spmd.passes.rewrite import merged_note
from meshwright.spmd.varying import Variance


def common_collectives(jaxpr: Jaxpr, variance: Variance) -> Jaxpr:
    """Remove collectives, including slices by position, that repeat an earlier one."""
    if sum(isinstance(e.op, Collective) for e in jaxpr.eqns) < 2:
        return jaxpr
    numbers = ValueNumbers(jaxpr)
    same: dict[Hashable, list[JaxprEqn]] = {}
    for eqn in jaxpr.eqns:
        if isinstance(eqn.op, Collective):
            same.setdefault(tuple(map(numbers.of, eqn.outvars)), []).append(eqn)
    repeated = [eqns for eqns in same.values() if len(eqns) > 1]
    if not repeated:
        return jaxpr
    names: dict[Var, Atom] = {}
    for first, *others in repeated:
        for eqn in others:
            names.update(zip(eqn.outvars, first.outvars))
    gone = {id(eqn) for eqns in repeated for eqn in eqns[1:]}
    notes = {id(eqns[0]): merged_note(eqns) for eqns in repeated}
    kept = [renamed(e.replace(note=notes.get(id(e), e.note)), names) for e in jaxpr.eqns if id(e) not in gone]
    return rebuilt(jaxpr, kept, names)
