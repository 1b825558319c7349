"""Recognizes slices by which each device takes its own tile: ``dynamic_slice`` at a start that is its position.

So other partitioners write them, and functions for one device (``shard_map``). As ``all_slice`` they merge with the
collectives before them: a sum of which each device reads its own tile becomes a reduce-scatter, as XLA's compilers for
accelerators make it (``ReduceScatterCreator``).
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.core.avals import Axes
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.rewrite import in_regions, rebuilt
from meshwright.ops.collective.base import AxisIndex
from meshwright.ops.collective.inside import collectives_in
from meshwright.ops.collective.tiles import AllSlice
from meshwright.ops.indexing.dynamic_slice import DynamicSlice
from meshwright.sharding import AbstractMesh
from meshwright.spmd.positions import Known, Positions
from meshwright.spmd.varying import Variance, region_inputs


def slice_own_tiles(jaxpr: ClosedJaxpr, inputs: Sequence[Axes], mesh: AbstractMesh) -> ClosedJaxpr:
    """Replace such slices of what all devices along some axes hold by ``all_slice``, in loops and branches too.

    ``inputs`` are the axes along which the parameters differ.
    """
    if not any(isinstance(each, AxisIndex) for each in collectives_in(jaxpr.jaxpr)):
        return jaxpr
    return _sliced(jaxpr, inputs, mesh, Known())


def _sliced(jaxpr: ClosedJaxpr, inputs: Sequence[Axes], mesh: AbstractMesh, given: Known) -> ClosedJaxpr:
    inner = jaxpr.jaxpr
    known = Positions(jaxpr, mesh, given)
    variance = Variance(inner, inputs, mesh.expand)
    eqns = []
    for eqn in inner.eqns:
        if eqn.op.holds_jaxprs and eqn.op.regions():
            eqns.append(_in_regions(eqn, known, variance, mesh))
        else:
            eqns.append(_own_tiles(eqn, known, variance, mesh) or eqn)
    return jaxpr.replace(jaxpr=rebuilt(inner, eqns))


def _in_regions(eqn: JaxprEqn, known: Positions, variance: Variance, mesh: AbstractMesh) -> JaxprEqn:
    inputs, given = iter(region_inputs(eqn, variance.varying, mesh.expand)), known.inside(eqn)
    return in_regions(eqn, lambda region: _sliced(region, next(inputs), mesh, next(given)))


def _own_tiles(eqn: JaxprEqn, known: Positions, variance: Variance, mesh: AbstractMesh) -> JaxprEqn | None:
    """The slice as an ``all_slice``; None if it is not one along one dimension."""
    if not isinstance(eqn.op, DynamicSlice):
        return None
    x, *starts = eqn.invars
    shape, sizes = x.aval.shape, eqn.op.slice_sizes
    cut = [d for d, (whole, part) in enumerate(zip(shape, sizes)) if whole != part]
    if len(cut) != 1:
        return None
    (dimension,) = cut
    axes = known.axes_of_tiles(starts[dimension], sizes[dimension], shape[dimension])
    if axes is None or not variance.same(x, axes):
        return None
    op = AllSlice(axes, tuple(map(mesh.axis_size, axes)), dimension)
    return eqn.replace(op=op, invars=[x])
