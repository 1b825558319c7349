"""Compiling partitioned programs for hardware that need not be present."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from meshwright.errors import ArgumentError
from meshwright.spmd.memory.compilers import compiler_for
from meshwright.spmd.memory.held import Memory
from meshwright.spmd.memory.predict import predict
from meshwright.spmd.report import human_bytes
from meshwright.spmd.steptime.report import time_of
from meshwright.stablehlo.hlo import module_bytecode
from meshwright.targets.child import Progress as CompileProgress
from meshwright.targets.compiling import Subject, compile_for
from meshwright.targets.report import Prediction, TargetReport
from meshwright.targets.topology import CompileTarget, target
from meshwright.verification.progress import on_terminal

if TYPE_CHECKING:
    from meshwright.api.partitioned import PartitionedProgram

__all__ = ["CompileProgress", "CompileTarget", "compile_for_target"]


def compile_for_target(
    part: PartitionedProgram, where: str | CompileTarget, progress: CompileProgress | None = None
) -> TargetReport:
    """Compile a per-device program for a target; see :meth:`PartitionedProgram.compile`."""
    chosen = target(where).holding(part.num_devices)
    chosen.order_of(part.mesh)  # raises if the mesh does not fit, before anything is compiled
    if part.platform not in (None, chosen.platform):
        machine = chosen.machine.name
        raise ArgumentError(
            f"compile: {part.name!r} chooses what it computes by platform, and was partitioned for {part.platform}, "
            f"not {chosen.platform}; partition it on the machine: .partition(mesh.abstract_mesh.on({machine!r}))"
        )
    subject = Subject(
        part.name, module_bytecode(part.module(chosen.platform)), part.mesh, part.collectives,
        Prediction(memory_on(part, chosen), part.bytes_sent, _seconds(part, chosen)),
    )  # fmt: skip
    with _shown(f"compiling {part.name} for {chosen.name}", progress) as told:
        return compile_for(subject, chosen, told)


def memory_on(part: PartitionedProgram, chosen: CompileTarget) -> Memory:
    """The predicted memory of one device of a target, without compiling."""
    compiler = compiler_for(chosen.platform, chosen.machine.chip.name)
    mesh, known = part.mesh.abstract_mesh, part.part.stands_for
    with part.program.precision():
        return predict(part.jaxpr_for(chosen.platform), mesh, part.donated, known, part.names, compiler)


def _seconds(part: PartitionedProgram, chosen: CompileTarget) -> float | None:
    """The predicted time of a run on the target; None for CPUs, which have not been measured."""
    if chosen.platform == "cpu":
        return None
    return time_of(part.jaxpr.jaxpr, part.mesh.abstract_mesh.on(chosen.machine)).seconds


@contextmanager
def _shown(what: str, progress: CompileProgress | None) -> Iterator[CompileProgress]:
    if progress is not None:
        yield progress
        return
    with on_terminal(what) as bar:
        yield lambda seconds, held: bar(f"{seconds:.0f} s, {human_bytes(held)} of memory", 0, 0)
