"""The processes that write one checkpoint together; one alone is such a group too."""

from __future__ import annotations

import itertools
import time
import uuid

from meshwright.errors import CheckpointError, DistributedError
from meshwright.runtime.pjrt.world import WORLD
from meshwright.runtime.processes import signs

#: seconds that processes wait for each other's parts
PATIENCE = 3600.0
_saves = itertools.count()


class Group:
    """Messages between the processes for one checkpoint; made in the same order in all of them."""

    def __init__(self) -> None:
        self.rank, self.count = WORLD.rank, WORLD.count
        self.table = signs.LIVING.table
        self.key = f"meshwright/checkpoint/{next(_saves)}"

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def token(self) -> str:
        """A word that all have, and nobody else."""
        mine = uuid.uuid4().hex[:12]
        if self.leads:
            self.tell("token", mine)
            return mine
        return self.hear("token", 0)

    def tell(self, what: str, text: str) -> None:
        if self.table is not None:
            self.table.put(f"{self.key}/{what}/{self.rank}", text.encode())

    def hear(self, what: str, rank: int, alone: str = "") -> str:
        """What process ``rank`` tells.

        Raises:
          CheckpointError: it has failed, or tells nothing.
        """
        if self.table is None:
            return alone
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                message = self.table.get(f"{self.key}/{what}/{rank}", 1)
                gone = signs.are_gone((rank,)) if message is None else {}
            except DistributedError as error:
                raise CheckpointError(f"a checkpoint could not be finished: {error}") from None
            if message is not None:
                return message.decode()
            if gone:
                raise CheckpointError(f"a checkpoint could not be finished: rank {rank} {gone[rank]}")
        raise CheckpointError(f"a checkpoint could not be finished: rank {rank} wrote nothing for {PATIENCE:.0f} s")
