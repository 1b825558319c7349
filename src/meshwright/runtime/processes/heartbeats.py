"""Heartbeats, and the diagnosis of a failed collective: which process is dead, stopped, silent or late.

Each process publishes twice a second what it last started. A process in which a program fails reads the heartbeats of
the others, waits for a moment, and reads them again.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from meshwright.core.background import Background
from meshwright.core.records import dataclass
from meshwright.errors import DistributedError
from meshwright.runtime.pjrt.coordination import Table
from meshwright.runtime.pjrt.world import NOTE_RUN, WORLD
from meshwright.runtime.processes.rendezvous import SILENCE

#: seconds between two heartbeats
PERIOD = 0.5
#: seconds to wait for the coordinator's answer, after which it is slow or lost
_ANSWER = 10.0
#: seconds that sending the last heartbeat may take
_LAST = 5.0


@dataclass
class Heartbeat:
    """A heartbeat. ``number`` increases as long as the process lives, ``runs`` with each program of several processes.

    ``last`` is the name of the last such program that was started.
    """

    number: int = 0
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    runs: int = 0
    last: str = "nothing"
    #: how this process left the job, in words; empty while it takes part
    left: str = ""
    #: processes whose failure caused that of this one
    blames: list[int] = field(default_factory=list)


@dataclass
class _Living:
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    table: Table | None = None
    thread: Background | None = None


LIVING = _Living()


def begin(service: Any) -> Table:
    """Start publishing heartbeats."""
    LIVING.heartbeat, LIVING.table = Heartbeat(), Table(service)
    _give()
    LIVING.thread = Background(_keep_giving, "meshwright-heartbeats")
    return LIVING.table


def end(how: str) -> None:
    """Stop publishing heartbeats; the last one says ``how`` this process leaves."""
    if LIVING.thread is not None:
        LIVING.thread.end(_LAST)
    LIVING.heartbeat.left = how
    with suppress(DistributedError):
        _give()
    LIVING.table = None


def note_run(what: str) -> None:
    """Record the start of a program in which other processes take part.

    Raises:
      DistributedError: the coordinator is lost.
    """
    WORLD.check()
    LIVING.heartbeat.runs += 1
    LIVING.heartbeat.last = what


NOTE_RUN.fill(note_run)


def note_blame(ranks: tuple[int, ...]) -> None:
    """Publish which processes caused the failure of this one, so that others do not blame it."""
    LIVING.heartbeat.blames = list(ranks)
    with suppress(DistributedError):
        _give()


def _give() -> None:
    LIVING.heartbeat.number += 1
    if LIVING.table is not None:
        LIVING.table.put(f"meshwright/heartbeat/{WORLD.rank}", json.dumps(asdict(LIVING.heartbeat)).encode())


def _keep_giving(stop: threading.Event) -> None:
    while not stop.wait(PERIOD):
        with suppress(DistributedError):  # the coordinator is lost, which is detected elsewhere
            _give()


# --- diagnosis ----------------------------------------------------------------------------------------------
def read_heartbeats(ranks: tuple[int, ...]) -> dict[int, Heartbeat]:
    """The last heartbeats of the processes."""
    table, beats = LIVING.table, {}
    for rank in ranks if table is not None else ():
        value = table.get(f"meshwright/heartbeat/{rank}", _ANSWER)  # type: ignore[union-attr]
        if value is not None:
            beats[rank] = Heartbeat(**json.loads(value))
    return beats


def told(key: str, rank: int, seconds: float) -> bytes | None:
    """What process ``rank`` stores under ``key``; None after so many seconds, or once it has ended without doing so."""
    table, end, has_ended = LIVING.table, time.monotonic() + seconds, False
    while table is not None:
        left = end - time.monotonic()
        value = table.get(key, max(min(left, 2 * PERIOD), 0.1))
        if value is not None or has_ended or left <= 0:
            return value
        has_ended = _has_ended(rank)  # it may have stored it just before, so that is looked up once more
    return None


def _has_ended(rank: int) -> bool:
    """Whether a process has left the job, or is dead, which is known of those of this machine alone."""
    beat = read_heartbeats((rank,)).get(rank)
    return beat is not None and (bool(beat.left) or _state(beat).startswith("is dead"))


def are_gone(ranks: tuple[int, ...]) -> dict[int, str]:
    """The processes that are gone, with the reason for each. Used while waiting, when nothing has failed yet."""
    before = read_heartbeats(ranks)
    end = time.monotonic() + SILENCE
    while time.monotonic() < end:
        time.sleep(2.5 * PERIOD)
        after = read_heartbeats(ranks)
        silent = {r: s for r, s in after.items() if s.left or (r in before and s.number == before[r].number)}
        ended = {r: state for r, s in silent.items() if (state := _state(s)) != _silence(s)}
        if ended or not silent:
            return {r: _where(after[r], state) for r, state in ended.items()}
    return {r: _where(s, _silence(s)) for r, s in silent.items()}


def suspects(ranks: tuple[int, ...] | None = None) -> dict[int, str]:
    """The other processes that caused a failure, with the reason for each in words."""
    others = tuple(r for r in (range(WORLD.count) if ranks is None else ranks) if r != WORLD.rank)
    before, after = _heartbeats_twice(others)
    states: dict[int, str] = {}
    for rank in others:
        if rank not in after:
            states[rank] = "never joined"
        elif after[rank].left or (rank in before and after[rank].number == before[rank].number):
            states[rank] = _where(after[rank], _state(after[rank]))
    followers = {rank for rank in states if rank in after and after[rank].blames}
    failed = {rank: text for rank, text in states.items() if rank not in followers}
    if failed:
        return failed
    late = _late({r: s for r, s in after.items() if r not in states})
    return late or {r: f"{t}; it had given up on rank {after[r].blames}" for r, t in states.items()}


def _late(others: dict[int, Heartbeat]) -> dict[int, str]:
    """The live processes that have not started what this process has."""
    mine = LIVING.heartbeat
    return {
        r: f"on host {s.host}, is late: it lives, but has started {s.last} last (run {s.runs}, this process is at run "
        f"{mine.runs})"
        for r, s in others.items()
        if s.runs < mine.runs
    }


def _heartbeats_twice(ranks: tuple[int, ...]) -> tuple[dict[int, Heartbeat], dict[int, Heartbeat]]:
    """The last heartbeats of the processes, twice.

    The second time is when each has sent another one or is known to have ended, or after the time for two.
    """
    before = read_heartbeats(ranks)
    end = time.monotonic() + 2.5 * PERIOD
    while True:
        time.sleep(PERIOD / 5)
        after = read_heartbeats(ranks)
        silent = [s for r, s in after.items() if r in before and s.number == before[r].number]
        if time.monotonic() > end or all(_state(s) != _silence(s) for s in silent):
            return before, after


def _where(beat: Heartbeat, state: str) -> str:
    return f"on host {beat.host}, {state} (it had last started {beat.last})"


def _silence(beat: Heartbeat) -> str:
    return f"gives no sign of life (process {beat.pid} is dead, frozen or cut off)"


def _state(beat: Heartbeat) -> str:
    """What happened to a process that no longer sends heartbeats."""
    if beat.left:
        return beat.left
    if beat.host == socket.gethostname() and Path("/proc/self").exists():
        stat = Path(f"/proc/{beat.pid}/stat")
        try:
            state = stat.read_text().rpartition(")")[2].split()[0]
        except OSError:
            return f"is dead (process {beat.pid} is gone)"
        if state in "ZX":
            return f"is dead (process {beat.pid} has ended)"
        if state in "Tt":
            return f"is stopped (process {beat.pid})"
    return _silence(beat)
