"""The whole pass pipeline as one list, from tracing to compilation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr
from meshwright.ir.passes import Pass
from meshwright.lowering.batched import batching
from meshwright.lowering.lower import LOWERING, first_passes
from meshwright.lowering.units import Units
from meshwright.sharding import AbstractMesh
from meshwright.spmd.driver import ALTERNATIVE, ALTERNATIVE_LOOPS, PREPARE, partition
from meshwright.spmd.partition.layout_passes import layout_passes
from meshwright.spmd.partition.planner import PARTITION
from meshwright.spmd.passes.holding_less import GATHER_AGAIN, RECOMPUTE
from meshwright.spmd.passes.pipeline import Pipeline, communication_passes, target_passes, tiling_passes


def whole_pipeline() -> Pipeline:
    """Every pass in order, conditional ones included. It prints as a numbered list with one sentence per pass."""
    part = partition(ClosedJaxpr(Jaxpr([], [], [], [])), AbstractMesh((2,), ("devices",)), [], [])
    mesh = part.mesh
    communication = communication_passes(mesh, []).passes
    localized = Pass(
        PARTITION, lambda jaxpr: jaxpr, "Shardings are propagated; each equation gets layouts and local shapes."
    )
    return Pipeline((
        *PREPARE, *_only("where that is better", (*ALTERNATIVE, *ALTERNATIVE_LOOPS[:1])),
        *layout_passes(part.propagation, mesh), localized, *communication,
        *_only("with combine_bytes", communication_passes(mesh, [], combine_bytes=1).passes[len(communication) :]),
        *_only("where that is better", tiling_passes(mesh, []).passes[:1]),
        *_only("with memory_limit", (GATHER_AGAIN, *RECOMPUTE)),
        *batching(part, Units.of(part)), *first_passes((), "cpu"), *LOWERING,
        *_only("compiling for CPUs and TPUs", target_passes("tpu", mesh, []).passes),
    ))  # fmt: skip


def _only(when: str, passes: Iterable[Pass]) -> Iterable[Pass]:
    """The passes with the condition ``when`` appended to their descriptions."""
    return (replace(step, about=f"{step.about} ({when})") for step in passes)
