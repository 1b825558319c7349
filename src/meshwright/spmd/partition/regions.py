"""What partitioning a region (a body of control flow, a manual region) needs of the partitioner around it.

Equations with regions are partitioned by :mod:`~meshwright.spmd.partition.control` and
:mod:`~meshwright.spmd.partition.manual`, which know the partitioner by these protocols alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.partition.result import Diagnostics, Partition
from meshwright.spmd.partition.summands import Summands
from meshwright.spmd.partition.values import LocalProgram, PartitionedValue, Use
from meshwright.spmd.propagate import Propagation

#: results on a device, and their layouts
Results = tuple[Sequence[Any], Sequence[Layout]]


@dataclass(frozen=True)
class KeepPartial:
    """A request for a result of a region: any layout is accepted, and partial sums are left as they are.

    ``repeats`` of them are added up or stacked before they are reduced. ``reductions`` are the reductions for which the
    result may stay partial; empty: any. ``stacked``: they are stacked, so that reducing each sends as many bytes.
    """

    repeats: float = 1
    reductions: tuple[str, ...] = ()
    stacked: bool = False

    def keeps(self, layout: Layout) -> bool:
        """Whether ``layout`` is partial with one of the accepted reductions."""
        return bool(layout.partial) and (not self.reductions or layout.reduction in self.reductions)


#: the layout that a result should get, or what else is asked of it; None: the one that propagation found
Wanted = Layout | KeepPartial | None


class RecordedRegion(Protocol):
    """A region whose equations are recorded, and whose results can still get any layout."""

    def results(self) -> list[PartitionedValue]: ...

    def finished(self, wanted: Sequence[Wanted] | None = None) -> Partition:
        """The region's per-device program, with its results in the layouts ``wanted``: by default, as first asked."""
        ...


class Scope(Protocol):
    """The program, or region, that an equation with regions is in."""

    @property
    def mesh(self) -> AbstractMesh: ...
    @property
    def propagation(self) -> Propagation: ...
    @property
    def local(self) -> LocalProgram: ...
    @property
    def summands(self) -> Summands: ...
    @property
    def diagnostics(self) -> Diagnostics: ...

    def region(
        self,
        jaxpr: ClosedJaxpr,
        in_layouts: Sequence[Layout],
        out_layouts: Sequence[Wanted],
        mesh: AbstractMesh | None = None,
        runs: Sequence[int] | None = None,
        given: Sequence[PartitionedValue] = (),
    ) -> RecordedRegion:
        """Record the equations of a region.

        ``mesh`` is the mesh to partition over; by default, that of the program. ``runs``: for how many runs of the
        region each of its inputs stays the same; by default, for one. ``given``: what the first of its inputs are in
        every run, as values of this scope.
        """
        ...


def layout_inside(scope: Scope, operand: Atom, parameter: Atom) -> Layout:
    """The layout in which a region takes an operand: the one propagation found for ``parameter``, else the present one.

    For a scanned operand, this is the layout of its slices.
    """
    layout = scope.propagation.layout(parameter)
    if any(layout.dims):
        return layout
    present = scope.local.value(operand).layouts[0].drop_partial()
    return Layout(present.dims[operand.aval.ndim - parameter.aval.ndim :])


def operands_in(scope: Scope, eqn: JaxprEqn, layouts: Sequence[Layout]) -> list[Any]:
    """The operands of an equation on a device, in these layouts."""
    numbered = enumerate(zip(eqn.invars, layouts))
    return [scope.local.bring(scope.local.value(a), layout, Use(eqn, n)) for n, (a, layout) in numbered]
