"""Splits all-reduces of large sums so that the sums stay scattered until they are needed whole.

After a sum over devices, all of them often repeat the same computation: in a transformer that is split over heads and
hidden units, the residual stream and its norms. An all-reduce is a reduce-scatter and an all-gather. If the gather is
done later, just before the next product, what is between is computed and stored in tiles, for the same bytes (sequence
parallelism, Korthikanti et al. 2022). This pass splits every large all-reduce;
:func:`~meshwright.spmd.passes.cuts.cut_gathers` then places the gathers, and pairs that are still adjacent are merged
again.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.ir.jaxpr import Jaxpr, JaxprEqn, Var
from meshwright.ir.rewrite import rebuilt
from meshwright.ops.collective.all_reduce import AllReduce
from meshwright.ops.collective.tiles import AllGather, ReduceScatter
from meshwright.spmd.varying import Variance

#: the least size in bytes of a sum that is worth a second collective
LARGE = 1 << 16


def scatter_sums(jaxpr: Jaxpr, variance: Variance) -> Jaxpr:
    """The jaxpr with a reduce-scatter and an all-gather for each all-reduce of a large sum that has tiles."""
    return rebuilt(jaxpr, [new for eqn in jaxpr.eqns for new in _scattered(eqn)])


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
    """The dimension along which to scatter a sum, or None: the first one that divides evenly, except the last.

    The last dimension holds features, which norms need whole.
    """
    op = eqn.op
    if not isinstance(op, AllReduce) or op.reduction != "sum" or len(eqn.outvars) != 1:
        return None
    aval = eqn.outvars[0].aval
    rows = aval.shape[:-1] if aval.nbytes >= LARGE else ()
    return next((d for d, n in enumerate(rows) if n and n % op.group_size == 0), None)
