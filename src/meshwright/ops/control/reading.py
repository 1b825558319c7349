"""Reads control flow: ``while``, ``case`` and ``if`` of StableHLO, and ``scan``.

Regions there may use outside values, and loops carry values that never change; both become constants here. A loop that
counts from one constant to another becomes a scan, since its trip count is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core.dtypes import is_integer
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, Literal, Var
from meshwright.ir.reading import Reader, Region, reads, scalar_of
from meshwright.ir.tracing import typeof
from meshwright.ops.control.cond import Cond
from meshwright.ops.control.regions import merge, omit, pick
from meshwright.ops.control.scan import Scan
from meshwright.ops.control.while_loop import While
from meshwright.ops.elementwise.table import and_, convert, ge, lt, select
from meshwright.ops.shape.rearrange import move_dim


def _with_parameters(jaxpr: ClosedJaxpr, invars: Sequence[Var], outvars: Sequence[Any]) -> ClosedJaxpr:
    """The same equations with reordered or additional parameters."""
    return jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(invars=list(invars), outvars=list(outvars)))


# --- while --------------------------------------------------------------------------------------------------
@reads("stablehlo.while")
def _read_while(r: Reader) -> list[Any]:
    init, cond, body = r.operands, r.region(0), r.region(1)
    m = len(body.captured)
    inner = body.jaxpr.jaxpr
    parameters = inner.invars[m:]
    fixed = [out is var for out, var in zip(inner.outvars, parameters)]
    consts = [*body.captured, *pick(init, fixed)]
    carried = _with_parameters(
        body.jaxpr, [*inner.invars[:m], *pick(parameters, fixed), *omit(parameters, fixed)], omit(inner.outvars, fixed)
    )
    length = _trip_count(cond, body, init)
    if length is not None:
        op: Any = Scan(carried, length, fixed.count(False), len(consts))
        outs = op.bind(*consts, *omit(init, fixed))
    else:
        n, test = len(cond.captured), cond.jaxpr.jaxpr
        predicate = _with_parameters(
            cond.jaxpr,
            [*test.invars[:n], *pick(test.invars[n:], fixed), *omit(test.invars[n:], fixed)],
            test.outvars,
        )
        cond_consts = [*cond.captured, *pick(init, fixed)]
        op = While(carried, len(consts), predicate, len(cond_consts))
        outs = op.bind(*cond_consts, *consts, *omit(init, fixed))
    return merge(fixed, pick(init, fixed), outs)


def _trip_count(cond: Region, body: Region, init: Sequence[Any]) -> int | None:
    """The trip count of a loop whose predicate compares a counter with a constant; None for other loops."""
    test = cond.jaxpr.jaxpr
    if len(test.eqns) != 1 or test.eqns[0].op.name != "lt" or test.outvars != list(test.eqns[0].outvars):
        return None
    counter, limit = test.eqns[0].invars
    n, m = len(cond.captured), len(body.captured)
    if counter not in test.invars[n:] or not isinstance(limit, Literal) or not is_integer(limit.aval.dtype):
        return None
    place = test.invars.index(counter) - n
    start = scalar_of(init[place])
    if start is None or not _counts_by_one(body.jaxpr.jaxpr, m, place):
        return None
    return max(0, int(limit.val) - int(start))


def _counts_by_one(body: Jaxpr, captured: int, place: int) -> bool:
    """Whether a loop's body increments the carry at ``place`` by one."""
    out, var = body.outvars[place], body.invars[captured + place]
    eqn = next((e for e in body.eqns if out in e.outvars), None)
    if eqn is None or eqn.op.name != "add":
        return False
    steps = [a for a in eqn.invars if isinstance(a, Literal) and int(a.val) == 1]
    return len(steps) == 1 and any(a is var for a in eqn.invars)


# --- case and if --------------------------------------------------------------------------------------------
@reads("stablehlo.if")
def _read_if(r: Reader) -> list[Any]:
    (pred,) = r.operands
    return _bind_branches(convert(pred, np.dtype(np.int32)), [r.region(1), r.region(0)])


@reads("stablehlo.case")
def _read_case(r: Reader) -> list[Any]:
    (index,) = r.operands
    last = np.int32(r.num_regions() - 1)
    producer = r.producer_of(0)
    if producer is None or producer.op.name != "clamp":  # an index out of range selects the last branch
        index = select(and_(ge(index, np.int32(0)), lt(index, last)), index, last)
    return _bind_branches(index, [r.region(i) for i in range(r.num_regions())])


def _bind_branches(index: Any, regions: Sequence[Region]) -> list[Any]:
    """Bind the branches, each extended to take all values that any of them captures."""
    operands = list({id(x): x for region in regions for x in region.captured}.values())
    branches = []
    for region in regions:
        inner = region.jaxpr.jaxpr
        mine = {id(x): v for x, v in zip(region.captured, inner.invars)}
        invars = [mine.get(id(x)) or Var(typeof(x)) for x in operands]
        branches.append(_with_parameters(region.jaxpr, invars, inner.outvars))
    outs: list[Any] = Cond(tuple(branches)).bind(index, *operands)
    return outs


# --- scan ---------------------------------------------------------------------------------------------------
@reads("mhlo.scan", "chlo.scan")
def _read_scan(r: Reader) -> list[Any]:
    """Bodies take slices before carries, and give outputs before carries; here carries come first."""
    body, dim = r.region(), r.attr("dimension")
    count, num_outputs = (r.attr(name)[0] for name in ("operandSegmentSizes", "resultSegmentSizes"))
    inputs, init = r.operands[:count], r.operands[count:]
    inner, m = body.jaxpr.jaxpr, len(body.captured)
    parameters, results = inner.invars[m:], inner.outvars
    turned = _with_parameters(
        body.jaxpr,
        [*inner.invars[:m], *parameters[count:], *parameters[:count]],
        [*results[num_outputs:], *results[:num_outputs]],
    )
    length = typeof(inputs[0]).shape[dim] if inputs else r.out_avals[0].shape[dim]
    op = Scan(turned, length, len(init), m, bool(r.attr("is_reverse", False)))
    outs: list[Any] = op.bind(*body.captured, *init, *(move_dim(x, dim, 0) for x in inputs))
    return [*(move_dim(y, 0, dim) for y in outs[len(init) :]), *outs[: len(init)]]
