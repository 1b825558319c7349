"""Decomposes batches of matrices one after the other, on CPUs.

LAPACK's kernels share the matrices of a batch out among the threads of the pool that they run in, and wait there. XLA
runs kernels that do not depend on each other at the same time: as soon as each thread of the pool waits in one, all of
them wait for ever. So each is made to depend on the one before it, by a select whose predicate is always false, which
XLA does not know.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var, all_eqns
from meshwright.ir.op import Op
from meshwright.ir.passes import inline_calls
from meshwright.ir.rewrite import in_regions, replaced, written_out
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import and_, convert, is_finite, ne, real, select
from meshwright.ops.linalg.batched import Batched
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.ops.shape.rearrange import reshape
from meshwright.ops.shape.slice_pad import slice_


def one_by_one(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with its decompositions of batches in a row; the same object if there are fewer than two."""
    if sum(map(_decomposes, all_eqns(jaxpr.jaxpr))) < 2:
        return jaxpr
    return _in_a_row(inline_calls(jaxpr))


def _decomposes(eqn: JaxprEqn) -> bool:
    op = eqn.op
    return isinstance(op, Batched) and op.by_lapack and math.prod(op.lead(*(a.aval for a in eqn.invars))) > 1


def _inside(jaxpr: Jaxpr) -> bool:
    return any(map(_decomposes, all_eqns(jaxpr)))


def _in_a_row(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    row = _Row()
    return replaced(jaxpr, row.equation) if _inside(jaxpr.jaxpr) else jaxpr


class _Row:
    """The decompositions of one jaxpr: a result of the last one, and the values that depend on it."""

    def __init__(self) -> None:
        self.last: Atom | None = None
        self.after: set[Atom] = set()

    def equation(self, eqn: JaxprEqn) -> JaxprEqn | Sequence[JaxprEqn]:
        waits = not self.after.isdisjoint(eqn.invars)
        if not _decomposes(eqn) and not any(_inside(r.jaxpr) for r in _regions(eqn.op)):
            if waits:
                self.after.update(eqn.outvars)
            return eqn
        new = in_regions(eqn, _in_a_row)
        eqns: JaxprEqn | Sequence[JaxprEqn] = new
        if self.last is not None and not waits and eqn.invars:
            eqns = written_out(new.replace(invars=[self.last, *new.invars]), lambda x, *args: _after(new.op, x, args))
        results = [v for v in eqn.outvars if isinstance(v, Var) and v.aval.size]
        if results:
            self.last = min(results, key=lambda v: v.aval.nbytes)
            self.after = set(eqn.outvars)
        return eqns


def _regions(op: Op) -> Sequence[ClosedJaxpr]:
    return op.regions() if op.holds_jaxprs else ()


def _after(op: Op, x: Any, args: Sequence[Any]) -> list[Any]:
    """``op`` of ``args`` once ``x`` is known: of loops, all operands wait, as XLA may write their bodies out."""
    ndim, dtype = typeof(x).ndim, typeof(x).dtype
    element = reshape(slice_(x, (0,) * ndim, (1,) * ndim), ())
    number = real(element) if dtypes.is_complex(dtype) else element
    number = number if dtypes.is_float(dtype) or dtypes.is_complex(dtype) else convert(number, dtypes.float32)
    never = and_(is_finite(number), ne(number, number))
    which = range(len(args)) if _regions(op) else [min(range(len(args)), key=lambda i: typeof(args[i]).nbytes or 2**62)]
    waiting = list(args)
    for i in which:
        shape, of = typeof(args[i]).shape, typeof(args[i]).dtype
        zeros = broadcast_in_dim(np.zeros((), of), shape, ())
        waiting[i] = select(broadcast_in_dim(never, shape, ()), zeros, args[i])
    outs = op.bind(*waiting)
    return list(outs) if op.multiple_results else [outs]
