"""What to verify, and how."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.core.records import dataclass
from meshwright.ir.names import NUMBERS, Names
from meshwright.spmd.partition.result import Partition

#: called with the current step in words, the number of parts done, and of all parts
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Request:
    """See :meth:`meshwright.api.partitioned.PartitionedProgram.verify`."""

    part: Partition
    name: str
    rtol: float
    atol: float
    seed: int
    finite: float
    progress: Progress
    names: Names = NUMBERS
