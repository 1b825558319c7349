"""XLA's coordination service: the members of a job, and a key-value store.

The service has no authentication: anyone who can reach its port can join (``runtime/processes/meeting.py``
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

#: seconds without a sign of life after which XLA ends processes: a month, as ours (``processes.signs``,
#: ``processes.meeting``) come first, and can be caught
_HEARTBEAT = 30 * 86_400
#: seconds after which who waits for an answer looks whether anybody is there
_PERIOD = 0.2
#: seconds by which we wait less than XLA, which ends processes that wait in vain
_MARGIN = 60

T = TypeVar("T")


def address_towards(address: str) -> str:
    """The address of this machine on the way to another's ``host:port``: where others reach it."""
    host, port = host_and_port(address)
    with socket.socket(family_of(host), socket.SOCK_DGRAM) as s:
        s.connect((host, port))  # sends nothing
        return s.getsockname()[0]


def serve(address: str, count: int, wait: float) -> Any:
    """Start the service for ``count`` processes, which have ``wait`` seconds to come; keep what is returned.

    Raises:
      DistributedError: it cannot listen there.
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
    """The connection of process ``rank`` to the service, which must be there: XLA ends a process that finds none.

    Raises:
      DistributedError: not all processes come in ``wait`` seconds, or one goes meanwhile.
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
    """``call()``, made in a thread of its own: XLA waits for ever for the answer of a coordinator that is lost.

    Raises:
      DistributedError: it is lost, or ``check()`` raises. RuntimeError: XLA's.
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
    """Keys and values that all processes see. Failures are DistributedError."""

    def __init__(self, service: Any) -> None:
        self.service = service

    def put(self, key: str, value: bytes) -> None:
        WORLD.check()
        try:
            _unless_lost(lambda: self.service.key_value_set_bytes(key, value, allow_overwrite=True))
        except JaxRuntimeError as error:
            raise DistributedError(f"the coordinator does not answer: {error}") from None

    def remove(self, key: str) -> None:
        """Forget a key, if it is there. That it cannot be done is no failure: it only takes memory."""
        with suppress(JaxRuntimeError, DistributedError):
            _unless_lost(lambda: self.service.key_value_delete(key))

    def get(self, key: str, seconds: float) -> bytes | None:
        """The value, for which this waits; None if it does not come in ``seconds``."""
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
