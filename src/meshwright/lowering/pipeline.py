"""All that is done to a program on its way to its devices, as one list."""

from __future__ import annotations

from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr
from meshwright.ir.passes import Pass
from meshwright.lowering.batched import batching
from meshwright.lowering.lower import LOWERING
from meshwright.lowering.units import Units
from meshwright.sharding import AbstractMesh
from meshwright.spmd.driver import ALTERNATIVE, ALTERNATIVE_LOOPS, PREPARE, partition
from meshwright.spmd.partition.planner import PARTITION
from meshwright.spmd.passes.pipeline import Pipeline, communication_passes


def whole_pipeline() -> Pipeline:
    """Every pass in order, with those that have to be asked for; printed, a numbered list with a sentence each."""
    part = partition(ClosedJaxpr(Jaxpr([], [], [], [])), AbstractMesh((2,), ("devices",)), [], [])
    communication = communication_passes(part.mesh, [])
    buckets = communication_passes(part.mesh, [], combine_bytes=1).passes[len(communication.passes) :]
    asked = [Pass(p.name, p.apply, f"{p.about} (with combine_bytes)") for p in buckets]
    tried = [Pass(p.name, p.apply, f"{p.about} (where that is better)") for p in (*ALTERNATIVE, *ALTERNATIVE_LOOPS[:1])]
    localized = Pass(PARTITION, lambda jaxpr: jaxpr, "Axes spread, each equation gets its layouts, and local shapes.")
    passes = *PREPARE, *tried, localized, *communication.passes, *asked, *batching(part, Units.of(part)), *LOWERING
    return Pipeline(passes)
