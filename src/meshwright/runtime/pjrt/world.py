"""Which process this is, of how many. One, until ``distributed.initialize`` says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.core.records import dataclass


@dataclass
class World:
    """The processes that compute together.

    ``service`` is the connection to the coordinator: barriers, a table of keys and values, who is alive.
    """

    rank: int = 0
    count: int = 1
    host: str = "127.0.0.1"
    service: Any = None
    #: what else lives as long as the job: the service itself, where this process holds it
    keep: Any = None
    #: what sees the coordinator end
    watch: Any = None
    #: what a failed run means, if another process is behind it; ``runtime.processes`` knows
    explain: Callable[[Exception, Any], Exception | None] | None = None


#: there is one
WORLD = World()
