"""Drops sums of rows over devices that each device reads only where it has made them (:mod:`..own_rows`).

A feed-forward network of experts that are split over devices is summed once, at its end, and its gradient once, at its
beginning.
"""

from __future__ import annotations

from meshwright.ir.jaxpr import Atom, Jaxpr, Var
from meshwright.ir.rewrite import rebuilt, renamed
from meshwright.spmd.own_rows import RowsOfGroups, grouped
from meshwright.spmd.varying import Variance


def keep_own_rows(jaxpr: Jaxpr, _: Variance) -> Jaxpr:
    """Remove sums of rows of groups whose readers only read the rows of their own groups."""
    if not any((op := grouped(e)) is not None and op.over for e in jaxpr.eqns):
        return jaxpr
    rows = RowsOfGroups(jaxpr)
    names: dict[Var, Atom] = {}
    eqns = []
    for eqn in jaxpr.eqns:
        if rows.are_own(eqn):
            names[eqn.outvars[0]] = eqn.invars[0]
        else:
            eqns.append(renamed(eqn, names))
    return rebuilt(jaxpr, eqns, names) if names else jaxpr
