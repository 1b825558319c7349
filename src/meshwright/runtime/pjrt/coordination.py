"""XLA's coordination service: the members of a job, and a key-value store.

The service has no authentication: anyone who can reach its port can join (``runtime/processes/rendezvous.py``
authenticates processes when a job starts). It listens on the given address, which is loopback unless the user sets
another one. Between machines, use a private network for the job.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from jaxlib import _jax
from jaxlib._jax import JaxRuntimeError

from meshwright.core.addresses import family_of, host_and_port
from meshwright.errors import DistributedError
from meshwright.runtime.pjrt.world import WORLD

#: seconds without a heartbeat after which XLA kills processes: a month, as our own (``processes.heartbeats``,
#: ``processes.rendezvous``) come first and raise errors that can be caught
_HEARTBEAT = 30 * 86_400
#: seconds between checks, while waiting for an answer, of whether the coordinator is alive
_PERIOD = 0.2
#: seconds by which our timeout is shorter than XLA's, which kills the waiting process
_MARGIN = 60

T = TypeVar("T")


def address_towards(address: str) -> str:
    """The address of this machine as seen from another one's ``host:port``."""
    host, port = host_and_port(address)
    with socket.socket(family_of(host), socket.SOCK_DGRAM) as s:
        s.connect((host, port))  # sends nothing
        return s.getsockname()[0]


def serve(address: str, count: int, wait: float) -> Any:
    """Start the service for ``count`` processes, which have ``wait`` seconds to arrive. Keep the returned object alive.

    Raises:
      DistributedError: it cannot listen at the address.
    """
    host, port = host_and_port(address)
    try:
        with socket.socket(family_of(host)) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind((host, port))
        return _jax.get_distributed_runtime_service(
            address, count, heartbeat_timeout=_HEARTBEAT, shutdown_timeout=5,
            cluster_register_timeout=int(wait) + _MARGIN, recoverable=True,
        )  # fmt: skip
    except (OSError, RuntimeError) as error:
        raise DistributedError(
            f"the coordinator of {count} processes cannot listen on {address}: {error}; another program may use the "
            "port, or the host be another machine: choose another address"
        ) from None


def connect(address: str, rank: int, wait: float) -> Any:
    """Connect process ``rank`` to the service, which must be running: XLA kills a process that does not find it.

    Raises:
      DistributedError: not all processes arrive within ``wait`` seconds, or one ends before that.
    """
    service = _jax.get_distributed_runtime_client(
        address, rank, init_timeout=int(wait) + _MARGIN, heartbeat_timeout=_HEARTBEAT, shutdown_timeout=5,
        shutdown_on_destruction=False,
    )  # fmt: skip
    end = time.monotonic() + wait

    def check() -> None:
        if WORLD.gone:
            raise DistributedError(
                f"process {rank} cannot join the job: rank {', '.join(map(str, sorted(WORLD.gone)))} ended, or was "
                "stopped, before all had joined"
            )
        if time.monotonic() > end:
            raise DistributedError(f"process {rank} could not join the job in {wait:.0f} s: see what the others print")

    try:
        _unless_lost(service.connect, check)
    except JaxRuntimeError as error:
        raise DistributedError(f"process {rank} could not join the job at {address}: {error}") from None
    return service


def _unless_lost(call: Callable[[], T], check: Callable[[], None] = lambda: None) -> T:
    """Return ``call()``, which runs in a thread of its own, as XLA waits forever for a lost coordinator.

    Raises:
      DistributedError: the coordinator is lost, or ``check()`` raises it.
      RuntimeError: XLA's error.
    """
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, name="meshwright-table", daemon=True).start()
    while True:
        with suppress(TimeoutError):
            return done.result(_PERIOD)
        WORLD.check()
        check()


class Table:
    """A key-value store shared by all processes. Failures raise DistributedError."""

    def __init__(self, service: Any) -> None:
        self.service = service

    def put(self, key: str, value: bytes) -> None:
        WORLD.check()
        try:
            _unless_lost(lambda: self.service.key_value_set_bytes(key, value, allow_overwrite=True))
        except JaxRuntimeError as error:
            raise DistributedError(f"the coordinator does not answer: {error}") from None

    def remove(self, key: str) -> None:
        """Delete a key, if it exists. Failures are ignored, as they only cost memory."""
        with suppress(JaxRuntimeError, DistributedError):
            _unless_lost(lambda: self.service.key_value_delete(key))

    def get(self, key: str, seconds: float) -> bytes | None:
        """Wait for a value; None if it does not arrive within ``seconds``."""
        end = time.monotonic() + seconds
        while True:
            WORLD.check()
            left = end - time.monotonic()
            try:
                return self.service.blocking_key_value_get_bytes(key, max(int(1000 * min(left, _PERIOD)), 1))
            except JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error) and "NOT_FOUND" not in str(error):
                    raise DistributedError(f"the coordinator does not answer: {error}") from None
            if left < _PERIOD:
                return None
