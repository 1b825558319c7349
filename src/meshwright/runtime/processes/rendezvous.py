"""The rendezvous of a job's processes, before any of them calls XLA.

XLA's coordination service has no authentication, and kills every process that waits in vain for another one, or finds
another service at the port. So the coordinator first listens at its address itself. It asks each process for its index
and for a proof that it knows the job's token (``MESHWRIGHT_TOKEN``, which ``meshwright run`` generates; empty if not
set). When all processes have arrived, it starts XLA's service there and notifies them. If one does not arrive, or has
another version, all are told so.

The protocol: the coordinator sends a line of JSON with a challenge, the process one with its index and proof, and
finally the coordinator one with an error, or none. From then on, the coordinator answers the heartbeats of each
process, and tells the others the number of a process that exits or sends none.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import secrets
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast

from meshwright.core.addresses import address_of, family_of, host_and_port
from meshwright.core.config import config
from meshwright.core.version import __version__
from meshwright.errors import DistributedError
from meshwright.runtime.pjrt.plugins import JAXLIB_VERSION
from meshwright.runtime.pjrt.world import WORLD

TOKEN = "MESHWRIGHT_TOKEN"
_GREETING = "meshwright coordinator"
#: seconds to wait for an answer, and by which a process waits longer than the coordinator
_ANSWER, _MARGIN = 10.0, 5.0
#: seconds for which a coordinator that has found an error still reports it to arriving processes
_LINGER = 1.0
_LONGEST = 1 << 16
#: the heartbeat, and the seconds between two of them
_SIGN, _PERIOD = b".", 0.2
#: seconds without a heartbeat after which a process or the coordinator counts as gone; machines can be busy
SILENCE = 10.0


def version() -> str:
    """The versions, which must be equal in all processes, as one may load what another has compiled."""
    return f"meshwright {__version__}, jaxlib {JAXLIB_VERSION}"


def _proof(token: str, nonce: str, place: str) -> str:
    return hmac.new(token.encode(), f"{nonce} {place}".encode(), "sha256").hexdigest()


def _has_gone(connection: socket.socket) -> bool:
    """Whether the other side has closed the connection, as happens when a process ends."""
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.setblocking(True)


def _received(connection: socket.socket) -> bytes:
    """The next data; empty if the other side is gone."""
    with suppress(OSError):
        return connection.recv(_LONGEST)
    return b""


def _answered(connection: socket.socket) -> bool:
    """Send the next data back; whether that worked, which it does not if the other side is gone."""
    data = _received(connection)
    with suppress(OSError):
        connection.sendall(data)
        return bool(data)
    return False


def _number(value: Any) -> float:
    """The seconds in a message; infinity if there are none."""
    return value if isinstance(value, (int, float)) else math.inf


def _say(connection: socket.socket, **words: Any) -> None:
    connection.sendall(json.dumps(words).encode() + b"\n")


def _hear(connection: socket.socket, seconds: float) -> dict[str, Any]:
    """The next line as JSON; empty if none arrives, or if it is not of this protocol."""
    end, text = time.monotonic() + seconds, b""
    try:
        while not text.endswith(b"\n") and len(text) < _LONGEST:
            connection.settimeout(max(end - time.monotonic(), 0.001))
            part = connection.recv(4096)
            if not part:
                return {}
            text += part
        message = json.loads(text)
    except (OSError, ValueError):
        return {}
    return message if isinstance(message, dict) else {}


class Rendezvous:
    """The coordinator's side: listens at ``address`` (``host:port``, port 0 for a free one) until :meth:`gather`.

    Raises:
      DistributedError: it cannot listen at the address.
    """

    def __init__(self, address: str, count: int, token: str) -> None:
        self.count, self.token = count, token
        host, port = host_and_port(address)
        try:
            self.listener = socket.create_server((host, port), family=family_of(host), backlog=max(count, 16))
        except OSError as error:
            raise DistributedError(
                f"the coordinator of {count} processes cannot listen on {address}: {error}; another program may use "
                "the port, or the host be another machine: choose another address"
            ) from None
        self.address = address_of(host, self.listener.getsockname()[1])
        #: the monotonic time at which each process left
        self.left: dict[int, float] = {}
        self._changed = threading.Condition()
        self._until = math.inf
        self._come: dict[int, socket.socket] = {}
        self._wrong, self._strangers, self._refusals, self._closed = "", 0, 0, False

    def give_up(self, why: str) -> None:
        """Tell all processes, present and arriving, that there will be no job."""
        with self._changed:
            self._wrong = self._wrong or why
            self._changed.notify_all()

    def gather(self, wait: float, serve: Callable[[], Any], linger: float = _LINGER) -> Any:
        """Wait for all processes, free the port, call ``serve()``, and notify them; returns its result.

        If there is no job, processes that arrive within another ``linger`` seconds, until :meth:`close`, are told too.

        Raises:
          DistributedError: not all arrived within ``wait`` seconds, versions differ, or :meth:`give_up` was called.
        """
        threading.Thread(target=self._accept, daemon=True).start()
        with self._changed:
            waited = self._wait_for_all(wait)
            self._come = {r: c for r, c in self._come.items() if not _has_gone(c)}
            wrong = self._wrong = self._wrong or self._missing(waited)
        try:
            if wrong:
                raise DistributedError(wrong)
            self._close()
            return serve()
        except DistributedError as error:
            wrong = str(error)
            raise
        finally:
            for connection in self._come.values():
                with suppress(OSError):
                    _say(connection, wrong=wrong)
            if wrong:
                self._refuse_late(linger)
                self.end()
            else:
                threading.Thread(target=self._live, daemon=True).start()

    def _wait_for_all(self, wait: float) -> float:
        """Wait for all, up to ``wait`` seconds or the deadline of a process that has arrived; returns the time."""
        began = time.monotonic()
        self._until = min(self._until, began + wait)
        while not self._wrong and len(self._come) < self.count and time.monotonic() < self._until:
            self._changed.wait(self._until - time.monotonic())
        return time.monotonic() - began

    def _live(self) -> None:
        """Answer heartbeats, record when each process leaves, and tell the others."""
        last = dict.fromkeys(self._come, time.monotonic())
        with suppress(OSError, ValueError), selectors.DefaultSelector() as selector:  # ``end`` closes the connections
            for rank, connection in self._come.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while selector.get_map():
                for key, _ in selector.select(SILENCE / 10):
                    last[key.data] = time.monotonic()
                    if not _answered(cast("socket.socket", key.fileobj)):
                        self.left[key.data] = last.pop(key.data)
                        selector.unregister(key.fileobj)
                        self._tell_of(key.data, last)
                for rank, when in last.items():
                    if time.monotonic() - when > SILENCE:
                        last[rank] = math.inf
                        self._tell_of(rank, last)

    def _tell_of(self, rank: int, others: Iterable[int]) -> None:
        for other in others:
            with suppress(OSError):
                self._come[other].sendall(f"{rank}\n".encode())

    def end(self) -> None:
        """Close the connections, by which the processes see that the coordinator is alive."""
        for connection in self._come.values():
            connection.close()

    def _missing(self, wait: float) -> str:
        ranks = [r for r in range(self.count) if r not in self._come]
        if not ranks:
            return ""
        strangers = f"; {self._strangers} that came did not know the job's token ({TOKEN})" if self._strangers else ""
        return (
            f"of {self.count} processes, {len(ranks)} did not come to {self.address} in {wait:.0f} s: rank "
            f"{', '.join(map(str, ranks[:20]))}{strangers}; see what they print, and whether they are started at all"
        )

    def _refuse_late(self, seconds: float) -> None:
        """Keep the listener open for a while, so that :meth:`_receive` reports the error to late processes."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._come) + self._refusals >= self.count, seconds)
        self._close()

    def close(self) -> None:
        """No longer expect processes."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _close(self) -> None:
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in ``accept``
        self.listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._receive, args=(connection,), daemon=True).start()

    def _receive(self, connection: socket.socket) -> None:
        """Admit a process, or tell it why not."""
        nonce = secrets.token_hex(16)
        with suppress(OSError):
            _say(connection, hello=_GREETING, nonce=nonce)
        message = _hear(connection, _ANSWER)
        with self._changed:
            wrong = self._refused(message, nonce)
            self._refusals += bool(wrong)
            if not wrong:
                self._come[json.loads(message["place"])[0]] = connection
                self._until = min(self._until, time.monotonic() + _number(message.get("wait")))
            self._changed.notify_all()
        if wrong:
            with suppress(OSError):
                _say(connection, wrong=wrong)
            connection.close()

    def _refused(self, message: dict[str, Any], nonce: str) -> str:
        place = str(message.get("place"))
        if not hmac.compare_digest(str(message.get("proof")), _proof(self.token, nonce, place)):
            self._strangers += 1
            return f"{self.address} belongs to another job, whose token ({TOKEN}) this process does not have"
        rank, count, theirs = json.loads(place)
        if count != self.count:
            self._wrong = f"process {rank} is one of {count}, those at {self.address} are to be {self.count}"
        elif theirs != version():
            self._wrong = f"process {rank} has {theirs}; the coordinator has {version()}: all must have the same"
        elif rank in self._come and not _has_gone(self._come[rank]):
            self._wrong = f"two processes come to {self.address} as process {rank}"
        return self._wrong


def attend(address: str, rank: int, count: int, token: str, wait: float) -> socket.socket:
    """A process's side: connect to ``address`` and wait for all. The connection lasts as long as the coordinator.

    Raises:
      DistributedError: nothing listens there, it is not a coordinator, or it reports an error.
    """
    end = time.monotonic() + wait
    connection = _reached(address, rank, end, wait)
    try:
        _attend(connection, address, rank, count, token, end)
    except DistributedError:
        connection.close()
        raise
    return connection


def _attend(connection: socket.socket, address: str, rank: int, count: int, token: str, end: float) -> None:
    """Identify this process, and wait for the answer.

    Raises:
      DistributedError: there is no job.
    """
    hello = _hear(connection, min(_ANSWER, max(end - time.monotonic(), 1.0)))
    if hello.get("hello") != _GREETING:
        raise DistributedError(
            f"process {rank}: what listens at {address} is no coordinator of meshwright, or has just ended; "
            "another program may use the port: choose another address"
        )
    place = json.dumps([rank, count, version()])
    proof = _proof(token, str(hello.get("nonce")), place)
    with suppress(OSError):
        _say(connection, place=place, proof=proof, wait=max(end - time.monotonic(), 0))
    reply = _hear(connection, max(end - time.monotonic(), 0) + _MARGIN)
    if "wrong" not in reply:
        raise DistributedError(
            f"process {rank}: the coordinator at {address} has gone, or not all {count} processes came in time"
        )
    if reply["wrong"]:
        raise DistributedError(f"process {rank}: {reply['wrong']}")


def _reached(address: str, rank: int, end: float, wait: float) -> socket.socket:
    """Connect, retrying until something listens.

    Raises:
      DistributedError: nothing does in time.
    """
    while True:
        try:
            return socket.create_connection(host_and_port(address), timeout=min(wait, _ANSWER))
        except OSError as error:
            if time.monotonic() > end:
                raise DistributedError(
                    f"process {rank} found no coordinator at {address} in {wait:.0f} s ({error}); process 0 (or the "
                    "launcher) must run there, and the port be open"
                ) from None
        time.sleep(0.05)


def watch(connection: socket.socket, address: str, rank: int, stop: threading.Event) -> None:
    """Watch for the end or silence of the coordinator until ``stop`` is set, which closes the connection.

    If the coordinator is lost, operations that need it raise from then on. A process that still runs after
    ``config.collective_timeout`` is ended with the same message.
    """
    with connection:
        how = _fate(connection, stop, WORLD.gone)
    if not how:
        return
    WORLD.lost = (
        f"rank {rank}: the coordinator is lost, and with it the job: the process that listened at {address} {how}"
    )
    if not stop.wait(config.collective_timeout):
        os.write(2, f"meshwright.errors.DistributedError: {WORLD.lost}\n".encode())
        os._exit(1)


def _fate(connection: socket.socket, stop: threading.Event, gone: set[int]) -> str:
    """What happened to the coordinator; empty if ``stop`` is set first.

    Heartbeats are sent one at a time. Processes that the coordinator reports as ended or silent are added to ``gone``.
    """
    text = b""
    while not stop.is_set():
        try:
            connection.sendall(_SIGN)
            end = time.monotonic() + SILENCE
            while not select.select([connection], [], [], _PERIOD)[0]:
                if stop.is_set():
                    return ""
                if time.monotonic() > end:
                    return f"has said nothing for {SILENCE:.0f} s: it is frozen, or cut off"
            data = connection.recv(_LONGEST)
            if not data:
                return "has ended"
            *said, text = (text + data.replace(_SIGN, b"")).split(b"\n")
            gone.update(map(int, said))
        except OSError as error:
            return f"has ended ({error})"
        stop.wait(_PERIOD)
    return ""


def own_token() -> str:
    """The job's token, which is passed in the environment."""
    return os.environ.get(TOKEN, "")
