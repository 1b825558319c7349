"""One program with the layouts asked for, ready to be partitioned by one strategy after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.names import NUMBERS, Names
from meshwright.ir.passes import dump
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.partition.partitioner import Partitioner
from meshwright.spmd.partition.record import Partition
from meshwright.spmd.passes.pipeline import communication_passes, tiling_passes
from meshwright.spmd.propagate import Propagation, propagate
from meshwright.spmd.strategy import Strategy

#: the step between: each equation of the whole program becomes some of a device's
PARTITION = "partition"


@dataclass(frozen=True)
class Planner:
    """A prepared program, the mesh, and the layouts asked for (None: to be chosen).

    ``combine_bytes`` and ``names`` are those of :func:`meshwright.spmd.driver.partition`.
    """

    jaxpr: ClosedJaxpr
    mesh: AbstractMesh
    in_layouts: Sequence[Layout | None]
    out_layouts: Sequence[Layout | None]
    combine_bytes: int = 0
    names: Names = NUMBERS
    #: equations verified before: strategies differ in few
    verified: set[Any] = field(default_factory=set)

    def propagate(self, strategy: Strategy) -> Propagation:
        """Layouts for all values, as annotations spread by a strategy."""
        return propagate(self.jaxpr.jaxpr, self.mesh, self.in_layouts, self.out_layouts, strategy)

    def partition(self, propagation: Propagation) -> Partition:
        """The per-device program for what was propagated, its communication improved."""
        partitioner = Partitioner(
            self.jaxpr, self.mesh, propagation, self.in_layouts, self.out_layouts, names=self.names
        )
        part = partitioner.run()
        dump(part.jaxpr, PARTITION)
        passes = communication_passes(self.mesh, part.in_layouts, self.combine_bytes)
        part.jaxpr, part.changes = passes.run(part.jaxpr, self.verified)
        return self.in_tiles(part) if propagation.strategy.tiles else part

    def in_tiles(self, part: Partition) -> Partition:
        """The same with sums over devices kept in tiles."""
        passes = tiling_passes(self.mesh, part.in_layouts, self.combine_bytes)
        jaxpr, changes = passes.run(part.jaxpr, self.verified)
        return replace(part, jaxpr=jaxpr, changes=[*part.changes, *changes])
