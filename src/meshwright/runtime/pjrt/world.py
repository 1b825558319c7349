"""The index of this process and the number of processes. One process, until ``distributed.initialize`` is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

from meshwright.core.records import dataclass
from meshwright.errors import DistributedError


@dataclass
class World:
    """The processes that compute together.

    ``service`` is the connection to the coordinator: a table of keys and values.
    """

    rank: int = 0
    count: int = 1
    host: str = "127.0.0.1"
    service: Any = None
    #: the numbers, on this machine, of the accelerator's devices that are this process's; None for all
    own_devices: tuple[int, ...] | None = None
    #: what else lives as long as the job: the service itself, where this process holds it
    keep: Any = None
    #: what passes on what XLA and the coordinator say, and what sees the coordinator end
    proxy: Any = None
    watch: Any = None
    #: processes that the coordinator says have ended, or are silent
    gone: set[int] = field(default_factory=set)
    #: what has become of the coordinator; empty while it is there
    lost: str = ""
    #: notes what this process starts that others take part in; ``runtime.processes`` does
    note_run: Callable[[str], None] | None = None
    #: what a failed run means, if another process is behind it; ``runtime.processes`` knows
    explain: Callable[[Exception, Any], Exception | None] | None = None

    def check(self) -> None:
        """Raise if the coordinator is lost.

        Raises:
          DistributedError
        """
        if self.lost:
            raise DistributedError(self.lost)

    def behind(self, error: Exception, maker: Any) -> Exception | None:
        """What another process did that is behind an error of ``maker`` (a program, or what it was, in words); None if
        none is."""
        return None if self.explain is None else self.explain(error, maker)


#: there is one
WORLD = World()
