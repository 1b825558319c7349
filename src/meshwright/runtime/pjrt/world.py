"""The processes of the job. One, until ``distributed.initialize`` is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any

from meshwright.core.records import dataclass
from meshwright.core.slots import Slot
from meshwright.errors import DistributedError


@dataclass
class World:
    """What this process knows of the job: its own number and that of the processes, and the state of the others.

    ``service`` is the connection to the coordinator, a key-value store.
    """

    rank: int = 0
    count: int = 1
    host: str = "127.0.0.1"
    service: Any = None
    #: the numbers of this process's accelerators on this machine; None for all
    own_devices: tuple[int, ...] | None = None
    #: processes that have ended or are silent, according to the coordinator
    gone: set[int] = field(default_factory=set)
    #: what happened to the coordinator, in words; empty while it is alive
    lost: str = ""

    def check(self) -> None:
        """Raise if the coordinator is lost.

        Raises:
          DistributedError: says what happened to it.
        """
        if self.lost:
            raise DistributedError(self.lost)


#: the only instance
WORLD = World()


def ranks_of(devices: Iterable[Any]) -> tuple[int, ...]:
    """The processes that have some of the devices, in ascending order."""
    return tuple(sorted({d.process_index for d in devices}))


#: records, in a job of several processes, that this one starts something in which others take part
NOTE_RUN: Slot[Callable[[str], None]] = Slot("the record of common runs", "meshwright.runtime.processes.heartbeats")
#: the error of another process that caused an error here, or None, given the program that failed or its description
CAUSE: Slot[Callable[[Exception, Any], Exception | None]] = Slot(
    "the search for the process that failed", "meshwright.runtime.processes.agreement"
)
