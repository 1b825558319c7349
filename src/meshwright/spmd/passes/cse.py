"""Common subexpression elimination for collectives.

Value numbering (Alpern, Wegman and Zadeck 1988) covers all equations, so that collectives of equal values are found
even if their operands were computed separately. Only collectives are replaced; XLA does the rest.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

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
    names: dict[Var, Atom] = {}
    same: dict[int, list[JaxprEqn]] = {}
    for eqn, first in _with_first(jaxpr):
        if first is not None and isinstance(eqn.op, Collective):
            names.update(zip(eqn.outvars, jaxpr.eqns[first].outvars))
            same.setdefault(first, [jaxpr.eqns[first]]).append(eqn)
    if not same:
        return jaxpr
    gone = {id(eqn) for eqns in same.values() for eqn in eqns[1:]}
    notes = {id(eqns[0]): merged_note(eqns) for eqns in same.values()}
    kept = [renamed(e.replace(note=notes.get(id(e), e.note)), names) for e in jaxpr.eqns if id(e) not in gone]
    return rebuilt(jaxpr, kept, names)


def _with_first(jaxpr: Jaxpr) -> Iterator[tuple[JaxprEqn, int | None]]:
    """Each equation, with the index of an earlier one that computes the same, or None."""
    numbers: dict[Var, int] = {v: i for i, v in enumerate((*jaxpr.constvars, *jaxpr.invars))}
    count = len(numbers)
    places: dict[Hashable, int] = {}
    for place, eqn in enumerate(jaxpr.eqns):
        first = None
        if not eqn.op.has_effects and not eqn.op.holds_jaxprs:
            key = (eqn.op, *(_number(a, numbers) for a in eqn.invars))
            first = places.setdefault(key, place)
        if first is not None and first != place:
            numbers.update(zip(eqn.outvars, (numbers[v] for v in jaxpr.eqns[first].outvars)))
            yield eqn, first
            continue
        numbers.update((v, count + i) for i, v in enumerate(eqn.outvars))
        count += len(eqn.outvars)
        yield eqn, None


def _number(atom: Atom, numbers: Mapping[Var, int]) -> Hashable:
    return (atom.aval, np.asarray(atom.val).tobytes()) if isinstance(atom, Literal) else numbers[atom]
