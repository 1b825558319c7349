"""Drops sums of rows over devices that each device reads only where it has made them (:mod:`..own_rows`).

A feed-forward network of experts that are split over devices is summed once, at its end, and its gradient once, at its
beginning.
"""

from __future__ import annotations

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var
from meshwright.ir.rewrite import rebuilt, renamed
from meshwright.spmd.own_rows import RowsOfGroups, grouped, scan_of
from meshwright.spmd.varying import Variance


def keep_own_rows(jaxpr: Jaxpr, _: Variance) -> Jaxpr:
    """Remove sums of rows of groups whose readers only read the rows of their own groups."""
    return _without_sums(RowsOfGroups(jaxpr)) if _splits_groups(jaxpr) else jaxpr


def _splits_groups(jaxpr: Jaxpr) -> bool:
    """Whether a program, or a scan of it, has a product whose groups are split."""
    for eqn in jaxpr.eqns:
        if (op := grouped(eqn)) is not None and op.over:
            return True
        if (scan := scan_of(eqn)) is not None and _splits_groups(scan.jaxpr.jaxpr):
            return True
    return False


def _without_sums(rows: RowsOfGroups) -> Jaxpr:
    names: dict[Var, Atom] = {}
    eqns = []
    for eqn in rows.jaxpr.eqns:
        if rows.are_own(eqn):
            names[eqn.outvars[0]] = eqn.invars[0]
        else:
            eqns.append(renamed(_without_inner_sums(eqn, rows), names))
    return rebuilt(rows.jaxpr, eqns, names)


def _without_inner_sums(eqn: JaxprEqn, rows: RowsOfGroups) -> JaxprEqn:
    op = scan_of(eqn)
    if op is None or not _splits_groups(op.jaxpr.jaxpr):
        return eqn
    body = _without_sums(rows.of_scan(eqn))
    if body is op.jaxpr.jaxpr:
        return eqn
    return eqn.replace(op=op.with_body(ClosedJaxpr(body, op.jaxpr.consts), op.num_consts, op.num_carry))
