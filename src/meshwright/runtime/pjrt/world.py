"""The index of this process and the number of processes. One process, until ``distributed.initialize`` is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

from meshwright.core.records import dataclass
from meshwright.errors import DistributedError


@dataclass
class World:
    """The processes of a job.

    ``service`` is the connection to the coordinator, a key-value store.
    """

    rank: int = 0
    count: int = 1
    host: str = "127.0.0.1"
    service: Any = None
    #: the numbers of this process's accelerators on this machine; None for all
    own_devices: tuple[int, ...] | None = None
    #: objects to keep alive for as long as the job, such as the service itself if it is in this process
    keep: Any = None
    #: the proxy for the connection to the coordinator, and the thread that watches the coordinator
    proxy: Any = None
    watch: Any = None
    #: processes that have ended or are silent, according to the coordinator
    gone: set[int] = field(default_factory=set)
    #: what happened to the coordinator, in words; empty while it is alive
    lost: str = ""
    #: records that this process starts something in which others take part; set by ``runtime.processes``
    note_run: Callable[[str], None] | None = None
    #: the cause of a failed run, if it is another process; set by ``runtime.processes``
    explain: Callable[[Exception, Any], Exception | None] | None = None

    def check(self) -> None:
        """Raise if the coordinator is lost.

        Raises:
          DistributedError: says what happened to it.
        """
        if self.lost:
            raise DistributedError(self.lost)

    def behind(self, error: Exception, maker: Any) -> Exception | None:
        """The error of another process that caused ``error``, or None.

        ``maker`` is the program that failed, or a description of it.
        """
        return None if self.explain is None else self.explain(error, maker)


#: the only instance
WORLD = World()
