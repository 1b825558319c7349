"""Sums over devices that stay in tiles until something needs them whole.

What a layer's devices sum up they often go on with alike: in a transformer split over its heads and hidden units, each
repeats the residual stream and its norms. An all-reduce is a reduce-scatter and an all-gather; with the gather further
down, just before the next product, what is between is computed and held in tiles, for the same bytes (Korthikanti et
al. 2022, sequence parallelism). Here every large all-reduce becomes the two; where the gathers belong
:func:`~meshwright.spmd.passes.cuts.cut_gathers` finds, and pairs that stay together are merged again.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.ir.jaxpr import Jaxpr, JaxprEqn, Var
from meshwright.ops.collective.all_reduce import AllReduce
from meshwright.ops.collective.tiles import AllGather, ReduceScatter
from meshwright.spmd.varying import Variance

#: bytes of a sum from which it is worth a second collective
LARGE = 1 << 16


def scatter_sums(jaxpr: Jaxpr, variance: Variance) -> Jaxpr:
    """The jaxpr with a reduce-scatter and an all-gather for each all-reduce of a large sum that has tiles."""
    eqns = [new for eqn in jaxpr.eqns for new in _scattered(eqn)]
    return jaxpr if len(eqns) == len(jaxpr.eqns) else jaxpr.replace(eqns=eqns)


def has_large_sums(jaxpr: Jaxpr) -> bool:
    """Whether there is any such all-reduce."""
    return any(_dimension(eqn) is not None for eqn in jaxpr.eqns)


def _scattered(eqn: JaxprEqn) -> Iterator[JaxprEqn]:
    dimension = _dimension(eqn)
    if dimension is None:
        yield eqn
        return
    op, (partial,) = eqn.op, eqn.invars
    scatter = ReduceScatter(op.axes, op.sizes, dimension)  # type: ignore[attr-defined]
    tile = Var(scatter.infer(partial.aval))
    yield eqn.replace(op=scatter, outvars=[tile])
    yield eqn.replace(op=AllGather(op.axes, op.sizes, dimension), invars=[tile])  # type: ignore[attr-defined]


def _dimension(eqn: JaxprEqn) -> int | None:
    """Along which dimension a sum is to be scattered: the first of its rows that has as many tiles; features, which
    norms need whole, come last."""
    op = eqn.op
    if not isinstance(op, AllReduce) or op.reduction != "sum" or len(eqn.outvars) != 1:
        return None
    aval = eqn.outvars[0].aval
    rows = aval.shape[:-1] if aval.nbytes >= LARGE else ()
    return next((d for d, n in enumerate(rows) if n and n % op.group_size == 0), None)
