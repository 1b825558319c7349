"""Simplifications of batched programs that XLA's CPU compiler rewards.

A matrix product whose operands are cut into tiles has several free (or contracting) dimensions in a row. XLA's CPU
kernels want matrices: merging such runs by reshapes, which are free, gives them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.rewrite import in_regions, replaced
from meshwright.ops.products.dot import DotGeneral
from meshwright.ops.shape.rearrange import Reshape

Runs = list[tuple[int, ...]]


def merge_dot_dims(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Neighbouring dimensions of matrix products that play the same part become one."""
    return replaced(jaxpr, lambda e: _merged(e) if isinstance(e.op, DotGeneral) else in_regions(e, merge_dot_dims))


def _runs(dims: Sequence[int]) -> Runs:
    """Maximal runs of consecutive numbers, in the order given."""
    found: list[list[int]] = []
    for d in dims:
        if found and d == found[-1][-1] + 1:
            found[-1].append(d)
        else:
            found.append([d])
    return [tuple(r) for r in found]


def _paired_runs(left: Sequence[int], right: Sequence[int]) -> tuple[Runs, Runs]:
    """Runs that are consecutive in both of two paired lists."""
    lruns: list[list[int]] = []
    rruns: list[list[int]] = []
    for a, b in zip(left, right):
        if lruns and a == lruns[-1][-1] + 1 and b == rruns[-1][-1] + 1:
            lruns[-1].append(a)
            rruns[-1].append(b)
        else:
            lruns.append([a])
            rruns.append([b])
    return [tuple(r) for r in lruns], [tuple(r) for r in rruns]


def _merged(eqn: JaxprEqn) -> list[JaxprEqn]:
    (lc, rc), (lb, rb) = eqn.op.dimension_numbers  # type: ignore[attr-defined]
    lhs, rhs = eqn.invars
    lc_runs, rc_runs = _paired_runs(lc, rc)
    lb_runs, rb_runs = _paired_runs(lb, rb)
    lf_runs = _runs([d for d in range(lhs.aval.ndim) if d not in lc and d not in lb])
    rf_runs = _runs([d for d in range(rhs.aval.ndim) if d not in rc and d not in rb])
    every = (lc_runs, lb_runs, lf_runs, rf_runs)
    if all(len(r) == 1 for runs in every for r in runs):
        return [eqn]
    eqns: list[JaxprEqn] = []
    new_lhs, left = _collapse(eqn, lhs, lc_runs, lb_runs, lf_runs, eqns)
    new_rhs, right = _collapse(eqn, rhs, rc_runs, rb_runs, rf_runs, eqns)
    numbers = (
        (tuple(left[r] for r in lc_runs), tuple(right[r] for r in rc_runs)),
        (tuple(left[r] for r in lb_runs), tuple(right[r] for r in rb_runs)),
    )
    op = replace(eqn.op, dimension_numbers=numbers)  # type: ignore[call-arg]
    small = Var(op.infer(new_lhs.aval, new_rhs.aval))
    out = eqn.outvars[0]
    eqns.append(eqn.replace(op=op, invars=[new_lhs, new_rhs], outvars=[small]))
    eqns.append(JaxprEqn(Reshape(out.aval.shape), [small], [out], eqn.source, eqn.note))
    return eqns


def _collapse(
    eqn: JaxprEqn, atom: Atom, contracting: Runs, batch: Runs, free: Runs, eqns: list[JaxprEqn]
) -> tuple[Atom, dict[tuple[int, ...], int]]:
    """The operand with each run as one dimension, and where each run went."""
    order = sorted([*contracting, *batch, *free])
    place = {run: i for i, run in enumerate(order)}
    shape = tuple(prod(atom.aval.shape[d] for d in run) for run in order)
    if shape == atom.aval.shape:
        return atom, place
    merged = Var(atom.aval.update(shape=shape))
    eqns.append(JaxprEqn(Reshape(shape), [atom], [merged], eqn.source, eqn.note))
    return merged, place
