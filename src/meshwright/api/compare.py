"""Compares our partition of a program with that of XLA's own partitioner."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from meshwright.api.binding import partitioned_elsewhere
from meshwright.api.load import ImportedProgram, load
from meshwright.core.dtypes import wide_types
from meshwright.core.files import user_file
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, MeshwrightError
from meshwright.ops.sharding.constraint import without_constraints
from meshwright.runtime.pjrt.xla_partitioner import XlaPartition, xla_partition
from meshwright.sharding import AbstractMesh
from meshwright.spmd.memory.compilers import platform_of
from meshwright.spmd.memory.predict import predict
from meshwright.spmd.passes.pipeline import with_reduce_scatters
from meshwright.spmd.report import collectives
from meshwright.spmd.steptime.report import time_of
from meshwright.spmd.work import work_of
from meshwright.stablehlo.hlo import module_bytecode
from meshwright.stablehlo.sources import parse_program, stablehlo_of
from meshwright.targets.hlo import parse_hlo
from meshwright.targets.matching import sent_bytes
from meshwright.targets.schedule import Scheduled, schedule_of


@dataclass(frozen=True)
class PartitionFigures:
    """The result of one partitioner: collectives as ``{kind: (count, bytes sent)}``, seconds it took, bytes of memory.

    A collective in a loop is counted once, its bytes once per iteration where their number is known. ``redundancy`` is
    the work of all devices divided by that of the program, ``run_seconds`` the modelled time of a run; both are None
    where the per-device program cannot be read, and ``note`` says why.
    """

    kinds: dict[str, tuple[int, int]]
    seconds: float
    memory_bytes: int
    redundancy: float | None = None
    run_seconds: float | None = None
    note: str = ""

    @property
    def bytes_sent(self) -> int:
        return sum(sent for _, sent in self.kinds.values())


def by_kind(collectives: Iterable[tuple[str, int]]) -> dict[str, tuple[int, int]]:
    """Count and bytes of collectives by kind."""
    kinds: dict[str, tuple[int, int]] = {}
    for kind, sent in collectives:
        count, total = kinds.get(kind, (0, 0))
        kinds[kind] = count + 1, total + sent
    return kinds


def our_figures(program: ImportedProgram, **where: Any) -> PartitionFigures:
    """The figures of our partition of a program; memory is the predicted peak."""
    start = time.perf_counter()
    part = program.partition(**where)
    traffic = by_kind((c.kind, c.bytes_sent) for c in part.collectives)
    seconds = time.perf_counter() - start
    return PartitionFigures(traffic, seconds, part.peak_bytes, part.work.redundancy, part.time().seconds)


def compiled_figures(program: ImportedProgram, **where: Any) -> PartitionFigures:
    """The figures of our per-device program as compiled by XLA, comparable with :func:`xla_figures`.

    XLA simplifies a program before it is counted (a division by a constant becomes a product), which is not the
    partitioner's doing.

    Raises:
      CompileError: XLA rejected it.
    """
    part = program.partition(**where)
    module = module_bytecode(part.module("cpu"))
    return _figures(partial(xla_partition, module, part.mesh.size, (), True), program, where.get("mesh"))


def xla_figures(
    source: str | Path | bytes, program: ImportedProgram | None = None, mesh: AbstractMesh | None = None
) -> PartitionFigures:
    """The figures of XLA's partition of a file, or its bytes; memory is the peak of the compiled program.

    Work and time are those of XLA's per-device module on ``mesh`` (or the program's own), by the cost model that prices
    our programs. So is memory where the mesh names an accelerator, as the program is compiled for CPUs.

    Raises:
      ArgumentError: the program is written for one device.
      ImportProgramError: it cannot be read.
      CompileError: XLA rejected it.
    """
    program = program or load(source)
    devices = program.num_partitions
    if devices < 2 or program.is_stacked:
        why = "is partitioned already" if program.is_stacked else "has no shardings"
        raise ArgumentError(f"compare: {program.name!r} {why}, so XLA has nothing to partition")
    with user_file("compare: source", "<bytes>" if isinstance(source, bytes) else source):
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
    free = [s is None for s in program.parsed.result_shardings]
    return _figures(partial(xla_partition, stablehlo_of(data), devices, free), program, mesh)


def _figures(
    compiled: Callable[..., XlaPartition], program: ImportedProgram, mesh: AbstractMesh | None
) -> PartitionFigures:
    """The figures of a module that XLA compiles. Where it cannot be read, those that XLA itself states, for CPUs."""
    partition = compiled(memory=mesh is None or platform_of(mesh) == "cpu")
    try:
        known = _priced(partition.text, program, mesh)
    except MeshwrightError as error:
        partition = compiled(memory=True) if partition.peak_bytes is None else partition
        if not partition.compiled:
            raise
        scheduled = schedule_of(parse_hlo(partition.compiled), program.num_partitions).collectives
        kinds = by_kind((c.kind, c.count * _sent(c)) for c in scheduled)
        known = {
            "kinds": kinds,
            "note": f"work and time of XLA's program are not known, its memory is on CPUs: {error}",
        }
    return PartitionFigures(**{"seconds": partition.seconds, "memory_bytes": partition.peak_bytes, **known})


def _sent(collective: Scheduled) -> int:
    """Bytes that one device sends in one run of a collective, from the sizes of its results."""
    group = max(map(len, collective.groups))
    result = sum(t.nbytes for t in collective.instruction.types)
    operand = {"all_gather": result // group, "reduce_scatter": result * group}.get(collective.kind, result)
    return sent_bytes(collective.kind, group, operand)


def _priced(text: str, program: ImportedProgram, mesh: AbstractMesh | None) -> dict[str, Any]:
    """Collectives, redundancy and modelled seconds of XLA's per-device module, by the model that prices our programs;
    memory, too, on an accelerator.

    Sums of which devices read their own tiles count as reduce-scatters: XLA's compilers for accelerators make those
    after partitioning, the one for CPUs does not.

    Raises:
      MeshwrightError: the module cannot be read.
    """
    bound = program.bound(mesh)
    assert bound.mesh is not None
    on = bound.mesh.abstract_mesh
    with wide_types():  # it may count in 64 bits where the program does not: the places of a device's random bits
        parsed = parse_program(text, f"{program.name} as XLA has it", per_device=True)
        device = with_reduce_scatters(partitioned_elsewhere(parsed.jaxpr, bound.mesh, program.name), on)
        whole = without_constraints(bound.jaxpr)
        found: dict[str, Any] = {
            "kinds": by_kind((c.kind, c.bytes_sent) for c in collectives(device.jaxpr, on)),
            "redundancy": work_of(device.jaxpr, whole.jaxpr, on).redundancy,
            "run_seconds": time_of(device.jaxpr, on).seconds,
        }
        if platform_of(on) != "cpu":
            found["memory_bytes"] = predict(device, on, bound.donated).peak_bytes
        return found
