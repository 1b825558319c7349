"""Starts, monitors and ends the processes of a job on this machine."""

from __future__ import annotations

import itertools
import math
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TextIO

from meshwright.core.records import dataclass
from meshwright.core.with_parent import end_with_parent
from meshwright.errors import DistributedError
from meshwright.runtime.pjrt import coordination
from meshwright.runtime.processes.rendezvous import TOKEN, Rendezvous
from meshwright.runtime.processes.stopping import Terminated, held, stop

#: seconds that the processes of a job have to arrive
_COME = 600


@dataclass
class Launch:
    """A launch of ``command`` in ``count`` processes, each with ``env`` and its rank in the job.

    After the first failure of a process, the others have ``grace`` seconds to end by themselves. ``write`` is called
    with the stream name, rank and text of each line that they print. If it raises OSError, the stream is closed, so
    that the process fails as it would without a launcher.
    """

    command: Sequence[str]
    count: int
    env: Mapping[str, str]
    write: Callable[[str, int, str], None]
    grace: float = 90.0
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    #: when each process was observed to have ended
    _ended: dict[int, float] = field(default_factory=dict)
    _coordinator: _Coordinator = field(init=False)

    def run(self, attempt: int) -> dict[int, int]:
        """Run the job. Returns exit statuses by rank, in the order in which processes left the job.

        A process that fails leaves first, and only then do the others fail. Processes that still run at the end are
        killed and not included, except that stopped ones, which nothing else would report, have the status
        ``-SIGSTOP``.

        Raises:
          DistributedError: there was no free port.
          KeyboardInterrupt: the user ended the job.
        """
        token = secrets.token_hex(16)
        with _Coordinator(self.count, token) as self._coordinator:
            return self._run(attempt, token)

    def _run(self, attempt: int, token: str) -> dict[int, int]:
        self.processes = []
        readers: list[_Reader] = []
        try:  # an interrupt can arrive at any time, and must end what has been started by then
            for rank in range(self.count):
                with held() as signals:  # an interrupt within Popen would leave a process without an owner
                    self.processes.append(self._started(rank, attempt, token))
                stop(signals)
            for rank, name in itertools.product(range(self.count), ("stdout", "stderr")):
                readers.append(self._reader(rank, name))
            ends = self._watched()
            self._end_rest()
            _finish(readers)
            return ends
        except Terminated:
            self._end(signal.SIGTERM, 20)
            raise
        except KeyboardInterrupt:
            self._end(signal.SIGINT, 5)
            raise
        finally:
            self._end_rest()
            _join(readers)

    def _end_rest(self) -> None:
        """End the remaining processes if one has failed."""
        if any(p.poll() != 0 for p in self.processes):
            self._end(signal.SIGTERM, 3)

    def _started(self, rank: int, attempt: int, token: str) -> subprocess.Popen[str]:
        place = {"MESHWRIGHT_COORDINATOR": self._coordinator.address, "MESHWRIGHT_PROCESS_ID": str(rank),
                 "MESHWRIGHT_PROCESS_COUNT": str(self.count), "MESHWRIGHT_RESTART": str(attempt),
                 TOKEN: token, "PYTHONUNBUFFERED": "1"}  # fmt: skip
        return subprocess.Popen(
            self.command, env={**self.env, **place}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", start_new_session=True, preexec_fn=end_with_parent,
        )  # fmt: skip

    def _reader(self, rank: int, name: str) -> _Reader:
        return _Reader(getattr(self.processes[rank], name), partial(self.write, name, rank))

    def _watched(self) -> dict[int, int]:
        end: float | None = None
        while True:
            states = [p.poll() for p in self.processes]
            for rank, state in enumerate(states):
                if state is not None and rank not in self._ended:
                    self._ended[rank] = time.monotonic()
                    self._coordinator.rendezvous.give_up(f"rank {rank} {described(state)} before all had come")
            stopped = self._stopped(states)
            end = (end or time.monotonic() + self.grace) if any(states) or stopped else None
            if None not in states or (end is not None and time.monotonic() > end):
                return self._in_order(states, stopped)
            time.sleep(0.02)

    def _in_order(self, states: Sequence[int | None], stopped: Sequence[int]) -> dict[int, int]:
        left = self._coordinator.rendezvous.left
        order = sorted(self._ended, key=lambda rank: min(left.get(rank, math.inf), self._ended[rank]))
        return {**{r: s for r in order if (s := states[r]) is not None}, **dict.fromkeys(stopped, -signal.SIGSTOP)}

    def _stopped(self, states: Sequence[int | None]) -> list[int]:
        """The remaining processes if others have ended and all of these are stopped, as nothing else reports that."""
        left = [rank for rank, state in enumerate(states) if state is None]
        if len(left) in (0, len(states)):
            return []
        return left if all(_is_stopped(self.processes[rank].pid) for rank in left) else []

    def _end(self, number: int, seconds: float) -> None:
        """End the running processes and their children by a signal, then, or at a further signal, by SIGKILL."""
        with held() as signals:
            self._end_in(number, seconds, signals)
            self._end_in(signal.SIGKILL, 5, ())

    def _end_in(self, signum: int, seconds: float, signals: Sequence[int]) -> None:
        limit = time.monotonic() + seconds
        running = [p for p in self.processes if _send(p, signum)]
        while any(_send(p, 0) for p in running) and time.monotonic() < limit and not signals:
            time.sleep(0.02)


