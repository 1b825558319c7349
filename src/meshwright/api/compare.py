"""Our partition of a program beside the one that XLA's own partitioner makes of it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from meshwright.api.load import ImportedProgram, load
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError
from meshwright.runtime.pjrt.xla_partitioner import XlaPartition, xla_partition


@dataclass(frozen=True)
class PartitionFigures:
    """One partitioner's result: collectives as ``{kind: (count, bytes sent)}``, seconds it took, bytes it holds.

    ``redundancy`` is the work of all devices over the program's, ``run_seconds`` the modelled time of a run; they are 0
    where they are not known.
    """

    kinds: dict[str, tuple[int, int]]
    seconds: float
    memory_bytes: int
    redundancy: float = 0.0
    run_seconds: float = 0.0

    @property
    def bytes_sent(self) -> int:
        return sum(sent for _, sent in self.kinds.values())


def by_kind(found: Iterable[tuple[str, int]]) -> dict[str, tuple[int, int]]:
    """Count and bytes of collectives, by kind."""
    kinds: dict[str, tuple[int, int]] = {}
    for kind, sent in found:
        count, total = kinds.get(kind, (0, 0))
        kinds[kind] = count + 1, total + sent
    return kinds


def our_figures(program: ImportedProgram, **where: Any) -> PartitionFigures:
    """What our partitioner makes of a program; memory is the predicted peak."""
    start = time.perf_counter()
    part = program.partition(**where)
    found = by_kind((c.kind, c.bytes_sent) for c in part.collectives)
    seconds = time.perf_counter() - start
    return PartitionFigures(found, seconds, part.peak_bytes, part.work.redundancy, part.time().seconds)


def xla_figures(source: str | Path | bytes, program: ImportedProgram | None = None) -> PartitionFigures:
    """What XLA's partitioner makes of a StableHLO file, or of its bytes; memory is the peak, as compiled.

    Raises:
      ArgumentError: the program is written for one device.
      CompileError: XLA refused it.
    """
    program = program or load(source)
    devices = program.num_partitions
    if devices < 2:
        raise ArgumentError(f"compare: {program.name!r} has no shardings, so XLA has nothing to partition")
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    free = [s is None for s in program.parsed.result_shardings]
    found: XlaPartition = xla_partition(data, devices, free)
    return PartitionFigures(by_kind(found.collectives), found.seconds, found.peak_bytes)
