"""Messages between the processes that write a checkpoint together. A single process is a group too."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from meshwright.errors import CheckpointError, DistributedError, MeshwrightError
from meshwright.runtime.pjrt.world import WORLD
from meshwright.runtime.processes import heartbeats

#: how many seconds processes wait for each other
PATIENCE = 3600.0
_saves = itertools.count()


class Group:
    """The group of processes for one checkpoint. All processes create their groups in the same order."""

    def __init__(self) -> None:
        self.rank, self.count = WORLD.rank, WORLD.count
        self.table = heartbeats.LIVING.table
        self.key = f"meshwright/checkpoint/{next(_saves)}"
        self._is_named = False

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        """Tell the other processes about an exception in the ``with`` block, as they would wait for this one.

        ``what`` is the beginning of the message.

        Raises:
          CheckpointError: instead of an ``OSError``. If another process has reported a failure, it is that one, which
            may be the cause, since the files are removed after a failure.
        """
        try:
            yield
        except BaseException as error:
            text = str(error) if isinstance(error, MeshwrightError) else f"{what}: {error or type(error).__name__}"
            is_file = isinstance(error, (OSError, CheckpointError))
            with suppress(DistributedError):
                text = (self._told_failure() if is_file else "") or text
                self._tell_failure(text if self.leads or self.count == 1 else f"rank {self.rank}: {text}")
            if is_file:
                raise CheckpointError(text) from None
            raise

    def _told_failure(self) -> str:
        """The failure that another process has reported; empty if there is none."""
        if self.table is None:
            return ""
        if not self.leads:
            return (self.table.get(f"{self.key}/finished/0", 0) or b"").decode()
        told = (self.table.get(f"{self.key}/written/{rank}", 0) for rank in range(1, self.count))
        return next((f for m in told if m is not None and (f := json.loads(m).get("failed"))), "")

    def _tell_failure(self, text: str) -> None:
        """Report a failure under all keys for which the other processes may still wait."""
        if not self.leads:
            self.tell("written", json.dumps({"failed": text}))
            return
        if not self._is_named:
            self.tell("token", json.dumps({"failed": text}))
        self.tell("finished", text)

    def token(self, name: str, format: str) -> str:
        """A unique token for the checkpoint in the folder ``name``, created by the first process.

        Raises:
          CheckpointError: the first process failed, or saves a checkpoint of another name or format.
        """
        if self.leads:
            mine = {"token": uuid.uuid4().hex[:12], "name": name, "format": format}
            self.tell("token", json.dumps(mine))
            self._is_named = True
            return mine["token"]
        theirs = json.loads(self.hear("token", 0))
        if "failed" in theirs:
            raise CheckpointError(theirs["failed"])
        if theirs["name"] != name:
            raise CheckpointError(
                f"save: rank 0 saves {theirs['name']!r} here, rank {self.rank} {name!r}: all processes must save the "
                "same checkpoints, in the same order"
            )
        if theirs["format"] != format:
            raise CheckpointError(
                f"save: rank 0 saves {name!r} as {theirs['format']}, rank {self.rank} as {format}; all processes must "
                "give the same format"
            )
        return theirs["token"]

    def tell(self, what: str, text: str) -> None:
        if self.table is not None:
            self.table.put(f"{self.key}/{what}/{self.rank}", text.encode())

    def hear(self, what: str, rank: int, alone: str = "") -> str:
        """Wait for the message ``what`` of process ``rank``; ``alone`` without other processes.

        Raises:
          CheckpointError: the process is gone, or has sent nothing for :data:`PATIENCE` seconds.
        """
        if self.table is None:
            return alone
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                message = self.table.get(f"{self.key}/{what}/{rank}", 1)
                gone = heartbeats.are_gone((rank,)) if message is None else {}
            except DistributedError as error:
                raise CheckpointError(f"a checkpoint could not be finished: {error}") from None
            if message is not None:
                return message.decode()
            if gone:
                raise CheckpointError(f"a checkpoint could not be finished: rank {rank} {gone[rank]}")
        raise CheckpointError(f"a checkpoint could not be finished: rank {rank} wrote nothing for {PATIENCE:.0f} s")
