"""Common subexpression elimination for collectives.

Value numbering (Alpern, Wegman and Zadeck 1988) covers all equations, so that collectives of equal values are found
even if their operands were computed separately. Only collectives are replaced; XLA does the rest.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn, Literal, Var
from meshwright.ir.rewrite import rebuilt, renamed
from meshwright.ops.collective.base import Collective
from meshwright.spmd.passes.rewrite import merged_note
from meshwright.spmd.varying import Variance


def common_collectives(jaxpr: Jaxpr, variance: Variance) -> Jaxpr:
    """Remove collectives, including slices by position, that repeat an earlier one."""
    if sum(isinstance(e.op, Collective) for e in jaxpr.eqns) < 2:
        return jaxpr
    numbers = value_numbers(jaxpr)
    same: dict[Hashable, list[JaxprEqn]] = {}
    for eqn in jaxpr.eqns:
        if isinstance(eqn.op, Collective):
            same.setdefault(tuple(numbers[v] for v in eqn.outvars), []).append(eqn)
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


def value_numbers(jaxpr: Jaxpr) -> dict[Var, int]:
    """A number for each value, which equal ones share."""
    numbers: dict[Var, int] = {v: i for i, v in enumerate((*jaxpr.constvars, *jaxpr.invars))}
    count = len(numbers)
    results: dict[Hashable, Sequence[Var]] = {}
    for eqn in jaxpr.eqns:
        first = eqn.outvars
        if not eqn.op.has_effects and not eqn.op.holds_jaxprs:
            first = results.setdefault((eqn.op, *(_number(a, numbers) for a in eqn.invars)), eqn.outvars)
        if first is eqn.outvars:
            numbers.update((v, count + i) for i, v in enumerate(eqn.outvars))
            count += len(eqn.outvars)
        else:
            numbers.update(zip(eqn.outvars, (numbers[v] for v in first)))
    return numbers


def _number(atom: Atom, numbers: Mapping[Var, int]) -> Hashable:
    return (atom.aval, np.asarray(atom.val).tobytes()) if isinstance(atom, Literal) else numbers[atom]