def _send(process: subprocess.Popen[str], signum: int) -> bool:
    """Send a signal to the process group of a process; whether the group still exists."""
    process.poll()
    try:
        os.killpg(process.pid, signum)
        if signum not in (0, signal.SIGKILL):
            os.killpg(process.pid, signal.SIGCONT)  # stopped processes do not handle other signals
    except (ProcessLookupError, PermissionError):  # on some systems, the latter means that all have ended
        return False
    return True


class _Reader(threading.Thread):
    """Forwards the lines of a process's stream to ``write``."""

    def __init__(self, stream: TextIO, write: Callable[[str], None]) -> None:
        super().__init__(daemon=True)
        self.stream, self.write, self.lines, self.is_writing = stream, write, 0, False
        self.start()

    def run(self) -> None:
        try:
            for line in self.stream:
                self.is_writing = True
                self.write(line)
                self.lines, self.is_writing = self.lines + 1, False
        except OSError:  # nobody reads the output; closing the stream lets the process notice
            self.is_writing = False
            self.stream.close()


def _finish(readers: list[_Reader]) -> None:
    """Wait until everything is forwarded, however slowly it is read, then clear the list.

    Streams without new output are not waited for, as orphaned processes may hold them open.
    """
    before: list[int] = []
    while (alive := [r for r in readers if r.is_alive()]) and (
        any(r.is_writing for r in alive) or before != [r.lines for r in readers]
    ):
        before = [r.lines for r in readers]
        _join(alive)
    readers.clear()


def _join(readers: Sequence[_Reader]) -> None:
    """Wait at most two seconds for the readers to end."""
    end = time.monotonic() + 2
    for reader in readers:
        reader.join(max(end - time.monotonic(), 0))


class _Coordinator:
    """A job's coordination service on a free loopback port, as a context manager."""

    def __init__(self, count: int, token: str) -> None:
        self.rendezvous = Rendezvous("127.0.0.1:0", count, token)
        self.address, self.service = self.rendezvous.address, None
        self._thread = threading.Thread(target=self._gather, args=(count,), name="meshwright-rendezvous", daemon=True)

    def __enter__(self) -> _Coordinator:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.rendezvous.give_up("the job was ended before all had come")
        self.rendezvous.close()
        self._thread.join()
        self.rendezvous.end()
        self.service = None

    def _gather(self, count: int) -> None:
        with suppress(DistributedError):  # the processes report it
            self.service = self.rendezvous.gather(_COME, lambda: coordination.serve(self.address, count, _COME), _COME)


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal; False if the system does not provide it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def described(status: int) -> str:
    """An exit status in words."""
    if status == -signal.SIGSTOP:
        return "was stopped, and the others had ended"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def environment(devices: int | None, real_devices: int | None, timeout: float | None) -> dict[str, str]:
    """This process's environment with the command line's options added."""
    options = {"NUM_DEVICES": devices, "REAL_DEVICES": real_devices, "COLLECTIVE_TIMEOUT": timeout}
    return {**os.environ, **{f"MESHWRIGHT_{k}": str(v) for k, v in options.items() if v is not None}}
