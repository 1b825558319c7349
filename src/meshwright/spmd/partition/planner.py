"""A program with its requested layouts, which can be partitioned with different strategies."""

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
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.passes.pipeline import communication_passes, tiling_passes
from meshwright.spmd.propagate import Propagation, propagate
from meshwright.spmd.strategy import Strategy

#: name of the step that replaces the equations of the global program by per-device ones, for dumps
PARTITION = "partition"


@dataclass(frozen=True)
class Planner:
    """A prepared program, the mesh, and the requested layouts (None: to be chosen).

    For ``combine_bytes`` and ``names``, see :func:`meshwright.spmd.driver.partition`.
    """

    jaxpr: ClosedJaxpr
    mesh: AbstractMesh
    in_layouts: Sequence[Layout | None]
    out_layouts: Sequence[Layout | None]
    combine_bytes: int = 0
    names: Names = NUMBERS
    #: equations that were verified before; the programs of different strategies share most equations
    verified: set[Any] = field(default_factory=set)
    #: what annotations spread to, by strategy
    spread: dict[Strategy, Propagation] = field(default_factory=dict)

    def propagate(self, strategy: Strategy) -> Propagation:
        """Layouts for all values, propagated from the annotations with a strategy."""
        return propagate(self.jaxpr.jaxpr, self.mesh, self.in_layouts, self.out_layouts, strategy, self.spread)

    def partition(self, propagation: Propagation) -> Partition:
        """The per-device program for the propagated layouts, after the communication passes."""
        partitioner = Partitioner(
            self.jaxpr, self.mesh, propagation, self.in_layouts, self.out_layouts, names=self.names
        )
        part = partitioner.run()
        dump(part.jaxpr, PARTITION)
        passes = communication_passes(self.mesh, part.in_layouts, self.combine_bytes)
        jaxpr, changes = passes.run(part.jaxpr, self.verified)
        part = replace(part, jaxpr=jaxpr, changes=changes)
        return self.in_tiles(part) if part.strategy.tiles else part

    def in_tiles(self, part: Partition) -> Partition:
        """``part`` after the passes that keep sums over devices in tiles."""
        passes = tiling_passes(self.mesh, part.in_layouts, self.combine_bytes)
        jaxpr, changes = passes.run(part.jaxpr, self.verified)
        strategy = replace(part.strategy, tiles=True)
        return replace(part, jaxpr=jaxpr, changes=[*part.changes, *changes], strategy=strategy)
